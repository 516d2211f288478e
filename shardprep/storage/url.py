"""Addresses in object storage: `s3://bucket/key`, `gs://bucket/key`, `az://container/key`.

What begins with another scheme is neither an address nor a path: it is an error, for a folder of
that name is never meant.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from shardprep.errors import RecipeError

SCHEMES = ("s3", "gs", "az")
_STARTS = ("s3://", "gs://", "az://")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/+)")
"""A drive of Windows is one letter, and no scheme."""
_CONTAINER = "az://CONTAINER/KEY, with the account in AZURE_STORAGE_ACCOUNT_NAME"
_MEANT = {
    **dict.fromkeys(("s3a", "s3n"), "s3://BUCKET/KEY"),
    **dict.fromkeys(("gcs",), "gs://BUCKET/KEY"),
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs", "azure", "adl"), _CONTAINER),
    **dict.fromkeys(("file",), "the path alone, as in /data/photos"),
    **dict.fromkeys(("http", "https", "ftp", "hdfs"), ""),
}
"""Scheme that others know → the way to write it here; "" where there is none."""


def is_url(text: str) -> bool:
    """Tell whether a text is an address in object storage, and no path."""
    return text.startswith(_STARTS)


def parse_place(text: str) -> ObjectUrl | Path:
    """Return the address or the path that a text means.

    Raises:
        RecipeError: it has another scheme, or is an address that is none.

    """
    if is_url(text):
        return ObjectUrl.parse(text)
    _check_scheme(text)
    return Path(text)


def _check_scheme(text: str) -> None:
    """Refuse what begins with a scheme and is no address of ours."""
    found = _SCHEME.match(text)
    scheme = found[1].lower() if found else ""
    # A path that a program has cleaned, as `pathlib` does, has one slash where there were two.
    if not found or (len(found[2]) == 1 and scheme not in (*SCHEMES, *_MEANT)):
        return
    if found[1] in SCHEMES:
        what, way = "is an address that became a path", f"give it as a text, {scheme}://…"
    else:
        what = f"{found[1]}:// is no scheme that is known here, which are {', '.join(_STARTS)}"
        meant = f"{scheme}://BUCKET/KEY" if scheme in SCHEMES else _MEANT.get(scheme, "")
        way = f"write {meant}" if meant else "give such an address, or a path of this machine"
        text = f"{found[1]}://{text[found.end() :]}"
    raise RecipeError(shown_url(text), what, way)


def local_path(text: str | Path) -> Path:
    """Return the path that a text means where no address can stand.

    Raises:
        RecipeError: it is an address.

    """
    found = parse_place(str(text))
    if isinstance(found, ObjectUrl):
        raise RecipeError(shown_url(str(text)), "is an address", "give a path of this machine")
    return found


def shown_url(text: str) -> str:
    """Return an address without what people put credentials into: a user, a query."""
    return re.sub(r"//[^/@]*@", "//", text).partition("?")[0]


class ObjectUrl(NamedTuple):
    """A bucket, or a key in one."""

    scheme: str
    bucket: str
    """An Azure container is one too."""
    key: str
    """Without slashes at its ends; "" is the whole bucket."""

    @classmethod
    def parse(cls, text: str) -> ObjectUrl:
        """Return the parts of an address."""
        url = cls.split(text)
        if not is_url(text):
            _check_scheme(text)
        if not is_url(text) or not url.bucket or "?" in text or "#" in text or "@" in url.bucket:
            raise RecipeError(
                shown_url(text),
                "is no address in object storage",
                "give s3://BUCKET/KEY, gs://BUCKET/KEY or az://CONTAINER/KEY; "
                "keys and endpoints come from the environment",
            )
        return url

    @classmethod
    def split(cls, address: str) -> ObjectUrl:
        """Return the parts of an address that is known to be one."""
        scheme, _, rest = address.partition("://")
        bucket, _, key = rest.partition("/")
        return cls(scheme, bucket, "/".join(part for part in key.split("/") if part))

    @property
    def root(self) -> str:
        """The address of the bucket."""
        return f"{self.scheme}://{self.bucket}"

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the key."""
        return tuple(self.key.split("/"))

    def __str__(self) -> str:
        return f"{self.root}/{self.key}"

    def __truediv__(self, name: str) -> ObjectUrl:
        """Return what lies below."""
        return self._replace(key=f"{self.key}/{name}" if self.key else name)
