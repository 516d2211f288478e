"""Make the values of a batch from its name: the same in this process and in a worker process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from shardprep.dataset.schema import BOX, IMAGE, KEYPOINTS, POINTS, Schema
from shardprep.errors import RecordError
from shardprep.reader.array_types import Columns, Ints
from shardprep.reader.arrays.filler import Filler, Filling, NewArray
from shardprep.reader.arrays.memory import ALIGNMENT, HostMemory
from shardprep.reader.config import BatchOptions
from shardprep.reader.decode.annotations import boxes_as, points_as
from shardprep.reader.decode.crop import crop_keys
from shardprep.reader.decode.features import DecodedExamples, ExampleReader, FeatureDecoder
from shardprep.reader.decode.targets import BoxLimit
from shardprep.reader.order.epoch import Size
from shardprep.reader.order.order import Order
from shardprep.reader.records.records import Records

BatchName = tuple[int, int] | Ints
"""Epoch and number of a global batch, or the tags of a batch."""
_DECODED = 24
"""Largest usual size of decoded images, divided by the size of their record."""
_VARYING = 16
"""Usual maximum factor for a dimension that varies, such as the number of objects."""
_CHANGED = 4
"""Usual growth of a batch by a transform, from uint8 to float32."""
_FORMATS = ((BOX, boxes_as), (KEYPOINTS, points_as), (POINTS, points_as))


@dataclass(frozen=True, slots=True)
class BatchSource:
    """All values that decide the batches of a host. It can be pickled."""

    records: Records
    """The rows of the host (see `Order`)."""
    schema: Schema
    names: tuple[str, ...]
    """Features of a batch."""
    decode: bool
    order: Order
    options: BatchOptions
    num_rows: int
    """Largest number of rows of a batch."""
    transform: Callable[[dict[str, Any], list[int]], Any] | None = None
    """Returns the element of a batch, from its values and the key of each row (see `crop_keys`)."""

    def tags(self, name: BatchName) -> tuple[Ints, Size | None]:
        """Return the tags of a batch, and the size of its images with buckets."""
        return self.order.batch(*name) if isinstance(name, tuple) else (name, None)

    def decoder(self) -> FeatureDecoder:
        options = self.options
        limit = None if options.max_boxes is None else BoxLimit(options.max_boxes)
        return FeatureDecoder(
            self.schema, self.names, decode=self.decode, limit=limit, options=options
        )

    def examples(self) -> ExampleReader:
        return ExampleReader(self.records.in_order(self.order), self.decoder())

    def batch_bytes(self) -> int:
        """Return the size of a batch in memory, or an estimate if its arrays differ in shape."""
        decoder, lengths, size = self.decoder(), self.records.frames.length, 0
        for name, (shape, dtype) in decoder.shapes().items():
            if name == decoder.image_name and None in shape:
                size += _DECODED * int(lengths.sum()) // max(1, len(lengths))
            else:
                known = (_VARYING if length is None else length for length in shape)
                size += np.dtype(dtype).itemsize * prod(known)
        growth = 1 if self.transform is None else _CHANGED
        return growth * size * self.num_rows + ALIGNMENT * len(decoder.names)

    def for_workers(self, num_threads: int) -> BatchSource:
        """Return the source without options that only the making of the order needs."""
        options = replace(
            self.options, sharding=None, weights=None, buckets=None, num_threads=num_threads
        )
        return replace(self, options=options)


class BatchMaker:
    """Makes batches with threads of this process."""

    def __init__(
        self,
        source: BatchSource,
        num_threads: int,
        num_kept: int,
        note: Callable[[int, RecordError], None],
        memory: HostMemory | None = None,
        examples: ExampleReader | DecodedExamples | None = None,
    ) -> None:
        """Keep the memory of `num_kept` batches; `note` gets each bad record that is replaced.

        `examples` are the examples of the source, with another decoder or decoded already.
        """
        self._source = source
        self._examples = examples = source.examples() if examples is None else examples
        self._records = source.records
        if isinstance(examples, ExampleReader):
            self._records = examples.records  # which may read ahead
        self._options = source.options
        self._note = note
        self._bad: dict[int, RecordError] = {}
        self._filler = Filler(
            self._examples,
            batch_size=source.num_rows,
            num_threads=num_threads,
            num_kept=num_kept,
            memory=memory,
        )

    def begin(self, name: BatchName, new_images: NewArray | None = None) -> Filling:
        """Start to fill a batch. It must not be empty."""
        order = self._source.order
        tags, image_size = self._source.tags(name)
        if isinstance(name, tuple):
            epoch, start = name[0], name[1] * self._options.batch_size
            self._records.expect(epoch, start, start + len(tags))
        keys = [0] * len(tags)
        if self._options.crop is not None or self._source.transform is not None:
            keys = crop_keys(order.key, tags)
        rows = order.rows(tags).tolist()
        return self._filler.begin(rows, keys, image_size, new_images)

    def finish(self, filling: Filling) -> dict[str, Any]:
        """Wait until a batch is filled; return its values by feature, padded and in their format.

        Bad records are replaced if the options say so. Otherwise the first error is raised.
        """
        filling.wait()
        for row in sorted(filling.errors):
            if self._options.on_error == "raise":
                raise filling.errors[row]
            self._found_bad(filling.numbers[row], filling.errors[row])
            fill = partial(self._fill, columns=filling.columns, row=row, key=filling.keys[row])
            self._records.next_good(filling.numbers[row], fill, self._bad, self._found_bad)
        return self._finished(filling.columns)

    def transformed(self, filling: Filling, values: dict[str, Any]) -> Any:
        """Return the values of a finished batch, or the result of the user's transform."""
        transform = self._source.transform
        return values if transform is None else transform(values, filling.keys)

    def close(self) -> None:
        """Stop the threads. `begin` starts new ones."""
        self._filler.close()

    def _fill(self, number: int, columns: Columns, row: int, key: int) -> None:
        for _ in self._examples.steps(number, columns, row, key):
            pass

    def _found_bad(self, number: int, error: RecordError) -> None:
        if number not in self._bad:
            self._bad[number] = error
            self._note(number, error)

    def _finished(self, columns: dict[str, Any]) -> dict[str, Any]:
        options, decoder = self._options, self._examples.decoder
        values = columns
        if options.ragged:
            values = {
                name: list(column) if column.dtype == object else column
                for name, column in columns.items()
            }
        elif decoder.needs_padding:
            values = decoder.padded(columns)
        if options.box_format != "rel_yxyx":
            for name, convert in _FORMATS:
                if name in values:
                    values = {**values, name: self._format(convert, values[name], values[IMAGE])}
        return values

    def _format(self, convert: Callable[..., Any], places: Any, images: Any) -> Any:
        box_format, size = self._options.box_format, self._examples.decoder.image_size
        if not self._options.ragged:
            return convert(places, box_format, size or images.shape[1:3])
        sizes = [size or image.shape[:2] for image in images]
        return [convert(own, box_format, of) for own, of in zip(places, sizes, strict=True)]
