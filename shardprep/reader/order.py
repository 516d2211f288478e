"""Which records come when. Pure: an order follows from (seed, epoch) and counts alone.

Records that lie together form a block. An epoch is a permutation of the blocks; so many blocks in
a row are a group, whose records are mixed among themselves. So a place in an epoch is found by
arithmetic, nothing before it is read, and no more than a group is in memory.

`mixed` and `permuted` are written with operators alone: they take and give Python's integers,
NumPy's int64 arrays and TensorFlow's int64 tensors, so that one order serves all three.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    Ints = np.ndarray[Any, np.dtype[np.int64]]

_PRIME = (1 << 31) - 1
_ROUNDS = 6
_APART = 0x5BD1E995  # between the keys of two rounds
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Blocks:
    """Runs of records, in the order of the split; arrays of equal length."""

    file: Ints
    """Index of the shard."""
    offset: Ints
    """Where the first frame starts in the shard, bytes."""
    num_bytes: Ints
    """Of all frames."""
    count: Ints
    """Records, at least 1."""
    first: Ints
    """Position of the first record among all that are selected."""

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self.file)


class Start(NamedTuple):
    """A place in an epoch."""

    group: int
    """The first group to read."""
    skip: int
    """Records of it that have been before."""


def cut_blocks(frames: Sequence[Ints], length: int) -> Blocks:
    """Return the blocks of runs of records.

    Args:
        frames: for each run int64[records, 2], offset and length of each frame in its shard;
            the number of the run is the block's `file`.
        length: of a block, in records; the last of a run may be shorter.

    """
    columns: list[Ints] = []
    position = 0
    for file, run in enumerate(frames):
        starts = np.arange(0, len(run), length, dtype=np.int64)
        stops = np.minimum(starts + length, len(run))
        offset = run[starts, 0]
        num_bytes = run[stops - 1, 0] + run[stops - 1, 1] - offset
        columns.append(
            np.stack(
                [np.full_like(starts, file), offset, num_bytes, stops - starts, position + starts]
            )
        )
        position += len(run)
    return Blocks(*np.concatenate(columns, axis=1))


def fold(seed: int) -> int:
    """Return any integer as a key of `mixed`."""
    digest = hashlib.blake2b(str(seed).encode(), digest_size=8).digest()
    return int.from_bytes(digest) % _PRIME


def mixed(key: _T, *numbers: Any) -> _T:
    """Return a number from 0 to 2³¹ − 2 that looks as if it had nothing to do with its arguments,
    which are not negative."""  # noqa: D205, D209 - one sentence
    found: Any = key
    for number in numbers:
        found = ((found ^ (number % _PRIME)) * 48271 + 0x2545F491) % _PRIME  # never overflows
        found = ((found ^ (found // (1 << 15))) * 69621) % _PRIME
        found = found ^ (found // (1 << 13))
    return found % _PRIME  # type: ignore[no-any-return]


def table(size: int) -> tuple[int, int]:
    """Return rows and columns of a table with at least `size` fields, but not a row too many."""
    columns = max(1, math.isqrt(size - 1) + 1)
    return -(-size // columns), columns


def permuted(places: _T, rows: Any, columns: Any, key: Any) -> _T:
    """Return what stands at some places of a permutation of the fields of a table.

    A Feistel network: each round turns every row by a number that hangs on the column and every
    column by one that hangs on the row, so that no two fields ever meet. A permutation of fewer
    things than there are fields comes from walking on from a field that is none of them (`walked`).
    """
    row, column = places // columns, places % columns
    for turn in range(_ROUNDS):
        row = (row + mixed(key + 2 * turn * _APART, column)) % rows
        column = (column + mixed(key + (2 * turn + 1) * _APART, row)) % columns
    return row * columns + column  # type: ignore[no-any-return]


def walked(places: Ints, size: int, key: int) -> Ints:
    """Return what stands at some places of the permutation of `size` things that a key means."""
    fields = table(size)
    found = permuted(places, *fields, key)
    while (outside := found >= size).any():
        found[outside] = permuted(found[outside], *fields, key)
    return found


def num_groups(blocks: Blocks, width: int) -> int:
    """Return the groups of an epoch; a group is `width` blocks, the last may have fewer."""
    return -(-len(blocks) // width)


def epoch_order(blocks: Blocks, key: int | None) -> Ints:
    """Return the numbers of all blocks as they come in an epoch; without a key, in their order."""
    places = np.arange(len(blocks), dtype=np.int64)
    return places if key is None else walked(places, len(blocks), key)


def find_start(blocks: Blocks, width: int, key: int | None, num_done: int) -> Start:
    """Return where to go on after so many records of an epoch, fewer than all."""
    behind = np.cumsum(blocks.count[epoch_order(blocks, key)])
    of_groups = behind[width - 1 :: width]  # at the end of each full group
    group = int(np.searchsorted(of_groups, num_done, side="right"))
    return Start(group, num_done - (int(of_groups[group - 1]) if group else 0))
