"""The order of all epochs as a dataset of tags, and the records that tags name.

A tag names one record of one epoch (`Order.tags`). Python computes tags, many at a time: a graph
that computes an order takes longer to start, in every epoch, than the first batch takes to decode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from shardprep.dataset.example import ExampleDecoder
from shardprep.dataset.schema import IMAGE, MASKS, TARGET_IMAGE
from shardprep.dataset.stored_size import TooLargeError, check_stored_png
from shardprep.errors import RecordError
from shardprep.reader.array_types import Ints
from shardprep.reader.config import Request
from shardprep.reader.order.order import Order
from shardprep.reader.records.records import Records
from shardprep.reader.tf.python_calls import as_written, first_element, in_python

_PICTURES = frozenset({IMAGE, TARGET_IMAGE, *MASKS})
_FOREVER = (1 << 62) - 1


class Cursor(NamedTuple):
    """Start of an iteration: an epoch, and the number of own places of the epoch to skip."""

    epoch: int = 0
    num_done: int = 0


@dataclass(frozen=True, slots=True)
class EpochTags:
    """Factory of tf.data datasets of tags, or of records with tags, that start at a cursor."""

    order: Order
    records: Records
    request: Request
    dtypes: Mapping[str, str]
    """Feature → dtype of its values in the records."""
    cursor: Callable[[], Cursor] = Cursor
    """Returns the start of an iteration; called when the iteration begins."""
    is_whole: bool = False
    """Whether each iteration begins at the start of an epoch."""

    @as_written
    def batches(self, size: int, *, drop: bool = False) -> Any:
        """Return a dataset of tags, int64[size]; `drop` leaves out a shorter last batch."""
        number, epochs = len(self.order), self.request.num_epochs
        cut = size if drop else 1

        def step(state: Ints) -> tuple[Ints, Ints]:
            start, stop = state.tolist()
            if start < 0:
                epoch, num_done = self.cursor()
                start = epoch * number + num_done
                stop = _FOREVER if epochs is None else (epoch + epochs) * number
                stop -= (stop - start) % cut
            end = min(start + size, stop)
            return np.array([end, stop]), self._tags(start, end)

        def call(state: Any, _: Any) -> tuple[Any, Any]:
            shapes = (2,), (size if drop else None,)
            state, tags = in_python(step, [state], [tf.TensorSpec(one, tf.int64) for one in shapes])
            return state, tags

        num_turns = None if epochs is None else (epochs * number + size - cut) // size
        turns = tf.data.Dataset.from_tensors(first_element()).repeat(num_turns)
        batches = turns.scan(tf.constant([-1, -1], tf.int64), call)
        # Only an iteration that begins in the middle of an epoch has fewer batches than turns.
        return batches if self.is_whole else batches.take_while(lambda tags: tf.size(tags) > 0)

    @as_written
    def payloads(self, size: int, num_calls: int, *, drop: bool = False) -> Any:
        """Return a dataset of batches of (bytes, tag), read by `num_calls` parallel calls."""
        rows, read = self.order.rows, _checked(self.records, self.dtypes)

        def payloads(tags: Ints) -> Any:
            return [np.array(read(rows(tags)), object)]

        def call(tags: Any) -> tuple[Any, Any]:
            (data,) = in_python(payloads, [tags], [tf.TensorSpec(tags.shape, tf.string)])
            return data, tags

        return self.batches(size, drop=drop).map(call, num_calls, deterministic=True)

    def _tags(self, start: int, stop: int) -> Ints:
        """Return the tags of own places, counted over all epochs; announce these to `records`."""
        number = len(self.order)
        parts = [np.empty(0, np.int64)]
        while start < stop:
            epoch, place = divmod(start, number)
            end = min(number, place + stop - start)
            self.records.expect(epoch, place, end)
            parts.append(self.order.tags(epoch, place, end))
            start += end - place
        return np.concatenate(parts)


def _checked(records: Records, dtypes: Mapping[str, str]) -> Callable[[Ints], list[bytes]]:
    """Return a function that reads the payloads of rows, and checks each at its first read.

    TensorFlow's own checks are not enough: an error for a record that is not an Example quotes raw
    bytes, and the size limit for a PNG is three times the limit for a JPEG.
    """
    decoder, is_good = ExampleDecoder(dtypes, _PICTURES), bytearray(len(records))

    def good(row: int, read: memoryview | RecordError) -> bytes:
        if isinstance(read, RecordError):
            raise read
        payload = bytes(read)
        if not is_good[row]:
            try:
                values = decoder.find(payload) or decoder.decode(payload)
                for name in _PICTURES & values.keys():
                    for data in values[name]:
                        if not isinstance(data, int | float):
                            check_stored_png(data)
            except (RecordError, TooLargeError) as error:
                raise records.damaged(row, getattr(error, "what", str(error))) from error
            is_good[row] = 1
        return payload

    def payloads(rows: Ints) -> list[bytes]:
        return [good(*pair) for pair in zip(rows.tolist(), records.read(rows), strict=True)]

    return payloads
