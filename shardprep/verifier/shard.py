"""Checks of one shard file: its hash, and the frame and content of every record, in one pass.

If a frame is damaged, or not at the offset in its row, a second pass searches the file for all
intact records. After a damaged frame, the search continues where the frame should end. If no frame
starts there, it continues at the next offset of a row. If the file is too long or too short,
offsets of rows are also tried shifted by the difference.

Worker processes import this module, so it must not import the writer.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from shardprep.dataset import tfrecord
from shardprep.dataset.manifest import Shard
from shardprep.dataset.tfrecord import HEADER_BYTES, Record, read_records
from shardprep.errors import RecordError, counted
from shardprep.storage import objects
from shardprep.storage.regular_file import open_regular, regular_size
from shardprep.storage.url import ObjectUrl
from shardprep.verifier.examples import ExampleCheck, key_of
from shardprep.verifier.problem import Fault, Kind, Problem, hash_problem
from shardprep.verifier.record_rows import RecordRows, written_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from _typeshed import WriteableBuffer

_BLOCK_BYTES = 4 << 20


class StoredObject(NamedTuple):
    """A file in object storage, with the ETag and size from the listing."""

    url: ObjectUrl
    etag: str
    num_bytes: int

    @property
    def name(self) -> str:
        return self.url.name

    def __str__(self) -> str:
        return str(self.url)


@dataclass(frozen=True, slots=True)
class ShardTask:
    """A shard file to check, and its expected content."""

    file: Path | StoredObject
    expected: Shard | None
    """The shard's entry in the manifest, or None if it has none."""
    table: pa.Table | None
    """Rows of the shard's items, or None if `items.parquet` has no rows of the shard."""
    index: RecordRows | None
    """Offsets and lengths from the shard's index; None with `table` or a damaged index."""
    check: ExampleCheck
    most_bytes: int | None = None
    """Maximum size in bytes of a file to read; None for no limit."""

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def folder(self) -> str:
        return str(self.file).removesuffix(self.name).rstrip("/")

    @property
    def num_bytes(self) -> int:
        """Size of the file in bytes; 0 if it is missing or not a regular file."""
        if isinstance(self.file, StoredObject):
            return self.file.num_bytes
        with contextlib.suppress(OSError):  # reading the file reports the error
            return regular_size(self.file) or 0
        return 0


@dataclass(frozen=True, slots=True)
class ShardReport:
    """The records and the problems of a shard file."""

    sha256: str
    """SHA-256 of the file in hexadecimal, or "" if it was not read."""
    num_bytes: int
    places: tuple[tuple[int, int], ...]
    """Offset and length in bytes of each record with an intact frame, in file order."""
    problems: tuple[Problem, ...]


def check_shard(task: ShardTask, moved: Callable[[int], None] | None = None) -> ShardReport:
    """Return the report of a shard file. `moved` is called with the byte count of each read."""
    if task.most_bytes is not None and task.num_bytes > task.most_bytes:
        what = f"has {task.num_bytes:,} bytes, far more than the manifest says: it is not read"
        return ShardReport("", 0, (), (Problem("size", task.name, what),))
    try:
        with _opened(task.file) as file:
            return _check(task, file, _Hashed(file, moved))
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        return ShardReport("", 0, (), (Problem("unreadable", task.name, what),))


@contextlib.contextmanager
def _opened(file: Path | StoredObject) -> Iterator[io.FileIO]:
    if not isinstance(file, StoredObject):
        with open_regular(file) as stream:
            yield stream
        return
    with tempfile.TemporaryFile(buffering=0) as copy:
        for block in objects.read_whole(file.url, file.etag):
            copy.write(block)
        copy.seek(0)
        yield copy


class _Hashed(io.RawIOBase):
    def __init__(self, file: io.FileIO, moved: Callable[[int], None] | None) -> None:
        self.digest = hashlib.sha256()
        self.num_bytes = 0
        self._file = file
        self._moved = moved

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        num_bytes = self._file.readinto(buffer)
        self.digest.update(memoryview(buffer)[:num_bytes])
        self.num_bytes += num_bytes
        if self._moved is not None:
            self._moved(num_bytes)
        return num_bytes


def _check(task: ShardTask, whole: io.FileIO, file: _Hashed) -> ShardReport:
    rows = task.index
    if task.table is not None:
        rows = written_rows(task.table, task.check.targets)
    places: list[tuple[int, int]] = []
    problems: list[Problem] = []
    stream = io.BufferedReader(file, _BLOCK_BYTES)
    try:
        for number, record in enumerate(read_records(stream, task.name)):
            places.append((record.offset, record.length))
            problems += _record_problems(task, rows, number, record)
        is_sound = True
    except RecordError:
        is_sound = False
    while stream.read(_BLOCK_BYTES):
        pass
    digest = file.digest.hexdigest()
    is_off = rows is not None and places != list(zip(rows.offsets, rows.lengths, strict=True))
    is_intact = task.expected is not None and digest == task.expected.sha256
    if rows is not None and is_sound and is_off and is_intact:
        problems += _row_problems(task.name, rows, places)
    elif is_off or not is_sound:
        whole.seek(0)
        search = _Search(task, io.BufferedReader(whole), file.num_bytes, rows)
        places, problems = [], []
        for found_number, record in search:
            places.append((record.offset, record.length))
            problems += _record_problems(task, rows, found_number, record)
        problems += search.problems
        problems.sort(key=lambda problem: problem.offset or 0)
    explained = any(problem.kind in ("cut", "damaged") for problem in problems)
    measured = _measured(task, digest, file.num_bytes, None if explained else len(places))
    return ShardReport(digest, file.num_bytes, tuple(places), (*measured, *problems))


def _row_problems(shard: str, rows: RecordRows, places: list[tuple[int, int]]) -> Iterator[Problem]:
    said = zip(rows.offsets, rows.lengths, strict=True)
    for number, (row, place) in enumerate(zip_longest(said, places)):
        if row != place:
            there = "missing" if place is None else f"at {place[0]}, {place[1]} bytes long"
            here = "missing" if row is None else f"at {row[0]}, {row[1]} bytes long"
            what = f"the record is {there} in the shard, but {here} in items.parquet"
            offset = place[0] if place else None
            yield Problem("items", shard, what, number, offset, rows.key(number))


def _record_problems(
    task: ShardTask, rows: RecordRows | None, number: int | None, record: Record
) -> Iterator[Problem]:
    if number is None:
        rows = None
    features = task.check.read(record.payload)
    key = rows.key(number or 0) if rows is not None else ""
    if isinstance(features, Fault):
        yield Problem(features.kind, task.name, features.what, number, record.offset, key)
        return
    for fault in task.check.faults(features, rows, number or 0):
        key = key or key_of(features)
        yield Problem(fault.kind, task.name, fault.what, number, record.offset, key)


def _measured(
    task: ShardTask, digest: str, num_bytes: int, num_records: int | None
) -> Iterator[Problem]:
    """Yield differences from the manifest. A `num_records` of None is not compared."""
    name, expected = task.name, task.expected
    if expected is None:
        return
    if num_bytes != expected.num_bytes:
        what = f"has {counted(num_bytes, 'byte')}, the manifest says {expected.num_bytes:,}"
        yield Problem("size", name, what)
    if digest != expected.sha256:
        yield hash_problem(name, digest, expected.sha256)
    if num_records not in (None, expected.num_records):
        what = f"has {counted(num_records, 'record')}, the manifest says {expected.num_records:,}"
        yield Problem("count", name, what)


class _Search:
    """Iterable of the intact records of a damaged file. At its end, `problems` is complete."""

    def __init__(
        self, task: ShardTask, file: BinaryIO, num_bytes: int, rows: RecordRows | None
    ) -> None:
        self.problems: list[Problem] = []
        self._file = file
        self._name = task.name
        self._num_bytes = num_bytes
        self._check = task.check
        self._rows = rows
        self._shift = 0
        self._starts: dict[int, int] = {}
        self._keys: dict[str, int] = {}
        if rows is not None and len(rows):
            self._shift = num_bytes - rows.offsets[-1] - rows.lengths[-1]
            self._starts = {offset: i for i, offset in enumerate(rows.offsets)}
            self._keys = {key: i for i, key in enumerate(rows.keys)}
        places = {*self._starts, *(start + self._shift for start in self._starts)}
        self._places = sorted(place for place in places if 0 <= place < num_bytes)
        self._seen: set[int] = set()
        self._last = -1
        self._count = 0

    def __iter__(self) -> Iterator[tuple[int | None, Record]]:
        """Yield (number in the shard or None, record) for each intact record in file order."""
        breaks: list[tuple[int | None, int, Kind, str]] = []
        at = 0
        while at < self._num_bytes:
            size = self._announced(at)
            record = self._read(at)
            if isinstance(record, Record):
                yield self._numbered(record), record
                at += record.length
            else:
                end = at + (size or HEADER_BYTES)
                number = self._count if self._rows is None else self._at(at)
                kind: Kind = "cut" if end > self._num_bytes else "damaged"
                breaks.append((number, at, kind, record))
                at = self._next(at, size)
            self._count += 1
        for number, offset, kind, what in breaks:
            if number in self._seen and self._rows is not None:
                self._add("damaged", "bytes that do not belong to a record", None, offset)
                continue
            if number is not None:
                self._seen.add(number)
            self._add(kind, what, number, offset)
        self._add_lost()

    def _announced(self, at: int) -> int | None:
        """Return the size in bytes of the frame at an offset; None if its header is damaged."""
        self._file.seek(at)
        size = tfrecord.payload_bytes(self._file.read(HEADER_BYTES))
        return None if size is None else size + tfrecord.FRAME_BYTES

    def _read(self, at: int) -> Record | str:
        self._file.seek(at)
        try:
            record = next(tfrecord.read_records(self._file, ""))
        except RecordError as error:
            return error.what
        return record._replace(offset=at)

    def _next(self, at: int, size: int | None) -> int:
        """Return the offset at which the search continues after the damaged frame at `at`."""
        if size is not None:
            after = at + size
            if after == self._num_bytes or self._announced(after) is not None:
                return after
        for place in self._places[bisect_right(self._places, at) :]:
            if self._announced(place) is not None:
                return place
        return self._num_bytes

    def _numbered(self, record: Record) -> int | None:
        """Return a record's number, None if no row fits; report it if repeated or out of order."""
        if self._rows is None:
            number: int | None = self._count
        else:
            features = self._check.read(record.payload)
            key = "" if isinstance(features, Fault) else key_of(features)
            number = self._keys.get(key, self._at(record.offset))
        if number is None:
            return None
        if number <= self._last:
            again = number in self._seen
            what = "is there twice" if again else "is after a record that it should precede"
            self._add("items", what, number, record.offset)
        self._seen.add(number)
        self._last = max(self._last, number)
        return number

    def _at(self, offset: int) -> int | None:
        return self._starts.get(offset, self._starts.get(offset - self._shift))

    def _add_lost(self) -> None:
        offsets = self._rows.offsets if self._rows is not None else ()
        for number, offset in enumerate(offsets):
            if number in self._seen:
                continue
            if offset >= self._num_bytes:
                self._add("cut", f"is gone, the file ends at {self._num_bytes:,}", number, offset)
            else:
                self._add("damaged", "is gone", number, offset)

    def _add(self, kind: Kind, what: str, number: int | None, offset: int) -> None:
        key = "" if self._rows is None or number is None else self._rows.key(number)
        self.problems.append(Problem(kind, self._name, what, number, offset, key))
