"""Reads past bad records: each costs itself alone, and the next good one stands in its place.

So an epoch keeps its length, batches keep their size, and order and resume stay arithmetic. Which
record stands in is a function of the shards alone: the next one, in the order of the split, whose
checksums are right and whose image decodes.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import tensorflow as tf

from shardprep.dataset import example
from shardprep.dataset.schema import IMAGE
from shardprep.errors import RecordError
from shardprep.reader.config import BadRecord
from shardprep.reader.tf.python_calls import as_written, in_python

if TYPE_CHECKING:
    from shardprep.reader.array_types import Ints
    from shardprep.reader.config import Request
    from shardprep.reader.records.open import Subset
    from shardprep.reader.tf.decode import Decoder

_log = logging.getLogger("shardprep.reader")


class GoodRecords:
    """The records of a subset, those that are bad replaced."""

    def __init__(
        self,
        subset: Subset,
        decoder: Decoder,
        request: Request,
        *,
        by: Literal["next", "none"] = "next",
        is_cached: bool = False,
    ) -> None:
        """Put the next good record in the place of a bad one, or by="none" an empty one.

        `is_cached` says that the records are decoded copies: bad ones were told of when these were
        made.
        """
        self._replaces = by == "next"
        self._is_cached = is_cached
        self._subset = subset
        self._decoder = decoder
        self._size = decoder.resize or decoder.schema.image_size or ()
        self._tell = request.config.on_error
        self._bad: dict[int, BadRecord] = {}
        self._lock = threading.Lock()

    def read(self, positions: Ints) -> list[bytes]:
        """Return the bytes of the records at some positions."""
        found = []
        for at, one in zip(positions.tolist(), self._subset.records.read(positions), strict=True):
            if isinstance(one, RecordError):
                self._note(at, one)
                found.append(self._in_place_of(at)[0])
            else:
                found.append(bytes(one))
        return found

    @as_written
    def image(self, record: Any, position: Any) -> tuple[Any, Any]:
        """Return the bytes and the pixels of a record, or of the one in its place; for a graph."""
        image = tf.TensorSpec((*(self._size or (None, None)), 3), tf.uint8)
        specs = [tf.TensorSpec((), tf.string), image]
        data, pixels = in_python(self._image, [record, position], specs, eager=True)
        return data, pixels

    def _image(self, record: Any, position: Any) -> tuple[bytes, Any]:
        data = record.numpy()
        if not (data or self._replaces):
            return self._in_place_of(int(position))
        try:
            return data, self._pixels(data)
        except RecordError as error:
            at = int(position)
            self._note(at, error)
            return self._in_place_of(at)

    def _pixels(self, payload: bytes) -> Any:
        (data,) = example.decode(payload).get(IMAGE) or (b"",)
        try:
            if self._decoder.has_annotations:
                self._decoder.one(tf.constant(payload))
            return self._decoder.image(tf.constant(data))
        except tf.errors.InvalidArgumentError as error:
            what = str(error.message).splitlines()[0].partition(" [Op:")[0]
            raise RecordError("image", what) from error

    def _in_place_of(self, position: int) -> tuple[bytes, Any]:
        """Return the bytes and the pixels of the record that stands in for a bad one."""
        if not self._replaces:
            return b"", np.zeros((*self._size, 3), np.uint8)
        records = self._subset.records

        def both(at: int) -> tuple[bytes, Any]:
            data = bytes(records.payload(at))
            return data, self._pixels(data)

        return records.next_good(position, both, self._bad, self._note)

    def _note(self, position: int, error: RecordError) -> None:
        """Tell of a bad record, once."""
        bad = BadRecord(*self._subset.records.place(position), error.what)
        with self._lock:
            if position in self._bad:
                return
            self._bad[position] = bad
            if self._is_cached:
                return
            if callable(self._tell):
                self._tell(bad)
            else:
                _log.warning("%s; left out, %d so far", bad, len(self._bad))
