"""Addresses in object storage: `s3://bucket/key`, `gs://bucket/key`, `az://container/key`.

A text with another scheme is an error, not the name of a folder.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from shardprep.errors import RecipeError

SCHEMES = ("s3", "gs", "az")
_STARTS = ("s3://", "gs://", "az://")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/+)")
"""Start of an address. A scheme has at least two letters: one letter is a drive of Windows."""
_CONTAINER = "az://CONTAINER/KEY, with the account in AZURE_STORAGE_ACCOUNT_NAME"
_MEANT = {
    **dict.fromkeys(("s3a", "s3n"), "s3://BUCKET/KEY"),
    **dict.fromkeys(("gcs",), "gs://BUCKET/KEY"),
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs", "azure", "adl"), _CONTAINER),
    **dict.fromkeys(("file",), "the path alone, as in /data/photos"),
    **dict.fromkeys(("http", "https", "ftp", "hdfs"), ""),
}
"""Unsupported scheme → form of the address to use instead, or "" if no form is known."""


def is_url(text: str) -> bool:
    """Return True for an address in object storage."""
    return text.startswith(_STARTS)


def parse_place(text: str) -> ObjectUrl | Path:
    """Return an address or a path; RecipeError for an unknown scheme or an invalid address."""
    if is_url(text):
        return ObjectUrl.parse(text)
    _check_scheme(text)
    return Path(text)


def _check_scheme(text: str) -> None:
    match = _SCHEME.match(text)
    scheme = match[1].lower() if match else ""
    # `pathlib` and other programs that clean paths replace two slashes by one.
    if not match or (len(match[2]) == 1 and scheme not in (*SCHEMES, *_MEANT)):
        return
    if match[1] in SCHEMES:
        what = f"has one slash after {scheme}:, not two"
        way = f"write {scheme}://BUCKET/KEY; in Python as a string, not a Path"
    else:
        what = f"has the unknown scheme {match[1]}://, not {' or '.join(_STARTS)}"
        meant = f"{scheme}://BUCKET/KEY" if scheme in SCHEMES else _MEANT.get(scheme, "")
        way = f"write {meant}" if meant else "use such an address, or a path on this machine"
        text = f"{match[1]}://{text[match.end() :]}"
    raise RecipeError(shown_url(text), what, way)


def local_path(text: str | Path) -> Path:
    """Return a text as a path; RecipeError if it is an address."""
    place = parse_place(str(text))
    if isinstance(place, ObjectUrl):
        raise RecipeError(shown_url(str(text)), "is an address, not a path", "give a local path")
    return place


def shown_url(text: str) -> str:
    """Return an address without user and query, which may contain credentials."""
    return re.sub(r"//[^/@]*@", "//", text).partition("?")[0]


class ObjectUrl(NamedTuple):
    """A bucket, or a key in a bucket."""

    scheme: str
    bucket: str
    key: str
    """Key of the object, without slashes at its start and end; "" for the whole bucket."""

    @classmethod
    def parse(cls, text: str) -> ObjectUrl:
        url = cls.split(text)
        if not is_url(text):
            _check_scheme(text)
        scheme = url.scheme if is_url(text) else "s3"
        hint, secrets = f"write {scheme}://BUCKET/KEY", ", with credentials in the environment"
        for what, is_there, more in (
            (f"does not start with {' or '.join(_STARTS)}", not is_url(text), ""),
            ("has no bucket", not url.bucket, ""),
            ("has a user or a password (@)", "@" in url.bucket, secrets),
            ("has a query or a fragment (? or #)", "?" in text or "#" in text, secrets),
        ):
            if is_there:
                raise RecipeError(shown_url(text), what, hint + more)
        return url

    @classmethod
    def split(cls, address: str) -> ObjectUrl:
        """Return the parts of a valid address, without checks."""
        scheme, _, rest = address.partition("://")
        bucket, _, key = rest.partition("/")
        return cls(scheme, bucket, "/".join(part for part in key.split("/") if part))

    @property
    def root(self) -> str:
        return f"{self.scheme}://{self.bucket}"

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.key.split("/"))

    def __str__(self) -> str:
        return f"{self.root}/{self.key}"

    def __truediv__(self, name: str) -> ObjectUrl:
        return self._replace(key=f"{self.key}/{name}" if self.key else name)
