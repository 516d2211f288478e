"""The differences between a dataset and a source as it is now, by key and SHA-256."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset.card import Card
from shardprep.dataset.diff import (
    Rows,
    change_table,
    differ,
    first_changes,
    num_by_kind,
    places_of,
)
from shardprep.dataset.item_table import SKIPPED

CHANGED, UNREADABLE, GONE, MOVED, NEW = "changed", "unreadable", "gone", "moved", "new"
SOURCE_MEANINGS = {
    CHANGED: "images of the dataset, with other bytes in the source",
    UNREADABLE: "images of the dataset that the source has, and that cannot be read",
    GONE: "images of the dataset that the source does not have",
    MOVED: "images of the dataset under another path in the source",
    NEW: "images of the source that the dataset does not have",
}
"""Kind of difference → meaning, in the order of reports."""

ORIGINALS = pa.schema([(name, pa.string()) for name in ("key", "original_sha256", "reason")])
"""Columns of the originals in a source: SHA-256 in hex, null where the reason says why."""


class SourceChange(NamedTuple):
    """One difference between a dataset and a source."""

    key: str
    """The image; if it moved, its path in the dataset."""
    kind: Literal["changed", "unreadable", "gone", "moved", "new"]
    """Other bytes in the source; unreadable in the source; missing in the source; under another
    path in the source; or only in the source."""
    before: str
    """SHA-256 of the original in the dataset; "" for an image that is new or was unreadable."""
    after: str
    """SHA-256 of the original in the source, or why it cannot be read; the new path of a moved
    image; "" for an image that is gone."""


@dataclass(frozen=True, slots=True, repr=False)
class SourceDifference(Card):
    """The differences between the originals of a dataset and of a source."""

    source: str
    """The source: a folder, an archive or an address; for a slug, the archive on this machine."""
    is_equal: bool
    """True if the source has exactly the images of the dataset, byte for byte."""
    num_before: int
    """Number of written and rejected images of the dataset."""
    num_same: int
    """Number of these images that the source has under the same path, byte for byte."""
    num_changes: dict[str, int]
    """Differences by kind; kinds without a difference have 0."""
    changes: Annotated[pa.Table, list[SourceChange]]
    """Each difference, by kind, then in the order of the dataset; in Python a table of them."""

    def facts(self) -> dict[str, Any]:
        """Return the source, and differences by kind."""
        lines = {
            "source": self.source,
            "same": f"{self.num_same:,} of {self.num_before:,} images",
            "changes": {kind: number for kind, number in self.num_changes.items() if number},
        }
        return {title: value for title, value in lines.items() if value}

    def some(self, kind: str, number: int) -> list[SourceChange]:
        """Return the first differences of a kind."""
        return [SourceChange(**row) for row in first_changes(self.changes, kind, number)]  # type: ignore[arg-type]


def compare_originals(source: str, items: pa.Table, originals: pa.Table) -> SourceDifference:
    """Return the differences between the items of a dataset and the originals in a source.

    Args:
        source: name of the source.
        items: `key`, `status` and `original_sha256` of all inputs of the dataset.
        originals: the `ORIGINALS` of all images in both, and of images that the dataset has no row
            for.

    """
    ours = items.filter(pc.not_equal(items["status"].cast("string"), SKIPPED))
    place = places_of(ours["key"], originals["key"], np.ones(len(originals), bool))
    is_new = np.ones(len(originals), bool)
    common = np.flatnonzero(place >= 0)
    is_new[place[common]] = False
    was = ours["original_sha256"].take(common)
    now, reason = (originals[name].take(place[common]) for name in ("original_sha256", "reason"))
    is_other, is_read = differ(was, now), np.asarray(pc.is_valid(now))
    tables = []
    for kind, rows, after in (
        (CHANGED, np.flatnonzero(is_other & is_read), now),
        (UNREADABLE, np.flatnonzero(is_other & ~is_read), reason),
    ):
        key, before = ours["key"].take(common[rows]), was.take(rows)
        tables.append(change_table(kind, key, _text(before), after.take(rows)))
    num_same = len(common) - int(is_other.sum())
    gone, new = np.flatnonzero(place < 0), np.flatnonzero(is_new)
    tables += _unpaired(ours.take(gone), originals.take(new))
    changes = pa.concat_tables(tables)
    return SourceDifference(
        source=source,
        is_equal=not len(changes),
        num_before=len(ours),
        num_same=num_same,
        num_changes=num_by_kind(changes, SOURCE_MEANINGS),
        changes=changes,
    )


def _unpaired(gone: pa.Table, new: pa.Table) -> list[pa.Table]:
    """Return the changes of images on one side only; equal bytes mean that an image moved."""
    free: defaultdict[str, deque[int]] = defaultdict(deque)
    for number, sha256 in enumerate(new["original_sha256"].to_pylist() if len(gone) else ()):
        if sha256 is not None:
            free[sha256].append(number)
    to = np.full(len(gone), -1)
    for number, sha256 in enumerate(gone["original_sha256"].to_pylist() if free else ()):
        if free.get(sha256):
            to[number] = free[sha256].popleft()
    moved: Rows = np.flatnonzero(to >= 0)
    was = _text(gone["original_sha256"])
    lost, others = gone["key"], np.setdiff1d(np.arange(len(new)), to[moved])
    left = np.flatnonzero(to < 0)
    added = new.take(others)
    return [
        change_table(GONE, lost.take(left), was.take(left), _nothing(len(left))),
        change_table(MOVED, lost.take(moved), was.take(moved), new["key"].take(to[moved])),
        change_table(
            NEW,
            added["key"],
            _nothing(len(added)),
            pc.coalesce(added["original_sha256"], added["reason"]),
        ),
    ]


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(column, "")


def _nothing(number: int) -> pa.Array:
    return pa.array([""] * number, pa.string())
