"""Decode records by threads of this package, into batches or one at a time.

The graph carries tags only, and threads decode each image into its row of the batch. In a graph of
records, every image is allocated and then copied into its batch, raw images four times. But only
one thread at a time runs Python, and passing that on costs as much as a small image: for small
images on many cores the graph of records is faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from shardprep.dataset.schema import IMAGE
from shardprep.machine import usable_cores
from shardprep.reader.array_types import Ints
from shardprep.reader.arrays.batches import IMAGES_A_TURN, Filler
from shardprep.reader.decode.crop import crop_keys
from shardprep.reader.decode.features import DecodedExamples, ExampleReader, FeatureDecoder
from shardprep.reader.tf.decode import Elements
from shardprep.reader.tf.python_calls import in_python

_PIXELS_A_CORE = 8192
"""Smallest image, in pixels for each core, for which threads are faster than the graph."""
_MOST_CORES: dict[str | None, int] = {"jpeg": 8, "raw": 3}
"""Most cores for which threads are faster, by encoding; one thread copies raw images."""


def is_faster(image_size: tuple[int, int] | None, encoding: str | None) -> bool:
    """Return whether threads fill batches of whole images faster than the graph."""
    cores = usable_cores()
    return (
        image_size is not None
        and cores <= _MOST_CORES.get(encoding, 0)
        and cores * _PIXELS_A_CORE <= image_size[0] * image_size[1]
    )


class ThreadDecoder:
    """Decodes batches, or single elements, given their tags."""

    def __init__(
        self,
        examples: ExampleReader | DecodedExamples,
        elements: Elements,
        *,
        batch_size: int,
        num_threads: int | None,
        crop_key: int | None,
    ) -> None:
        """Decode `examples`.

        Args:
            examples: the records.
            elements: the result of each record.
            batch_size: most tags at a time.
            num_threads: threads that decode; None for one per core.
            crop_key: key of the order, which decides the crops; None without a crop.

        """
        self._decoder = examples.decoder
        self._elements = elements
        self._num_records = len(examples)
        self._crop_key = crop_key
        is_copied = self._decoder.encoding == "raw" and crop_key is None
        threads = 1 if is_copied else num_threads or usable_cores()
        batches = 1 + max(1, -(-threads * IMAGES_A_TURN // batch_size))
        self.num_calls = 1 if threads == 1 else batches
        """Batches at a time, so that no thread waits while others fill the last rows of one."""
        self._filler = Filler(
            examples, batch_size=batch_size, num_threads=threads, num_kept=2 * self.num_calls
        )

    def __call__(self, tags: Any) -> Any:
        """Return the elements of int64[batch] tags, or of a single tag; for a graph.

        A bad record is an error of the graph that names its shard, number and offset.
        """
        return _in_python(self._filled, [tags], self._decoder, self._elements, tags.shape)

    def _filled(self, tags: Ints) -> list[Any]:
        every = tags.reshape(-1)
        keys = [0] * len(every) if self._crop_key is None else crop_keys(self._crop_key, every)
        filling = self._filler.begin((every % self._num_records).tolist(), keys)
        filling.wait()
        for row in sorted(filling.errors):
            raise filling.errors[row]
        columns = self._decoder.annotations.padded(filling.columns)
        values = [columns[name] for name in self._decoder.names]
        return values if tags.ndim else [value[0] for value in values]


def crop_of_record(
    decoder: FeatureDecoder, elements: Elements, key: int
) -> Callable[[Any, Any], Any]:
    """Return a function of a record and its tag that decodes the crop of its image, for a graph.

    TensorFlow's own resize takes twice as long as all of this. `key` is the key of the order.
    """

    def filled(record: bytes, tag: Any) -> list[Any]:
        columns = decoder.columns(1)
        columns[IMAGE] = np.empty((1, *(decoder.image_shape or ())), np.uint8)
        decoder.fill(memoryview(record), columns, 0, *crop_keys(key, tag[np.newaxis]))
        columns = decoder.annotations.padded(columns)
        return [columns[name][0] for name in decoder.names]

    return lambda record, tag: _in_python(filled, [record, tag], decoder, elements, ())


def _in_python(
    function: Callable[..., list[Any]],
    inputs: list[Any],
    decoder: FeatureDecoder,
    elements: Elements,
    shape: Any,
) -> Any:
    shapes = decoder.shapes()
    specs = [tf.TensorSpec((*shape, *row), dtype) for row, dtype in shapes.values()]
    return elements.pack(dict(zip(shapes, in_python(function, inputs, specs), strict=True)))
