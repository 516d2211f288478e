"""Checks of one shard file: its hash, the frame and the content of every record, in one pass.

Where a frame is damaged, or not where its row says, `salvage` reads the file once more. This
module is apart from those that read the folder, so that a process has little to import.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import signal
import tempfile
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from shardprep.dataset.tfrecord import read_records
from shardprep.errors import RecordError
from shardprep.storage import objects
from shardprep.storage.regular_file import open_regular, regular_size
from shardprep.verifier.examples import key_of, written_rows
from shardprep.verifier.problem import Fault, Problem, hash_problem
from shardprep.verifier.salvage import Found, Search

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.sharedctypes import Synchronized
    from pathlib import Path

    import pyarrow as pa
    from _typeshed import WriteableBuffer

    from shardprep.dataset.manifest import Shard
    from shardprep.storage.url import ObjectUrl
    from shardprep.verifier.examples import ExampleCheck, Rows

_BLOCK_BYTES = 4 << 20


class StoredObject(NamedTuple):
    """A file in object storage."""

    url: ObjectUrl
    etag: str
    num_bytes: int

    @property
    def name(self) -> str:
        """File name."""
        return self.url.name

    def __str__(self) -> str:
        return str(self.url)


@dataclass(frozen=True, slots=True)
class ShardTask:
    """A shard file to check, and the facts on it."""

    file: Path | StoredObject
    expected: Shard | None
    """The file's entry in the manifest, None where there is none."""
    table: pa.Table | None
    """Rows of its items, None where `items.parquet` is unreadable."""
    index: Rows | None
    """Offsets and lengths from its index, used where there is no table."""
    check: ExampleCheck
    most_bytes: int | None = None
    """Size above which the file is not read, being no shard of the manifest; None for any."""

    @property
    def name(self) -> str:
        """File name."""
        return self.file.name

    @property
    def folder(self) -> str:
        """Folder or address of the file."""
        return str(self.file).removesuffix(self.name).rstrip("/")

    @property
    def num_bytes(self) -> int:
        """Size of the file, 0 where there is none."""
        if isinstance(self.file, StoredObject):
            return self.file.num_bytes
        with contextlib.suppress(OSError):  # reading it will say what it is
            return regular_size(self.file) or 0
        return 0

    def rows(self) -> Rows | None:
        """Return the facts on its records, None where there are none."""
        if self.table is None:
            return self.index
        return written_rows(self.table, self.check.target)


@dataclass(frozen=True, slots=True)
class ShardReport:
    """The records and the problems of a shard file."""

    sha256: str
    """Hex; "" where it cannot be read."""
    num_bytes: int
    places: tuple[tuple[int, int], ...]
    """Offset and length of each record with a sound frame."""
    problems: tuple[Problem, ...]


def check_shard(task: ShardTask, moved: Callable[[int], None]) -> ShardReport:
    """Return the report of a shard file; `moved` is called with each number of bytes read."""
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
    """Open a file; one in object storage is copied to a temporary file first."""
    if not isinstance(file, StoredObject):
        with open_regular(file) as found:
            yield found
        return
    with tempfile.TemporaryFile(buffering=0) as copy:
        for block in objects.read_whole(file.url, file.etag):
            copy.write(block)
        copy.seek(0)
        yield copy


class _Hashed(io.RawIOBase):
    """A file that hashes what is read of it."""

    def __init__(self, file: io.FileIO, moved: Callable[[int], None]) -> None:
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
        self._moved(num_bytes)
        return num_bytes


def _check(task: ShardTask, whole: io.FileIO, file: _Hashed) -> ShardReport:
    rows = task.rows()
    places: list[tuple[int, int]] = []
    problems: list[Problem] = []
    stream = io.BufferedReader(file, _BLOCK_BYTES)
    try:
        for number, record in enumerate(read_records(stream, task.name)):
            places.append((record.offset, record.length))
            problems += _record_problems(task, rows, Found(number, record))
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
        places, problems = _search(task, whole, rows, file.num_bytes)
    explained = any(problem.kind in ("cut", "damaged") for problem in problems)
    measured = _measured(task, digest, file.num_bytes, None if explained else len(places))
    return ShardReport(digest, file.num_bytes, tuple(places), (*measured, *problems))


def _row_problems(shard: str, rows: Rows, places: list[tuple[int, int]]) -> Iterator[Problem]:
    """Yield the faults of the rows of an intact shard."""
    said = zip(rows.offsets, rows.lengths, strict=True)
    for number, (row, place) in enumerate(zip_longest(said, places)):
        if row != place:
            there = "not in it" if place is None else f"at {place[0]}, {place[1]} bytes long"
            here = "without a row" if row is None else f"at {row[0]}, {row[1]} bytes long"
            what = f"the record is {there} in the shard, {here} in its row"
            offset = place[0] if place else None
            yield Problem("items", shard, what, number, offset, rows.key(number))


def _search(
    task: ShardTask, whole: io.FileIO, rows: Rows | None, num_bytes: int
) -> tuple[list[tuple[int, int]], list[Problem]]:
    """Return the offset and length of all records that can be found, and all problems."""
    places: list[tuple[int, int]] = []
    problems: list[Problem] = []
    whole.seek(0)
    search = Search(io.BufferedReader(whole), task.name, num_bytes, rows, task.check)
    for found in search:
        places.append((found.record.offset, found.record.length))
        problems += _record_problems(task, rows, found)
    problems += search.problems
    return places, sorted(problems, key=lambda problem: problem.offset or 0)


def _record_problems(task: ShardTask, rows: Rows | None, found: Found) -> Iterator[Problem]:
    number, record = found
    features = task.check.read(record.payload)
    key = rows.key(number) if number is not None and rows is not None else ""
    if isinstance(features, Fault):
        yield Problem(features.kind, task.name, features.what, number, record.offset, key)
        return
    for fault in task.check.faults(features, rows, number):
        key = key or key_of(features)
        yield Problem(fault.kind, task.name, fault.what, number, record.offset, key)


def _measured(
    task: ShardTask, digest: str, num_bytes: int, num_records: int | None
) -> Iterator[Problem]:
    """Yield the differences in size, hash and number of records from the manifest.

    `num_records` is None where each missing record has its own problem already.
    """
    name, expected = task.name, task.expected
    if expected is None:
        return
    if num_bytes != expected.num_bytes:
        what = f"has {num_bytes:,} bytes, the manifest says {expected.num_bytes:,}"
        yield Problem("size", name, what)
    if digest != expected.sha256:
        yield hash_problem(name, digest, expected.sha256)
    if num_records not in (None, expected.num_records):
        what = f"has {num_records:,} records, the manifest says {expected.num_records:,}"
        yield Problem("count", name, what)


_done: Synchronized[int]


def begin_worker(done: Synchronized[int]) -> None:
    """Begin a worker process, which Ctrl-C ends at once and without a word."""
    global _done  # noqa: PLW0603 - what the pool hands to a process outlives each call
    _done = done
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):  # it was blocked while the process began
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def check_in_worker(task: ShardTask) -> ShardReport:
    """Return the report of a shard file; the bytes read are added to those of all workers."""
    return check_shard(task, _count)


def _count(num_bytes: int) -> None:
    with _done.get_lock():
        _done.value += num_bytes
