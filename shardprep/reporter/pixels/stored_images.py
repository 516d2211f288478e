"""Stored images and boxes by record number, for the pixel pass, the page and the viewer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shardprep.dataset import example
from shardprep.dataset.example import ExampleDecoder
from shardprep.dataset.open_dataset import OpenDataset
from shardprep.dataset.schema import BOX, BOX_LABEL, HEIGHT, IMAGE, MAX_SIDE, WIDTH, Schema
from shardprep.dataset.stored_size import check_stored
from shardprep.errors import RecordError
from shardprep.image.decode import stored_pixels
from shardprep.reader.records.open import open_subset
from shardprep.reader.records.records import Records
from shardprep.reader.selection.split_argument import AnySplit

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Payload = bytes | memoryview

BOXES = np.dtype(
    [("record", "<i8"), ("label", "<i8"), ("corners", "<f4", (4,)), ("size", "<i8", (2,))]
)
"""A box: record number; class or −1; ymin, xmin, ymax, xmax as shares (0..1) of the stored image;
height and width of that image in pixels, 0 if unknown."""


def open_images(dataset: OpenDataset, split: AnySplit | None = None) -> StoredImages:
    """Return the images of a split, or of all splits in order.

    Raises DatasetError if a shard is missing or differs from the manifest.
    """
    splits = "+".join(name for name, one in dataset.manifest.splits.items() if one.num_records)
    return StoredImages(open_subset(dataset, split or splits).records, dataset.schema)


class StoredImages:
    """Stored images of `records`, by index into `records`."""

    def __init__(self, records: Records, schema: Schema) -> None:
        self._records = records
        dtypes = {name: one.dtype for name, one in schema.features.items()}
        self._decoder = ExampleDecoder(dtypes, (IMAGE,))
        of_boxes = {BOX, BOX_LABEL, HEIGHT, WIDTH} & dtypes.keys() if BOX in dtypes else set()
        self._box_decoder = ExampleDecoder(dtypes, of_boxes) if of_boxes else None
        self._size = schema.image_size if schema.image.encoding == "raw" else None
        self.schema = schema

    def data(self, numbers: Sequence[int]) -> Iterator[bytes | RecordError]:
        """Yield the stored bytes of each image, or the error of its record."""
        for number, payload in zip(numbers, self.payloads(numbers), strict=True):
            if isinstance(payload, RecordError):
                yield payload
                continue
            try:
                yield self.image(payload)
            except (RecordError, ValueError) as error:
                yield self.damaged(number, error)

    def payloads(self, numbers: Sequence[int]) -> Sequence[Payload | RecordError]:
        """Return the bytes or the error of each record."""
        return self._records.read(np.asarray(numbers))

    def image(self, payload: Payload) -> bytes:
        """Return the stored bytes of an image; raises RecordError or ValueError without one."""
        features = self._decoder.find(payload) or example.decode(bytes(payload))
        values = features.get(IMAGE, [])
        if len(values) != 1 or isinstance(values[0], (int, float)):
            raise ValueError("holds no image")
        return bytes(values[0])

    def boxes(self, number: int, payload: Payload) -> np.ndarray[Any, Any]:
        """Return the `BOXES` of a record; raises RecordError or ValueError if damaged."""
        if self._box_decoder is None:
            return np.empty(0, BOXES)
        features: dict[str, Any] = dict(
            self._box_decoder.find(payload) or example.decode(bytes(payload))
        )
        sides = features.get(BOX, ())
        if len(sides) % 4:
            raise ValueError(f"{BOX} has {len(sides):,} values, which is not a multiple of 4")
        boxes = np.empty(len(sides) // 4, BOXES)
        boxes["record"] = number
        boxes["corners"] = np.array(sides, np.float32).reshape(-1, 4)
        boxes["label"] = features.get(BOX_LABEL, -1)
        height, width = features.get(HEIGHT) or (0,), features.get(WIDTH) or (0,)
        size = self.schema.image_size or (height[0], width[0])
        boxes["size"] = tuple(min(max(side, 0), MAX_SIDE) for side in size)
        return boxes

    def pixels(self, data: bytes, least_side: int = 0) -> Pixels:
        """Return an image as RGB, uint8[height, width, 3], at stored size or smaller.

        A JPEG may be decoded at a fraction of its size, if no side gets shorter than `least_side`
        pixels; 0 means the stored size. Raises the decoder's own errors.
        """
        if self._size is None:
            check_stored(data)
        return stored_pixels(data, self._size, least_side)

    def damaged(self, number: int, error: Exception) -> RecordError:
        """Return the error of a record whose image cannot be decoded."""
        what = error.what if isinstance(error, RecordError) else " ".join(str(error).split())
        return self._records.damaged(number, f"its image cannot be decoded ({what[:200]})")
