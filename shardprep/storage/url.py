"""Addresses in object storage: `s3://bucket/key`, `gs://bucket/key`, `az://container/key`."""

from __future__ import annotations

import re
from typing import NamedTuple

from shardprep.errors import RecipeError

SCHEMES = ("s3", "gs", "az")


def is_url(text: str) -> bool:
    """Tell whether a text is an address in object storage, and no path."""
    return text.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


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
        """Return the parts of an address.

        Raises:
            RecipeError: it is none.

        """
        url = cls.split(text)
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
