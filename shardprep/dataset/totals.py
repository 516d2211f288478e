"""Totals of the rows of `items.parquet`, which a build writes and verify counts again.

A tally takes the rows of one shard at a time, so memory does not grow with the data.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from shardprep.dataset.item_table import WRITTEN, with_status
from shardprep.dataset.manifest import Shard, Split, Totals
from shardprep.image.spec import fitted_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from shardprep.image.spec import ImageSpec


@dataclass(slots=True)
class _SplitTally:
    shards: list[Shard] = field(default_factory=list)
    labels: Counter[int] = field(default_factory=Counter)
    num_unlabelled: int = 0


@dataclass(slots=True)
class Tally:
    """Counts of the shards added so far, in their order."""

    spec: ImageSpec
    """Size and format of the written images."""
    _splits: dict[str, _SplitTally] = field(default_factory=dict)
    _rejected: Counter[str] = field(default_factory=Counter)
    _marks: list[np.ndarray[tuple[int], np.dtype[np.uint64]]] = field(default_factory=list)
    """First 8 bytes of the SHA-256 of each written original, an array per shard."""
    _places: list[int] = field(default_factory=list)
    """Position of each shard's split."""
    _num_damaged: int = 0
    _num_enlarged: int = 0
    _original_bytes: int = 0

    def add(self, shard: Shard, split: str, table: pa.Table) -> None:
        """Count the rows of a shard, written and rejected ones."""
        tally = self._splits.setdefault(split, _SplitTally())
        tally.shards.append(shard)
        self._rejected.update(kind for kind in table["kind"].to_pylist() if kind is not None)
        written = with_status(table, WRITTEN)
        tally.labels.update(written["label"].drop_null().to_pylist())
        tally.labels.update(pc.list_flatten(written["labels"]).to_pylist())
        tally.num_unlabelled += len(written) - sum(
            pc.count(written[name]).as_py() for name in ("label", "labels", "target", "text")
        )
        self._num_damaged += pc.count(written["reason"]).as_py()
        hashes = written["original_sha256"].to_pylist()
        self._marks.append(np.array([int(text[:16], 16) for text in hashes], np.uint64))
        self._places.append(list(self._splits).index(split))
        self._original_bytes += pc.sum(written["original_bytes"]).as_py() or 0
        if self.spec.fixed_size is not None:
            sizes = Counter(
                zip(
                    written["original_height"].to_pylist(),
                    written["original_width"].to_pylist(),
                    strict=True,
                )
            )
            self._num_enlarged += sum(
                count
                for (height, width), count in sizes.items()
                if math.prod(fitted_size(height, width, self.spec)) > height * width
            )

    def splits(self, labels: Sequence[str]) -> dict[str, Split]:
        """Return the splits, in the order in which their first shards came."""
        return {name: _split(tally, labels) for name, tally in self._splits.items()}

    def totals(self, skipped: Counter[str]) -> Totals:
        """Return the totals; `skipped` counts the inputs that never became items, by reason."""
        num_copies, num_leaks = self._copies()
        shards = [shard for tally in self._splits.values() for shard in tally.shards]
        num_written = sum(shard.num_records for shard in shards)
        return Totals(
            num_inputs=num_written + self._rejected.total() + skipped.total(),
            num_written=num_written,
            num_rejected=self._rejected.total(),
            num_skipped=skipped.total(),
            rejected=dict(sorted(self._rejected.items())),
            skipped=dict(sorted(skipped.items())),
            num_copies=num_copies,
            num_leaks=num_leaks,
            num_damaged=self._num_damaged,
            num_enlarged=self._num_enlarged,
            original_bytes=self._original_bytes,
            num_bytes=sum(shard.num_bytes for shard in shards),
        )

    def _copies(self) -> tuple[int, int]:
        """Return the number of originals that are copies, and of those in another split too."""
        marks = np.concatenate(self._marks)
        places = np.repeat(self._places, [len(marks) for marks in self._marks])
        order = np.lexsort((places, marks))
        same = marks[order][1:] == marks[order][:-1]
        apart = places[order][1:] != places[order][:-1]
        return int(same.sum()), int((same & apart).sum())


def _split(tally: _SplitTally, labels: Sequence[str]) -> Split:
    return Split(
        num_records=sum(shard.num_records for shard in tally.shards),
        num_bytes=sum(shard.num_bytes for shard in tally.shards),
        label_counts={name: tally.labels[i] for i, name in enumerate(labels)},
        num_unlabelled=tally.num_unlabelled,
        shards=tuple(tally.shards),
    )
