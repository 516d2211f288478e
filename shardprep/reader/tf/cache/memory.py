"""The cache of decoded images, uint8: its place, and arrays in memory; see also `folder_cache`."""

from __future__ import annotations

import itertools
import logging
import sys
import time
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import tensorflow as tf

from shardprep.dataset.schema import MASK, OBJECT_MASK
from shardprep.machine import free_bytes
from shardprep.reader.decode.annotations import stacked
from shardprep.reader.decode.targets import target_of
from shardprep.reader.tf.graph_annotations import fills
from shardprep.reader.tf.python_calls import in_python

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardprep.reader.config import Request
    from shardprep.reader.records.open import Subset
    from shardprep.reader.tf.decode import Decoder

_log = logging.getLogger("shardprep.reader")
_Image = TypeVar("_Image")
_SECONDS_A_LINE = 5.0
"""Seconds between two lines of progress, and before the first: most caches need none."""
_MOST_ROWS = 64
_BYTES_A_TURN = 4 << 20
"""Decoded bytes of one call that fills a cache in memory, at most, but for one image."""


def cache_of(subset: Subset, request: Request) -> str:
    """Return the place of the cache: "" for none, "memory", or a folder."""
    if request.cache != "auto":
        return str(request.cache or "")
    size, config = subset.image_size(request), request.config
    if size is None or config.service:
        why = "a service has its own memory" if config.service else "its images differ in size"
        _log.info("cache: none, %s", why)
        return ""
    needed = int(subset.num_records * size[0] * size[1] * _channels(subset, request))
    allowed = int(free_bytes() * config.cache_ram_share)
    fits = needed <= allowed
    _log.info(
        "cache: %s, %.2f GB decoded %s the %.2f GB it may fill (%d%% of what is free)",
        "memory" if fits else "none",
        needed / 1e9,
        "fit" if fits else "do not fit",
        allowed / 1e9,
        config.cache_ram_share * 100,
    )
    return "memory" if fits else ""


class Progress:
    """Lines that say how far a cache is filled: in the log, or on stderr where none is kept.

    A logger `shardprep.reader` that is set to INFO takes them, one above WARNING drops them.
    """

    def __init__(self, total: int, place: str) -> None:
        """Begin with none of so many images; `place` is where they go."""
        self._total = total
        self._place = place
        self._done = 0
        self._begin = time.monotonic()
        self._next = self._begin + _SECONDS_A_LINE

    def over(self, images: Iterator[_Image]) -> Iterator[_Image]:
        """Yield the images, and count them."""
        for image in images:
            yield image
            self._done += 1
            if time.monotonic() >= self._next:
                self._next += _SECONDS_A_LINE
                self._say()

    def _say(self) -> None:
        left = (time.monotonic() - self._begin) * (self._total - self._done) / self._done
        line = (
            f"cache: {self._done:,} of {self._total:,} images decoded to {self._place}, "
            f"about {left:.0f} s left"
        )
        level = _log.getEffectiveLevel()
        if level <= logging.INFO:
            _log.info(line)
        elif level <= logging.WARNING:
            sys.stderr.write(f"{line}\n")


def rows_a_turn(height: int, width: int) -> int:
    """Return the images of a size that are decoded in one call to fill a cache in memory.

    For each call Python takes as long as for a small image; so long nothing hears of Ctrl-C.
    """
    return min(_MOST_ROWS, max(1, _BYTES_A_TURN // (height * width * 3)))


class DecodedRows:
    """Decoded elements in memory, an array for each of their components."""

    def __init__(self, spec: Any, num_records: int) -> None:
        """Take the spec of an element; the arrays are to be filled."""
        self._spec = spec
        self._flat = tf.nest.flatten(spec)
        self._fills = tf.nest.flatten(fills(spec))
        self.arrays = [_empty(one, num_records) for one in self._flat]

    def __call__(self, positions: Any) -> Any:
        """Return the elements at some positions; for a graph."""
        specs = [tf.TensorSpec([*positions.shape, *one.shape], one.dtype) for one in self._flat]
        found = in_python(self._picked, [positions], specs)
        return tf.nest.pack_sequence_as(self._spec, found)

    def by_feature(self, decoder: Decoder) -> dict[str, Any]:
        """Return the arrays by feature; `decoder` is that of the elements."""
        return decoder.features_of(tf.nest.pack_sequence_as(self._spec, self.arrays))

    def _picked(self, places: Any) -> list[Any]:
        pairs = zip(self.arrays, self._fills, strict=True)
        return [_picked(array, places, value) for array, value in pairs]


def memory_cache(decoded: Any, num_records: int, batch_size: int | None) -> DecodedRows:
    """Return the elements of a dataset in memory.

    Args:
        decoded: dataset of all elements in order.
        num_records: their number.
        batch_size: elements that it yields at a time, None for one without an axis for it.

    """
    spec = decoded.element_spec
    if batch_size is not None:
        spec = tf.nest.map_structure(lambda one: tf.TensorSpec(one.shape[1:], one.dtype), spec)
    rows = DecodedRows(spec, num_records)

    def copied() -> Iterator[None]:
        start = 0
        for element in decoded.as_numpy_iterator():
            values = tf.nest.flatten(element)
            stop = start + (1 if batch_size is None else len(values[0]))
            for array, value in zip(rows.arrays, values, strict=True):
                array[slice(start, stop) if batch_size else start] = value
            yield from itertools.repeat(None, stop - start)
            start = stop

    for _ in Progress(num_records, "memory").over(copied()):
        pass
    return rows


def _empty(spec: Any, num_records: int) -> Any:
    """Return an array of one component of all records; of objects where images differ."""
    if spec.dtype == tf.string or not spec.shape.is_fully_defined():
        return np.empty(num_records, object)
    return np.empty((num_records, *spec.shape), spec.dtype.as_numpy_dtype)


def _picked(array: Any, positions: Any, value: Any) -> Any:
    """Return the elements at positions; those of many that differ in length padded."""
    found = array[positions]
    is_ragged = np.ndim(positions) and array.dtype == object and isinstance(found[0], np.ndarray)
    return stacked(found, value) if is_ragged else found


def _channels(subset: Subset, request: Request) -> float:
    """Return the bytes of a record that is decoded, for each pixel: of its image and its masks."""
    names = subset.schema.features if not request.as_supervised else target_of(subset.schema).names
    channels = 3.0
    if MASK in names:
        channels += np.dtype(subset.schema.features[MASK].mask_dtype).itemsize
    if OBJECT_MASK in names:
        counts = [one.objects for one in subset.manifest.annotations.values() if one.objects]
        num_objects = sum(one.num_objects for one in counts)
        num_records = sum(one.num_records for one in subset.manifest.splits.values())
        channels += request.max_boxes or num_objects / num_records
    return channels
