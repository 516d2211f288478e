"""Check records before the graph decodes them; replace bad ones unless `on_error="raise"`.

The host's next good record in shard order, in the same lane if the order has lanes, replaces a bad
one. So an epoch keeps its length, batches keep their size, and order and resume stay
arithmetic. The replacement depends on the records and the order, not on what was read before.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from shardprep.dataset.example import ExampleDecoder
from shardprep.dataset.schema import IMAGE, IMAGES, MASK, OBJECT_MASK, TARGET_IMAGE
from shardprep.dataset.stored_size import TooLargeError, check_stored_png
from shardprep.errors import RecordError
from shardprep.reader.array_types import Ints
from shardprep.reader.config import BadRecord
from shardprep.reader.records.records import Records

_log = logging.getLogger("shardprep.reader")
_PICTURES = frozenset({IMAGE, IMAGES, MASK, OBJECT_MASK, TARGET_IMAGE})


class CheckedRecords:
    """Reads records by row and checks each of them once, when it is first read.

    Records are checked before TensorFlow parses them: its error for a record that is not an Example
    quotes bytes that are not text, and its size limit for a PNG is three times that for a JPEG.
    """

    def __init__(
        self,
        records: Records,
        dtypes: Mapping[str, str],
        decode: Callable[[Any], Any] | None = None,
        report: Callable[[BadRecord], None] | None = None,
    ) -> None:
        """Read `records`, whose features have `dtypes`.

        With `decode`, a function of a serialized Example, bad records are replaced, and records
        that it cannot decode are bad as well. `report` is called once for each bad record.
        """
        self._records = records
        self._decoder = ExampleDecoder(dtypes, _PICTURES)
        self._decode = decode
        self._report = report
        self._is_good = bytearray(len(records))
        self._bad: set[int] = set()
        self._lock = threading.Lock()

    def read(self, rows: Ints) -> list[bytes]:
        """Return the payloads of rows. Without `decode`, a bad record raises its RecordError."""
        payloads = self.read_or_empty(rows)
        if self._decode is None:
            return payloads
        return [
            payload or self._records.next_good(row, self._payload, self._bad, self._note)
            for row, payload in zip(rows.tolist(), payloads, strict=True)
        ]

    def read_or_empty(self, rows: Ints) -> list[bytes]:
        """Return the payloads of rows like `read`, but b"" for bad records to be replaced."""
        read = self._records.read(rows)
        return [
            self._good_or_empty(row, payload)
            for row, payload in zip(rows.tolist(), read, strict=True)
        ]

    def _good_or_empty(self, row: int, read: memoryview | RecordError) -> bytes:
        if row in self._bad:
            return b""
        try:
            return self._good(row, read)
        except RecordError as error:
            if self._decode is None:
                raise
            self._note(row, error)
            return b""

    def _payload(self, row: int) -> bytes:
        return self._good(row, self._records.payload(row))

    def _good(self, row: int, read: memoryview | RecordError) -> bytes:
        """Return the payload, checked when it is first read; raise RecordError if it is bad."""
        if isinstance(read, RecordError):
            raise read
        payload = bytes(read)
        if not self._is_good[row]:
            try:
                self._check(payload)
            except RecordError as error:
                raise self._records.damaged(row, error.what) from error
            except TooLargeError as error:
                raise self._records.damaged(row, str(error)) from error
            self._is_good[row] = 1
        return payload

    def _check(self, payload: bytes) -> None:
        values = self._decoder.find(payload) or self._decoder.decode(payload)
        for name in _PICTURES:
            for data in values.get(name, ()):
                if not isinstance(data, int | float):
                    check_stored_png(data)
        if self._decode is None:
            return
        try:
            self._decode(tf.constant(payload))
        except tf.errors.InvalidArgumentError as error:
            what = str(error.message).splitlines()[0].partition(" [Op:")[0]
            raise RecordError("image", what) from error

    def _note(self, row: int, error: RecordError) -> None:
        with self._lock:
            is_new = row not in self._bad
            self._bad.add(row)
            if is_new and self._report is not None:
                self._report(BadRecord(*self._records.place(row), error.what))


def log_bad_records() -> Callable[[BadRecord], None]:
    """Return a function that logs a bad record with the number of bad records so far."""
    num_bad = 0

    def log(bad: BadRecord) -> None:
        nonlocal num_bad
        num_bad += 1
        _log.warning("%s; left out, %d so far", bad, num_bad)

    return log
