"""A member of an archive as the archive's directory lists it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from shardprep.source.byte_range import StoredExtent


class Entry(NamedTuple):
    """One member that is not a folder."""

    name: str
    num_bytes: int
    extent: StoredExtent | None
    """None with a problem."""
    problem: str
    """Reason why the member must not be used; "" for an ordinary member."""
