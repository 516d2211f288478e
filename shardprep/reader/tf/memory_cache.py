"""The cache of decoded elements in memory, and the choice of `cache="auto"`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from shardprep.dataset.schema import MASK, OBJECT_MASK, TARGET_IMAGE
from shardprep.machine import free_bytes
from shardprep.reader.array_types import Ints
from shardprep.reader.config import Request
from shardprep.reader.decode.annotations import stacked
from shardprep.reader.records.subset import Subset
from shardprep.reader.tf.batching import padding_values
from shardprep.reader.tf.decode import Elements
from shardprep.reader.tf.folder_cache import CacheProgress
from shardprep.reader.tf.python_calls import in_python

_log = logging.getLogger("shardprep.reader")

_MOST_ROWS = 64
_BYTES_A_TURN = 4 << 20
"""Largest size in bytes of the images that one call decodes, unless one image is larger."""


def cache_of(subset: Subset, request: Request) -> str:
    """Return "memory", the folder of the cache, or "" for no cache; log the choice of "auto"."""
    if request.cache != "auto":
        return str(request.cache or "")
    size, config = subset.image_size(request), request.config
    if size is None or config.service or subset.schema.is_stack:
        why = "a service has its own memory" if config.service else "its images differ in size"
        why = "its stacks differ in length" if subset.schema.is_stack else why
        _log.info("cache: none, %s", why)
        return ""
    needed = int(subset.num_records * size[0] * size[1] * _bytes_per_pixel(subset, request))
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


def _bytes_per_pixel(subset: Subset, request: Request) -> float:
    """Return the decoded size of a record, image and masks, in bytes per pixel of the image."""
    names = Elements(subset.schema, as_supervised=request.as_supervised).names
    num_bytes = 3.0
    if MASK in names:
        num_bytes += np.dtype(subset.schema.features[MASK].pixel_dtype).itemsize
    num_bytes += 3 * (TARGET_IMAGE in names)
    if OBJECT_MASK in names:
        manifests = [one.manifest for one in subset.datasets.opened]
        counts = [one.objects for manifest in manifests for one in manifest.annotations.values()]
        num_objects = sum(one.num_objects for one in counts if one)
        splits = [split for manifest in manifests for split in manifest.splits.values()]
        num_records = sum(split.num_records for split in splits)
        num_bytes += request.max_boxes or num_objects / num_records
    return num_bytes


def rows_a_turn(height: int, width: int) -> int:
    """Return the number of images that one call decodes to fill a cache in memory.

    Ctrl-C has no effect during a call, so calls are short, but each costs as much as a small image.
    """
    return min(_MOST_ROWS, max(1, _BYTES_A_TURN // (height * width * 3)))


class DecodedRows:
    """Decoded elements in memory, as one array for each component of an element."""

    def __init__(self, spec: Any, ignored: int, num_records: int) -> None:
        self._spec = spec
        self._flat = tf.nest.flatten(spec)
        self._padding = tf.nest.flatten(padding_values(spec, 0, ignored))
        self.arrays: list[Any] = []
        for one in self._flat:
            is_object = one.dtype == tf.string or not one.shape.is_fully_defined()
            shape, dtype = ((), object) if is_object else (one.shape, one.dtype.as_numpy_dtype)
            self.arrays.append(np.empty((num_records, *shape), dtype))

    def __call__(self, tags: Any, numbers: Callable[[Ints], Ints]) -> Any:
        """Return the elements of tags as tensors of a graph; `numbers` converts tags to rows."""
        specs = [tf.TensorSpec([*tags.shape, *one.shape], one.dtype) for one in self._flat]
        rows = in_python(lambda tags: self._rows(numbers(tags)), [tags], specs)
        return tf.nest.pack_sequence_as(self._spec, rows)

    def by_feature(self, elements: Elements) -> dict[str, Any]:
        return elements.unpack(tf.nest.pack_sequence_as(self._spec, self.arrays))

    def _rows(self, positions: Any) -> list[Any]:
        """Return an array of values per component; values that differ in length are padded."""
        columns = [array[positions] for array in self.arrays]
        for i, rows in enumerate(columns):
            if np.ndim(positions) and rows.dtype == object and isinstance(rows[0], np.ndarray):
                columns[i] = stacked(rows, self._padding[i])
        return columns


def memory_cache(
    decoded: Any, subset: Subset, request: Request, batch_size: int | None
) -> DecodedRows:
    """Return all elements of the dataset `decoded`, not batched if `batch_size` is None."""
    spec = decoded.element_spec
    if batch_size is not None:
        spec = tf.nest.map_structure(lambda one: tf.TensorSpec(one.shape[1:], one.dtype), spec)
    elements = Elements(subset.schema, as_supervised=request.as_supervised)
    rows = DecodedRows(spec, elements.ignored, subset.num_records)
    progress = CacheProgress(subset.num_records, "memory")
    start = 0
    for element in decoded.as_numpy_iterator():
        values = tf.nest.flatten(element)
        stop = start + (1 if batch_size is None else len(values[0]))
        for array, value in zip(rows.arrays, values, strict=True):
            array[slice(start, stop) if batch_size else start] = value
        progress.add(stop - start)
        start = stop
    return rows
