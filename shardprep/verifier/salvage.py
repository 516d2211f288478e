"""Search a damaged shard for all its intact records, and name those that are not.

After a damaged frame the search goes on at the next place where a record should start: by the
rows, or shifted by the bytes that the file is longer or shorter than they say.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from shardprep.dataset import tfrecord
from shardprep.dataset.tfrecord import HEADER_BYTES, Record
from shardprep.errors import RecordError
from shardprep.verifier.examples import key_of
from shardprep.verifier.problem import Fault, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from shardprep.verifier.examples import ExampleCheck, Rows
    from shardprep.verifier.problem import Kind


class Found(NamedTuple):
    """A record with a sound frame."""

    number: int | None
    """Number of the record in the shard as it was written, None if unknown."""
    record: Record


class Search:
    """Searches one damaged file; `problems` are complete when all records are found."""

    def __init__(
        self, file: BinaryIO, name: str, num_bytes: int, rows: Rows | None, check: ExampleCheck
    ) -> None:
        """`rows` have the offsets and keys of its records, if known; `name` stands in problems."""
        self.problems: list[Problem] = []
        self._file = file
        self._name = name
        self._num_bytes = num_bytes
        self._check = check
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

    def __iter__(self) -> Iterator[Found]:
        """Yield the records found, in the order of the file."""
        breaks: list[tuple[int | None, int, Kind, str]] = []
        at = 0
        while at < self._num_bytes:
            size = self._announced(at)
            record = self._read(at)
            if isinstance(record, Record):
                yield Found(self._numbered(record), record)
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
                self._add("damaged", "bytes that are no record", None, offset)
                continue
            if number is not None:
                self._seen.add(number)
            self._add(kind, what, number, offset)
        self._add_lost()

    def _announced(self, at: int) -> int | None:
        """Return the size in bytes of the frame at an offset, None where there is no frame."""
        self._file.seek(at)
        size = tfrecord.payload_bytes(self._file.read(HEADER_BYTES))
        return None if size is None else size + tfrecord.FRAME_BYTES

    def _read(self, at: int) -> Record | str:
        """Return the record at an offset, or its fault."""
        self._file.seek(at)
        try:
            record = next(tfrecord.read_records(self._file, ""))
        except RecordError as error:
            return error.what
        return record._replace(offset=at)

    def _next(self, at: int, size: int | None) -> int:
        """Return the offset to go on at after a damaged record."""
        if size is not None:
            after = at + size
            if after == self._num_bytes or self._announced(after) is not None:
                return after
        for place in self._places[bisect_right(self._places, at) :]:
            if self._announced(place) is not None:
                return place
        return self._num_bytes

    def _numbered(self, record: Record) -> int | None:
        """Return the number of a record; one that comes again, or too late, is a problem."""
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
            what = "is there twice" if again else "stands after a record that it came before"
            self._add("items", what, number, record.offset)
        self._seen.add(number)
        self._last = max(self._last, number)
        return number

    def _at(self, offset: int) -> int | None:
        """Return the number of the record that should start at an offset."""
        return self._starts.get(offset, self._starts.get(offset - self._shift))

    def _add_lost(self) -> None:
        offsets = self._rows.offsets if self._rows is not None else ()
        for number, offset in enumerate(offsets):
            if number in self._seen:
                continue
            if offset >= self._num_bytes:
                what = f"is gone, the file ends at {self._num_bytes:,}"
                self._add("cut", what, number, offset)
            else:
                self._add("damaged", "is gone", number, offset)

    def _add(self, kind: Kind, what: str, number: int | None, offset: int) -> None:
        key = "" if self._rows is None or number is None else self._rows.key(number)
        self.problems.append(Problem(kind, self._name, what, number, offset, key))
