"""Check records before the graph decodes them, and replace bad ones with `on_error="skip"`.

The next good record in the order of the split replaces a bad one. So an epoch keeps its length,
batches keep their size, and order and resume stay arithmetic. The replacement is a function of the
shards alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from shardprep.dataset.example import ExampleDecoder
from shardprep.dataset.schema import IMAGE, MASK, OBJECT_MASK
from shardprep.dataset.stored_size import TooLargeError, check_stored_png
from shardprep.errors import RecordError
from shardprep.reader.array_types import Ints
from shardprep.reader.config import BadRecord
from shardprep.reader.records.records import Records

_log = logging.getLogger("shardprep.reader")


class CheckedRecords:
    """Reads records, and checks each of them once.

    TensorFlow's own error for a record that is not an Example quotes its bytes, which Python cannot
    show as text, and its limit on the size of a PNG is three times its limit on a JPEG.
    """

    def __init__(self, records: Records, dtypes: Mapping[str, str]) -> None:
        self._records = records
        self._decoder = ExampleDecoder(dtypes, {IMAGE, MASK, OBJECT_MASK})
        self._is_checked = bytearray(len(records))

    def read(self, positions: Ints) -> list[bytes]:
        """Return the payloads of records. Raises the RecordError of a bad one."""
        read = self._records.read(positions)
        return [
            self._read(position, payload)
            for position, payload in zip(positions.tolist(), read, strict=True)
        ]

    def read_or_empty(self, positions: Ints) -> list[bytes]:
        """Return the payloads of records, b"" for a bad one that is to be skipped."""
        return self.read(positions)

    def _read(self, position: int, read: memoryview | RecordError) -> bytes:
        return self._sound(position, read)

    def _sound(self, position: int, read: memoryview | RecordError) -> bytes:
        """Return a payload, checked the first time. Raises the RecordError of a bad record."""
        if isinstance(read, RecordError):
            raise read
        payload = bytes(read)
        if not self._is_checked[position]:
            try:
                self._check(payload)
            except RecordError as error:
                raise self._records.damaged(position, error.what) from error
            except TooLargeError as error:
                raise self._records.damaged(position, str(error)) from error
            self._is_checked[position] = 1
        return payload

    def _check(self, payload: bytes) -> None:
        values = self._decoder.find(payload) or self._decoder.decode(payload)
        for name in (IMAGE, MASK, OBJECT_MASK):
            for data in values.get(name, ()):
                if not isinstance(data, int | float):
                    check_stored_png(data)


class GoodRecords(CheckedRecords):
    """Reads records, and replaces bad ones; each record is decoded once to check it."""

    def __init__(
        self,
        records: Records,
        dtypes: Mapping[str, str],
        decode: Callable[[Any], Any],
        report: Callable[[BadRecord], None] | None,
    ) -> None:
        """Check records by `decode`, the function of the graph.

        Args:
            records: the records.
            dtypes: dtype of each feature.
            decode: function of a serialized Example, a tensor.
            report: called once for each bad record; None for no report.

        """
        super().__init__(records, dtypes)
        self._decode = decode
        self._report = report
        self._bad: set[int] = set()
        self._lock = threading.Lock()

    def read(self, positions: Ints) -> list[bytes]:
        """Return the payloads of records, with bad ones replaced."""
        return [
            payload or self._records.next_good(position, self._payload, self._bad, self._note)
            for position, payload in zip(
                positions.tolist(), self.read_or_empty(positions), strict=True
            )
        ]

    def read_or_empty(self, positions: Ints) -> list[bytes]:
        """Return the payloads of records, b"" for a bad one."""
        return super().read(positions)

    def _read(self, position: int, read: memoryview | RecordError) -> bytes:
        try:
            return self._sound(position, read)
        except RecordError as error:
            self._note(position, error)
            return b""

    def _payload(self, position: int) -> bytes:
        return self._sound(position, self._records.payload(position))

    def _check(self, payload: bytes) -> None:
        super()._check(payload)
        try:
            self._decode(tf.constant(payload))
        except tf.errors.InvalidArgumentError as error:
            what = str(error.message).splitlines()[0].partition(" [Op:")[0]
            raise RecordError("image", what) from error

    def _note(self, position: int, error: RecordError) -> None:
        """Report a bad record, once."""
        with self._lock:
            is_new = position not in self._bad
            self._bad.add(position)
            if is_new and self._report is not None:
                self._report(BadRecord(*self._records.place(position), error.what))


def log_bad_records() -> Callable[[BadRecord], None]:
    """Return a function that logs bad records and counts them."""
    num_bad = 0

    def log(bad: BadRecord) -> None:
        nonlocal num_bad
        num_bad += 1
        _log.warning("%s; left out, %d so far", bad, num_bad)

    return log
