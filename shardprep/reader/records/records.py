"""Read the records of a selection by number, from the shards of one dataset or several.

Offsets come from `index/<shard>.idx`, which is checked against the manifest: number of records,
no gaps, and the size of the shard.
"""

from __future__ import annotations

import copy
import hashlib
import threading
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from shardprep.dataset.local_files import check_shard, read_index
from shardprep.dataset.manifest import Manifest, Shard
from shardprep.dataset.tfrecord import unframe
from shardprep.errors import DatasetError, RecordError
from shardprep.machine import usable_cores
from shardprep.reader.array_types import Bytes, Ints
from shardprep.reader.order.epoch import Lane
from shardprep.reader.order.order import Order
from shardprep.reader.records.shards import (
    NUM_READS,
    ByteRange,
    JoinedShards,
    LocalShards,
    RemoteShards,
    Shards,
    folder_of,
)

_GAP_BYTES = 256 << 10
"""Largest gap between two records, in bytes, that is read to save a second request."""
_MOST_GROUP_BYTES = 128 << 20
"""Maximum bytes of one group of every lane, summed. Larger groups are not read ahead."""
_NUM_GROUPS = 4
"""Number of groups in memory per lane: two that batches use, and two requested ahead."""
_TURNS_AHEAD = 2
"""Maximum number of results per thread of `map_ranges` that wait to be yielded."""
_NUM_EPOCHS = 4
"""Number of epochs per lane that iterators can read ahead at the same time."""
_T = TypeVar("_T")


class Places(NamedTuple):
    """Locations of records: shard and record number of each. These are not places of an epoch."""

    shards: tuple[Shard, ...]
    shard: Ints
    """int64[records], index of each record's shard in `shards`."""
    record: Ints
    """int64[records], number of each record in its shard, from 0."""

    @classmethod
    def of(cls, manifest: Manifest, numbers: Ints) -> Self:
        """Return the locations of the records with these numbers in the dataset, in this order."""
        every = list(manifest.shards.values())
        stops = np.cumsum([entry.num_records for entry in every])
        shard = np.searchsorted(stops, numbers, side="right")
        shards = list(dict.fromkeys(shard[starts_of(shard)].tolist()))
        new_numbers = np.zeros(len(every), np.int64)
        new_numbers[shards] = np.arange(len(shards))
        starts = np.append(0, stops)[shard]
        return cls(tuple(every[old] for old in shards), new_numbers[shard], numbers - starts)

    @property
    def digest(self) -> str:
        """Hash of the records in order: their shards' SHA-256 and record numbers; 16 hex digits."""
        used = np.flatnonzero(np.bincount(self.shard))
        numbers = np.zeros(len(self.shards), np.int64)
        numbers[used] = np.arange(len(used))  # independent of other shards that may be open
        digest = hashlib.sha256("".join(self.shards[number].sha256 for number in used).encode())
        digest.update(numbers[self.shard].tobytes())
        digest.update(self.record.tobytes())
        return digest.hexdigest()[:16]

    def numbers(self, manifest: Manifest) -> Ints:
        shards = manifest.shards
        stops = np.cumsum([entry.num_records for entry in shards.values()])
        starts = dict(zip(shards, (0, *stops.tolist()), strict=False))
        numbers: Ints = np.array([starts[own.name] for own in self.shards])[self.shard]
        return numbers + self.record

    @classmethod
    def whole(cls, shard: Shard) -> Self:
        record = np.arange(shard.num_records, dtype=np.int64)
        return cls((shard,), np.zeros_like(record), record)


@dataclass(frozen=True, slots=True)
class Frames:
    """Locations of the frames of records in shards, as arrays of equal length."""

    shards: tuple[Shard, ...]
    shard: Ints
    """Index of each record's shard in `shards`."""
    record: Ints
    offset: Ints
    length: Ints
    """Size of each frame in bytes, header and footer included."""

    def __getitem__(self, wanted: slice | Ints) -> Frames:
        columns = (self.shard, self.record, self.offset, self.length)
        return Frames(self.shards, *(column[wanted] for column in columns))

    def part(self, number: int) -> ByteRange:
        name = self.shards[self.shard.item(number)].name
        return ByteRange(name, self.offset.item(number), self.length.item(number))

    def starts_run(self, gap_bytes: int = 0) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return bool[records]: False where a frame follows the previous one within `gap_bytes`."""
        starts = np.ones(len(self.shard), bool)
        gaps = self.offset[1:] - (self.offset + self.length)[:-1]
        starts[1:] = (self.shard[1:] != self.shard[:-1]) | (gaps < 0) | (gaps > gap_bytes)
        return starts

    def runs(self, gap_bytes: int) -> Iterator[tuple[ByteRange, list[tuple[int, int]]]]:
        """Yield the byte range of each run of neighbouring frames, and the frames of the run.

        A frame is (start in the range, size in bytes). Runs start as in `starts_run`.
        """
        starts = np.flatnonzero(self.starts_run(gap_bytes)).tolist()
        shard, offset, length = self.shard.tolist(), self.offset.tolist(), self.length.tolist()
        for first, stop in pairwise([*starts, len(shard)]):
            begin = offset[first]
            rows = [(offset[i] - begin, length[i]) for i in range(first, stop)]
            yield ByteRange(self.shards[shard[first]].name, begin, sum(rows[-1])), rows


class _Block(NamedTuple):
    runs: list[Future[bytes | memoryview]]
    rows: list[tuple[int, int, int]]
    """Index in `runs`, start in the run and size in bytes of each record of the block."""
    num_left: list[int]
    """Number of records that `take` has not returned; in a list, because that is mutable."""


class PrefetchedBlocks:
    """The blocks of an order, read ahead from object storage. Thread-safe.

    The records of a block are neighbours in the shards, and an epoch uses them within one group of
    blocks. So a block usually takes one request, and stays in memory until all of its records are
    taken. The next group of a lane is requested before it is needed. Block numbers count through
    all lanes. Rows are the rows of the host (see `Order`).
    """

    def __init__(self, store: RemoteShards | JoinedShards, frames: Frames, order: Order) -> None:
        self._store, self._frames, self._order = store, frames, order
        self._lanes = order.lanes
        self._starts = [lane.start for lane in self._lanes]
        self._firsts = [0, *accumulate(lane.blocks.num_blocks for lane in self._lanes)]
        """Number of the first block of each lane, and the number of blocks."""
        self._lock = threading.Lock()
        self._held: OrderedDict[int, _Block] = OrderedDict()
        """Block number → block; the least recently used first."""
        self._max_held = _NUM_GROUPS * sum(lane.blocks.group_width for lane in self._lanes)
        self._expected: deque[int] = deque()
        self._groups: dict[tuple[int, int], int] = {}
        """(lane, key of its order) → last expected group; the most recently used entry last."""

    def __del__(self) -> None:
        for block in self._held.values():
            for run in block.runs:
                run.cancel()

    def expect(self, epoch: int, start: int, stop: int) -> None:
        """Request the blocks of the host's places `start` to before `stop`, and of the next group.

        Blocks beyond the memory limit are requested later, when earlier blocks are used up.
        """
        spans = list(self._order.spans(epoch, start, stop))
        with self._lock:
            for lane, key, begin, end in spans:
                blocks = self._lanes[lane].blocks
                first, last = (blocks.find(key, place).group for place in (begin, end - 1))
                last = min(last + 1, blocks.num_groups - 1)
                expected = self._groups.pop((lane, key), -1)
                if begin and expected - 1 <= first <= expected:  # the order continues
                    first, last = expected + 1, max(expected, last)
                for group in range(first, last + 1):
                    numbers = blocks.blocks(key, group) + self._firsts[lane]
                    self._expected += numbers.tolist()
                self._groups[lane, key] = last
            while len(self._groups) > _NUM_EPOCHS * len(self._lanes):
                del self._groups[next(iter(self._groups))]
            self._request_expected()

    def read(self, row: int, part: ByteRange) -> Bytes:
        """Return the frame of a row from a local copy of its shard, or else from its block."""
        copied = self._store.read_copy(part)
        return self.take(row) if copied is None else np.frombuffer(copied, np.uint8)

    def take(self, row: int) -> Bytes:
        """Return the frame of a row from its block; fewer bytes if its shard is truncated."""
        lane = bisect_right(self._starts, row) - 1
        number, place = divmod(row - self._lanes[lane].start, self._lanes[lane].blocks.block_length)
        number += self._firsts[lane]
        with self._lock:
            block = self._held.get(number)
            if block is None:
                if len(self._held) >= self._max_held:
                    self._held.popitem(last=False)
                block = self._request(number)
            self._held.move_to_end(number)
            block.num_left[0] -= 1
            if block.num_left[0] == 0:
                del self._held[number]
                self._request_expected()
        run, start, num_bytes = block.rows[place]
        try:
            data = np.frombuffer(block.runs[run].result(), np.uint8)
        except BaseException:
            with self._lock:  # so that the next try requests the block again
                self._held.pop(number, None)
            raise
        return data[start : start + num_bytes]

    def _request_expected(self) -> None:
        """Request expected blocks up to the limit of memory. The caller holds the lock."""
        while self._expected and len(self._held) < self._max_held:
            number = self._expected.popleft()
            first = self._frames.part(self._rows(number).start)
            if number not in self._held and not self._store.has_copy(first.shard):
                self._request(number)

    def _rows(self, number: int) -> slice:
        lane = bisect_right(self._firsts, number) - 1
        start, blocks = self._lanes[lane].start, self._lanes[lane].blocks
        first = (number - self._firsts[lane]) * blocks.block_length
        return slice(start + first, start + min(first + blocks.block_length, blocks.num_records))

    def _request(self, number: int) -> _Block:
        runs: list[Future[bytes | memoryview]] = []
        rows: list[tuple[int, int, int]] = []
        for part, places in self._frames[self._rows(number)].runs(_GAP_BYTES):
            rows += [(len(runs), *place) for place in places]
            runs.append(self._store.begin(part))
        block = self._held[number] = _Block(runs, rows, [len(rows)])
        return block


class Records:
    """A sequence of the payloads of records, by number. Cheap to slice and pickle. Thread-safe."""

    def __init__(self, store: Shards, frames: Frames) -> None:
        self.store = store
        self.frames = frames
        self._blocks: PrefetchedBlocks | None = None
        self._lanes: tuple[Lane, ...] = ()

    @classmethod
    def joined(cls, several: Sequence[Records]) -> Records:
        """Return the records of several datasets, one after the other."""
        shards = [
            shard.model_copy(update={"name": one.store.located(shard.name)})
            for one in several
            for shard in one.shards
        ]
        firsts = accumulate((len(one.shards) for one in several), initial=0)
        columns = [
            (one.frames.shard + first, one.frames.record, one.frames.offset, one.frames.length)
            for one, first in zip(several, firsts, strict=False)
        ]
        frames = Frames(tuple(shards), *map(np.concatenate, zip(*columns, strict=True)))
        return cls(JoinedShards(one.store for one in several), frames)

    def __len__(self) -> int:
        return len(self.frames.shard)

    def __getitem__(self, wanted: slice | Ints) -> Records:
        return Records(self.store, self.frames[wanted])

    def in_order(self, order: Order) -> Records:
        """Return the same records, to be read in `order`; record numbers are then rows of the host.

        Blocks in object storage are read ahead after `expect` has announced their places, unless
        the order has no blocks or groups are too large for memory.
        """
        ordered = copy.copy(self)
        ordered._lanes = lanes = order.lanes  # noqa: SLF001
        mean_bytes = int(self.frames.length.sum()) / max(1, len(self))
        group_bytes = mean_bytes * sum(lane.blocks.group_records for lane in lanes)
        store, fits = self.store, group_bytes <= _MOST_GROUP_BYTES
        if not isinstance(store, LocalShards) and store.is_remote and lanes and fits:
            ordered._blocks = PrefetchedBlocks(store, self.frames, order)  # noqa: SLF001
        return ordered

    def expect(self, epoch: int, start: int, stop: int) -> None:
        """Read ahead the host's places from `start` to before `stop`, if the order has blocks."""
        if self._blocks is not None:
            self._blocks.expect(epoch, start, stop)

    @property
    def waits(self) -> bool:
        """Whether reading a single record can need a request to object storage."""
        return self.is_remote and self._blocks is None

    @property
    def shards(self) -> tuple[Shard, ...]:
        return self.frames.shards

    @property
    def places(self) -> Places:
        return Places(self.shards, self.frames.shard, self.frames.record)

    @property
    def is_remote(self) -> bool:
        return self.store.is_remote

    @property
    def paths(self) -> list[str]:
        """Paths or addresses of `shards`, in this order."""
        return [self.store.located(shard.name) for shard in self.shards]

    def payload(self, number: int) -> memoryview:
        """Return the payload of a record, 0 ≤ number < len.

        Raises:
            RecordError: the record is damaged.
            DatasetError: the shard of the record is missing or was replaced.
            StorageError: object storage does not answer.
        """
        payload = self._payload(number)
        if isinstance(payload, RecordError):
            raise payload
        return payload

    def read(self, positions: Ints) -> list[memoryview | RecordError]:
        """Return the payload, or its RecordError, of each record with a number in `positions`.

        Neighbouring records are read together. Other errors are raised as by `payload`.
        """
        numbers, places = np.unique(positions, return_inverse=True)
        if self._blocks is not None:
            each = [self._payload(number) for number in numbers.tolist()]
            return [each[place] for place in places.tolist()]
        runs = list(self.frames[numbers].runs(_GAP_BYTES if self.is_remote else 0))
        payloads: list[memoryview | RecordError] = []
        for (_, rows), data in zip(
            runs, self.store.read_all([part for part, _ in runs]), strict=True
        ):
            whole = np.frombuffer(data, np.uint8)
            for start, num_bytes in rows:
                framed = whole[start : start + num_bytes]
                payloads.append(self._unframed(numbers.item(len(payloads)), num_bytes, framed))
        return [payloads[place] for place in places.tolist()]

    def next_good(
        self,
        position: int,
        use: Callable[[int], _T],
        bad: Container[int],
        note: Callable[[int, RecordError], None],
    ) -> _T:
        """Return `use(number)` for the first good record after the number `position`.

        A record is bad if its number is in `bad` or if `use` raises RecordError, which is passed to
        `note`. The search wraps around at the end of the record's lane (or of all records without
        lanes), and skips records of other datasets. So in a `LaneShuffle` or a mix the result is
        the same on any number of hosts. DatasetError if no record is good.
        """
        starts = [lane.start for lane in self._lanes] or [0]
        lane = bisect_right(starts, position)
        first, stop = starts[lane - 1], [*starts, len(self)][lane]
        shards = self._shards_of_dataset(position)
        for step in range(1, stop - first):
            at = first + (position - first + step) % (stop - first)
            if at in bad or self.frames.shard.item(at) not in shards:
                continue
            try:
                return use(at)
            except RecordError as error:
                note(at, error)
        where = folder_of(self.store.located(self.place(position)[0]))
        what = "has no good record that could replace a damaged one"
        raise DatasetError(where, what, "build the dataset again")

    def _shards_of_dataset(self, number: int) -> Container[int]:
        """Return the indices of the shards of the dataset that record `number` belongs to."""
        if not isinstance(self.store, JoinedShards):
            return range(len(self.shards))
        datasets = [self.store.datasets[shard.name] for shard in self.shards]
        own = datasets[self.frames.shard.item(number)]
        return {i for i, dataset in enumerate(datasets) if dataset == own}

    def map_ranges(self, function: Callable[[range], _T], size: int) -> Iterator[_T]:
        """Call a function in threads with ranges of `size` numbers; yield its results in order."""
        num_threads = max(usable_cores(), NUM_READS if self.is_remote else 1)
        numbers, begun = range(len(self)), deque[Future[_T]]()
        with ThreadPoolExecutor(num_threads, "shardprep-map") as pool:
            try:
                for start in range(0, len(self), size):
                    begun.append(pool.submit(function, numbers[start : start + size]))
                    if len(begun) > _TURNS_AHEAD * num_threads:
                        yield begun.popleft().result()
                while begun:
                    yield begun.popleft().result()
            except BaseException:  # including KeyboardInterrupt
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _payload(self, number: int) -> memoryview | RecordError:
        part = self.frames.part(number)
        if self._blocks is not None:
            framed = self._blocks.read(number, part)
        else:
            framed = np.frombuffer(self.store.read(part), np.uint8)
        return self._unframed(number, part.num_bytes, framed)

    def _unframed(self, number: int, num_bytes: int, framed: Bytes) -> memoryview | RecordError:
        """Return the payload of a frame of `num_bytes`; read a damaged frame once more."""
        if len(framed) < num_bytes:
            what = f"{len(framed):,} of {num_bytes:,} bytes"
            return self.damaged(number, f"its shard was truncated while it was read: {what}")
        try:
            return unframe(framed, "", 0).data
        except RecordError:  # damaged in a local copy, or in the shard itself
            data = self.store.read_anew(self.frames.part(number))
        try:
            return unframe(np.frombuffer(data, np.uint8), "", 0).data
        except RecordError as error:
            return self.damaged(number, error.what)

    def damaged(self, number: int, what: str) -> RecordError:
        """Return the error for a damaged record, with its location."""
        name, record, offset = self.place(number)
        where = f"{self.store.located(name)}, record {record}"
        return RecordError(where, what, self.store.way_out(name), offset=offset)

    def place(self, number: int) -> tuple[str, int, int]:
        """Return a record's shard name, its number in the shard, and its offset in bytes."""
        name, offset, _ = self.frames.part(number)
        return name, self.frames.record.item(number), offset

    @cached_property
    def digest(self) -> str:
        return self.places.digest


def starts_of(shard: Ints) -> Ints:
    """Return the indices where a run of equal elements begins, 0 included, int64[runs]."""
    return np.flatnonzero(np.append(True, shard[1:] != shard[:-1]))


def indexed(folder: Path, places: Places) -> Frames:
    """Return the frames at `places` from the indexes in `folder`; DatasetError for a bad index."""
    indexes = [read_index(folder, shard) for shard in places.shards]
    starts = [*starts_of(places.shard).tolist(), len(places.shard)]
    spans = np.concatenate(
        [
            indexes[places.shard[start]][places.record[start:stop]]
            for start, stop in pairwise(starts)
        ]
    )
    return Frames(*places, spans[:, 0], spans[:, 1])


def open_folder(folder: Path, places: Places) -> Records:
    """Return the records at `places` in a folder that never changes; DatasetError if damaged."""
    for shard in places.shards:
        check_shard(folder, shard)
    store = LocalShards(folder, {shard.name: shard for shard in places.shards})
    return Records(store, indexed(folder, places))
