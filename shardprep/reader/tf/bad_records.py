"""Reads past bad records: each costs itself alone, and the next good one stands in its place.

So an epoch keeps its length, batches keep their size, and order and resume stay arithmetic. Which
record stands in is a function of the shards alone: the next one, in the order of the split, whose
checksums are right and whose image decodes.
"""

from __future__ import annotations

import io
import logging
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from shardprep.dataset import example
from shardprep.dataset.schema import IMAGE
from shardprep.dataset.tfrecord import read_records
from shardprep.errors import DatasetError, RecordError
from shardprep.reader.options import BadRecord
from shardprep.reader.tf.python_calls import from_graph

if TYPE_CHECKING:
    from shardprep.reader.options import ReadConfig
    from shardprep.reader.order import Ints
    from shardprep.reader.tf.blocks import Source
    from shardprep.reader.tf.decode import Decoder

_log = logging.getLogger("shardprep.reader")


class GoodRecords:
    """The records of a source, those that are bad replaced."""

    def __init__(self, source: Source, decoder: Decoder, config: ReadConfig) -> None:
        self._source = source
        self._decoder = decoder
        self._tell = config.on_error
        self._starts = np.cumsum([0, *map(len, source.frames)])
        self._bad: dict[int, BadRecord] = {}
        self._lock = threading.Lock()

    def read(self, firsts: Any, counts: Any) -> Any:
        """Return the bytes of runs of records that lie together, string[all]; for a graph."""
        found = tf.numpy_function(
            from_graph(self._read), [firsts, counts], tf.string, stateful=False
        )
        return tf.ensure_shape(found, (None,))

    def image(self, record: Any, position: Any) -> tuple[Any, Any]:
        """Return the bytes and the pixels of a record, or of the one in its place; for a graph."""
        data, pixels = tf.py_function(
            from_graph(self._image), [record, position], (tf.string, tf.uint8)
        )
        size = self._decoder.resize or self._decoder.schema.image_size or (None, None)
        return tf.ensure_shape(data, ()), tf.ensure_shape(pixels, (*size, 3))

    def _read(self, firsts: Ints, counts: Ints) -> Any:
        """Read runs of slices at once, then look at each record alone."""
        cuts = self._source.cuts(firsts, counts)
        found = []
        for first, (_, frames), data in zip(
            firsts.tolist(), cuts, self._source.bytes_of(cuts), strict=True
        ):
            for i, (offset, length) in enumerate(frames - [frames[0, 0], 0]):
                position = first + i
                try:
                    found.append(_payload(data[offset : offset + length]))
                except RecordError as error:
                    self._note(position, error.what)
                    found.append(self._next_good(position)[0])
        return np.array(found, object)

    def _image(self, record: Any, position: Any) -> tuple[bytes, Any]:
        data = record.numpy()
        try:
            return data, self._pixels(data)
        except (RecordError, tf.errors.InvalidArgumentError) as error:
            at = int(position)
            self._note(at, _reason(error))
            return self._next_good(at)

    def _pixels(self, payload: bytes) -> Any:
        (data,) = example.decode(payload).get(IMAGE) or (b"",)
        return self._decoder.image(tf.constant(data))

    def _next_good(self, position: int) -> tuple[bytes, Any]:
        """Return the record behind a bad one; the first one is behind the last."""
        number = int(self._starts[-1])
        for step in range(1, number):
            at = (position + step) % number
            if at in self._bad:
                continue
            (frame,) = self._source.bytes_of(self._source.cuts(np.array([at]), np.array([1])))
            try:
                data = _payload(frame)
                return data, self._pixels(data)
            except (RecordError, tf.errors.InvalidArgumentError) as error:
                self._note(at, _reason(error))
        raise DatasetError(
            str(self._source.folder), "has no record that is good", "build the set again"
        )

    def _note(self, position: int, reason: str) -> None:
        """Tell of a bad record, once."""
        number = int(np.searchsorted(self._starts, position, side="right")) - 1
        one = self._source.slices[number]
        inside = position - int(self._starts[number])
        bad = BadRecord(
            one.shard,
            one.skip + inside,
            int(self._source.frames[number][inside, 0]),
            reason,
        )
        with self._lock:
            if position in self._bad:
                return
            self._bad[position] = bad
            if callable(self._tell):
                self._tell(bad)
            else:
                _log.warning("%s; left out, %d so far", bad, len(self._bad))


def _reason(error: Any) -> str:
    """Return what is wrong with a record, of an error of ours or of TensorFlow."""
    if isinstance(error, RecordError):
        return error.what
    return str(error.message).splitlines()[0].partition(" [Op:")[0]


def _payload(frame: bytes) -> bytes:
    """Return the payload of one frame, its checksums being right."""
    records = list(read_records(io.BytesIO(frame), ""))
    if len(records) != 1:
        raise RecordError("", f"is {len(records)} records, not one")
    return records[0].payload
