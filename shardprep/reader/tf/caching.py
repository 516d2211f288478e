"""The cache of decoded images, uint8: its place, and arrays in memory; see also `folder_cache`."""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import tensorflow as tf

from shardprep.machine import free_bytes
from shardprep.reader.tf.python_calls import in_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardprep.reader.options import Request
    from shardprep.reader.subset import Subset

_log = logging.getLogger("shardprep.reader")
_Image = TypeVar("_Image")
_SECONDS_A_LINE = 5.0
"""Seconds between two lines of progress, and before the first: most caches need none."""


def cache_of(subset: Subset, request: Request) -> str:
    """Return the place of the cache: "" for none, "memory", or a folder."""
    if request.cache != "auto":
        return str(request.cache or "")
    size, config = subset.image_size(request), request.config
    if size is None or config.service:
        why = "a service has its own memory" if config.service else "its images differ in size"
        _log.info("cache: none, %s", why)
        return ""
    needed = subset.num_records * size[0] * size[1] * 3
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


class MemoryCache:
    """Arrays of the decoded elements of all records, filled at the first read, one a component."""

    def __init__(self, decode: Callable[[], Any], num_records: int) -> None:
        """`decode` returns the dataset of all records in order, one by one."""
        self._decode = decode
        self._num_records = num_records
        self._lock = threading.Lock()
        self._arrays: list[Any] = []
        self._spec = decode().element_spec

    def rows(self, positions: Any) -> Any:
        """Return tensors of the elements at one or many positions; for a graph."""
        specs = [
            tf.TensorSpec([*positions.shape, *one.shape], one.dtype)
            for one in tf.nest.flatten(self._spec)
        ]
        return tf.nest.pack_sequence_as(self._spec, in_python(self._rows, [positions], specs))

    def _rows(self, positions: Any) -> list[Any]:
        with self._lock:
            if not self._arrays:
                self._arrays = self._filled()
        return [array[positions] for array in self._arrays]

    def _filled(self) -> list[Any]:
        arrays = [self._empty(one) for one in tf.nest.flatten(self._spec)]
        elements = Progress(self._num_records, "memory").over(self._decode().as_numpy_iterator())
        for i, element in enumerate(elements):
            for array, value in zip(arrays, tf.nest.flatten(element), strict=True):
                array[i] = value
        return arrays

    def _empty(self, spec: Any) -> Any:
        """Return an array of one component of all records; of objects where images differ."""
        if spec.dtype == tf.string or not spec.shape.is_fully_defined():
            return np.empty(self._num_records, object)
        return np.empty((self._num_records, *spec.shape), spec.dtype.as_numpy_dtype)
