"""The cache of decoded images in memory: one array, filled once, read in any order."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from shardprep.reader.tf.python_calls import from_graph

if TYPE_CHECKING:
    from collections.abc import Callable


class Held:
    """Arrays of all records of a dataset, as it yields them."""

    def __init__(self, decode: Callable[[], Any], num_records: int) -> None:
        """`decode` gives the dataset of all records in order, one by one; called when needed."""
        self._decode = decode
        self._num_records = num_records
        self._lock = threading.Lock()
        self._arrays: list[Any] = []
        self._spec = decode().element_spec

    def rows(self, positions: Any) -> Any:
        """Return the elements at one or many positions, as the dataset has them; for a graph."""
        flat = tf.nest.flatten(self._spec)
        found = tf.numpy_function(
            from_graph(self._rows), [positions], [one.dtype for one in flat], stateful=False
        )
        shaped = [
            tf.ensure_shape(one, [*positions.shape, *spec.shape])
            for one, spec in zip(found, flat, strict=True)
        ]
        return tf.nest.pack_sequence_as(self._spec, shaped)

    def _rows(self, positions: Any) -> list[Any]:
        with self._lock:
            if not self._arrays:
                self._arrays = self._filled()
        return [array[positions] for array in self._arrays]

    def _filled(self) -> list[Any]:
        arrays = [self._empty(one) for one in tf.nest.flatten(self._spec)]
        for i, element in enumerate(self._decode().as_numpy_iterator()):
            for array, value in zip(arrays, tf.nest.flatten(element), strict=True):
                array[i] = value
        return arrays

    def _empty(self, spec: Any) -> Any:
        """Return room for one component of all records; of any size where images differ."""
        if spec.dtype == tf.string or not spec.shape.is_fully_defined():
            return np.empty(self._num_records, object)
        return np.empty((self._num_records, *spec.shape), spec.dtype.as_numpy_dtype)
