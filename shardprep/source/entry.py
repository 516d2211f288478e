"""A member of an archive as its directory lists it, before anything of it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from shardprep.source.byte_range import StoredExtent


class Entry(NamedTuple):
    """One member that is not a folder."""

    name: str
    """The name in the archive."""
    num_bytes: int
    extent: StoredExtent | None
    """None where there is a problem."""
    problem: str
    """The reason why it must not be used, "" for an ordinary member."""
