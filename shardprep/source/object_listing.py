"""The objects of an address: the one that lies there, or all below it, as in a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shardprep.errors import SourceError
from shardprep.storage import objects
from shardprep.storage.url import ObjectUrl

if TYPE_CHECKING:
    from collections.abc import Iterable


class Below(NamedTuple):
    """An object below an address."""

    relative: str
    num_bytes: int
    etag: str = ""


class FoundObjects(NamedTuple):
    """The object at an address, or the objects below it."""

    url: ObjectUrl
    archive_bytes: int | None
    """Bytes of the object at the address itself; None: there is none."""
    etag: str
    """ETag of that object."""
    below: list[Below]
    """All objects below the address, sorted, if there is none at it."""


def find_objects(address: str, leave_out: Iterable[str]) -> FoundObjects:
    """Return the objects of an address, without those below the addresses to leave out.

    Raises:
        RecipeError: it is no address.
        SourceError: nothing is there.
        StorageError: the store does not answer, or refuses.

    """
    url = ObjectUrl.parse(address)
    facts = objects.head(url) if url.key and not address.endswith("/") else None
    if facts is not None:
        return FoundObjects(url, facts.num_bytes, facts.etag, [])
    out = [f"{place.rstrip('/')}/" for place in leave_out]
    own = [place for place in out if place != f"{str(url).rstrip('/')}/"]
    below = [
        Below(facts.name, facts.num_bytes, facts.etag)
        for facts in objects.listing(url)
        if facts.name and not str(url / facts.name).startswith(tuple(own))
    ]
    if not below:
        raise SourceError(
            address,
            "there is no such object, and none below it",
            "give the address of an archive, or what objects lie below",
        )
    return FoundObjects(url, None, "", below)
