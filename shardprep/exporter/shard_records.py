"""The records of a shard as samples, in their order; every checksum is compared on the way.

A damaged record ends an export, and the error names all of its shard: what others train on would
silently lack it.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardprep.dataset.open_dataset import OpenDataset
from shardprep.dataset.tfrecord import unframe
from shardprep.errors import DatasetError, RecordError, some_of
from shardprep.exporter.samples import sample_parser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardprep.dataset.manifest import Shard
    from shardprep.exporter.samples import Sample

_BLOCK_BYTES = 1 << 20
"""Least number of bytes that are read at once, in whole records."""


class Rows(NamedTuple):
    """Keys, file names and places of the records of a shard, in their order."""

    keys: list[str]
    names: list[str | None]
    """File name without suffix; None: the record is left out."""
    offsets: list[int]
    """Start of each frame, bytes."""
    lengths: list[int]
    """Bytes of each frame."""


def read_samples(
    dataset: OpenDataset, shard: Shard, rows: Rows, moved: Callable[[int], None]
) -> Iterator[Sample]:
    """Yield the records of a shard; memory holds a block of the file, and what is kept of others.

    Args:
        dataset: the dataset.
        shard: the shard.
        rows: all its records.
        moved: called with each number of bytes read.

    Raises:
        DatasetError: the shard is missing, of another size, or not what the rows say.
        RecordError: records are damaged; raised behind the last of the shard.

    """
    where, hint = f"{dataset}/{shard.name}", f"run `shardprep verify {dataset}`"
    ends = list(itertools.accumulate(rows.lengths, initial=0))
    is_chain = ends == [*rows.offsets, shard.num_bytes]
    if len(rows.keys) != shard.num_records or not is_chain or min(rows.lengths, default=1) <= 0:
        raise DatasetError(where, "has other records than items.parquet says", hint)
    parse = sample_parser(dataset.schema)
    damaged: list[str] = []
    first: RecordError | None = None
    runs = _runs(rows.lengths)
    for run, block in zip(
        runs, dataset.files.blocks(shard, [_size(ends, r) for r in runs]), strict=True
    ):
        moved(len(block))
        data, start = np.frombuffer(block, np.uint8), ends[run.start]
        for number in run:
            name = rows.names[number]
            if name is None:
                continue
            framed = data[ends[number] - start : ends[number + 1] - start]
            key = rows.keys[number]
            try:
                sample = parse(unframe(framed, "", ends[number]), key, name)
            except RecordError as error:
                damaged.append(f"{number} ({key})")
                first = first or error
                continue
            if first is None:
                yield sample
    if first is not None:
        noun = "record" if len(damaged) == 1 else "records"
        raise RecordError(where, f"{noun} {some_of(damaged)} damaged: {first.what}", hint)


def _runs(lengths: Sequence[int]) -> list[range]:
    """Return the numbers of records that are read at once: `_BLOCK_BYTES`, or one more record."""
    found, start, num_bytes = [], 0, 0
    for number, length in enumerate(lengths):
        num_bytes += length
        if num_bytes >= _BLOCK_BYTES:
            found.append(range(start, number + 1))
            start, num_bytes = number + 1, 0
    return [*found, range(start, len(lengths))] if start < len(lengths) else found


def _size(ends: Sequence[int], run: range) -> int:
    return ends[run.stop] - ends[run.start]
