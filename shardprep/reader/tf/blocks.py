"""The records that are wanted: where each of them lies, in blocks that are read at once."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardprep.reader import order
from shardprep.reader.remote_shards import Part

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shardprep.dataset.manifest import Shard
    from shardprep.reader.opening import Opened
    from shardprep.reader.options import ReadConfig, Request
    from shardprep.reader.order import Blocks, Ints
    from shardprep.reader.remote_shards import RemoteShards
    from shardprep.reader.splits import ShardSlice

_LONG_BLOCK_LENGTH = 1024


@dataclass(frozen=True, slots=True)
class Source:
    """The records that are wanted."""

    folder: Path
    shards: tuple[Shard, ...]
    slices: list[ShardSlice]
    frames: list[Ints]
    """For each slice int64[records, 2], offset and length of each frame."""
    blocks: Blocks
    width: int
    """Blocks of a group."""
    key: int
    """Of the order; `order.fold` of the seed."""
    remote: RemoteShards | None
    """Where the shards are if not in the folder."""

    def located(self, number: int) -> str:
        """Return where the shard of a slice is, for people."""
        name = self.slices[number].shard
        return str(self.folder / name) if self.remote is None else self.remote.located(name)

    def cuts(self, firsts: Ints, counts: Ints) -> list[tuple[int, Ints]]:
        """Return, of runs of records by first position and number, slice and frames of each.

        A run is of one slice.
        """
        starts = np.cumsum([0, *map(len, self.frames)])
        numbers = np.searchsorted(starts, firsts, side="right") - 1
        begins = firsts - starts[numbers]
        return [
            (number, self.frames[number][begin : begin + count])
            for number, begin, count in zip(
                numbers.tolist(), begins.tolist(), counts.tolist(), strict=True
            )
        ]

    def bytes_of(self, cuts: Sequence[tuple[int, Ints]]) -> list[bytes]:
        """Return the bytes of runs of records, each by its slice and its frames."""
        parts = [
            Part(self.slices[number].shard, int(frames[0, 0]), int(frames[:, 1].sum()))
            for number, frames in cuts
        ]
        if self.remote is not None:
            return self.remote.read_all(parts)
        return [_read(self.folder / part.shard, part) for part in parts]

    @property
    def num_records(self) -> int:
        """Records of an epoch."""
        return int(self.blocks.count.sum())

    @property
    def group_records(self) -> int:
        """Records of the largest group there may be."""
        return self.width * int(self.blocks.count.max())

    @property
    def files(self) -> list[str]:
        """The shard of each slice."""
        return [str(self.folder / one.shard) for one in self.slices]


def make_source(opened: Opened, request: Request, config: ReadConfig) -> Source:
    """Return the wanted records, in blocks fit for the request."""
    frames = opened.frames()
    num_bytes = sum(int(one[:, 1].sum()) for one in frames)
    record_bytes = num_bytes / sum(map(len, frames))
    length = config.block_length(record_bytes)
    width = config.group_width(record_bytes, length)
    if not request.shuffle and opened.remote is None and config.on_error == "raise":
        # One long run costs less than many short ones.
        length, width = max(length, _LONG_BLOCK_LENGTH), 1
    key = order.fold(secrets.randbits(62) if request.seed is None else request.seed)
    blocks = order.cut_blocks(frames, length)
    shards = tuple(opened.shards.values())
    return Source(opened.folder, shards, opened.slices, frames, blocks, width, key, opened.remote)


def _read(path: Path, part: Part) -> bytes:
    with path.open("rb") as file:
        file.seek(part.start)
        return file.read(part.num_bytes)
