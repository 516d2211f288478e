"""Batches of images filled in one call, straight from the shards.

Records and pixels are those of `Decoder`. The graph carries positions, and threads of this package
decode each image to where it stays. Where the graph carries records, every image is made in new
memory and copied into its batch, raw ones four times. But one thread at a time runs Python, and to
hand that over costs as much as an image does: where images are small and cores many, the graph of
records is the faster one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from shardprep.machine import usable_cores
from shardprep.reader.arrays.buffers import IMAGES_A_TURN, Filler
from shardprep.reader.decode.crop import crop_keys
from shardprep.reader.decode.targets import target_of
from shardprep.reader.tf.python_calls import in_python

if TYPE_CHECKING:
    from shardprep.dataset.schema import Schema
    from shardprep.reader.config import Request
    from shardprep.reader.decode.features import DecodedExamples, ExampleReader
    from shardprep.reader.tf.decode import Decoder

_PIXELS_A_CORE = 8192
"""Pixels of the smallest image, for each core, for which threads pay; below it they contend for
Python."""
_MOST_CORES: dict[str | None, int] = {"jpeg": 8, "raw": 3}
"""Most cores for which threads pay, by encoding; raw images are only copied, by one thread."""


def is_faster(schema: Schema, request: Request) -> bool:
    """Tell whether the batches of a request can be filled, and whether that is faster.

    Crops always are: what cuts them runs in Python.
    """
    size, config = schema.image_size, request.config
    targets = [schema.features[name] for name in target_of(schema).names]
    can_be = (
        request.batch_size is not None
        and request.as_supervised
        and all(one.dtype != "bytes" or one.kind == "mask" for one in targets)
        and config.on_error == "raise"
        and config.service is None
    )
    if request.crop is not None:
        return can_be
    return (
        can_be
        and size is not None
        and config.image_size in (None, size)
        and usable_cores() <= _MOST_CORES.get(schema.image.encoding, 0)
        and usable_cores() * _PIXELS_A_CORE <= size[0] * size[1]
    )


class Filled:
    """Elements of a dataset by their tags: batches, or single ones where no size is given."""

    def __init__(
        self, examples: ExampleReader | DecodedExamples, decoder: Decoder, key: int
    ) -> None:
        """Take what has the records; crops are drawn by `key`, that of the order."""
        request = decoder.request
        self._decoder = decoder
        self._values, batch_size = examples.decoder, request.batch_size or 1
        self._num_records = len(examples)
        self._key = key
        is_copied = self._values.encoding == "raw" and request.crop is None
        threads = 1 if is_copied else request.config.num_parallel_calls_for_decode or usable_cores()
        batches = 1 + max(1, -(-threads * IMAGES_A_TURN // batch_size))
        self.num_parallel_calls = 1 if threads == 1 else batches
        """Batches at a time: no thread waits while others fill the last rows of one."""
        self._filler = Filler(
            examples,
            batch_size=batch_size,
            num_threads=threads,
            num_kept=2 * self.num_parallel_calls,
        )

    def element(self, tags: Any) -> Any:
        """Return what is asked for of the records of int64[batch] tags, or of one.

        A bad record is an error of the graph that names its shard, number and offset.
        """
        shapes = self._values.shapes()
        specs = [tf.TensorSpec((*tags.shape, *shape), dtype) for shape, dtype in shapes.values()]
        found = in_python(self._features, [tags], specs)
        return self._decoder.asked(dict(zip(shapes, found, strict=True)))

    def _features(self, tags: Any) -> list[Any]:
        every = tags.reshape(-1)
        keys = (
            [0] * len(every) if self._decoder.request.crop is None else crop_keys(self._key, every)
        )
        filling = self._filler.begin((every % self._num_records).tolist(), keys)
        filling.wait()
        for row in sorted(filling.errors):
            raise filling.errors[row]
        columns = self._values.annotations.padded(filling.columns)
        found = [columns[name] for name in self._values.names]
        return found if tags.ndim else [one[0] for one in found]
