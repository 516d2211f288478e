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

from shardprep.dataset.schema import IMAGE
from shardprep.machine import usable_cores
from shardprep.reader.arrays.buffers import IMAGES_A_TURN, Filler
from shardprep.reader.arrays.features import Examples, Values
from shardprep.reader.targets import Cut, target_of
from shardprep.reader.tf.python_calls import in_python

if TYPE_CHECKING:
    from shardprep.dataset.schema import Schema
    from shardprep.reader.config import Request
    from shardprep.reader.records import Records
    from shardprep.reader.tf.decode import Decoder

_PIXELS_A_CORE = 8192
"""Pixels of the smallest image, for each core, for which threads pay; below it they contend for
Python."""
_MOST_CORES: dict[str | None, int] = {"jpeg": 8, "raw": 3}
"""Most cores for which threads pay, by encoding; raw images are only copied, by one thread."""


def is_faster(schema: Schema, request: Request) -> bool:
    """Tell whether the batches of a request can be filled, and whether that is faster."""
    size, config = schema.image_size, request.config
    targets = [schema.features[name] for name in target_of(schema).names]
    return (
        request.batch_size is not None
        and size is not None
        and config.image_size in (None, size)
        and request.as_supervised
        and all(one.dtype != "bytes" or one.kind == "mask" for one in targets)
        and config.on_error == "raise"
        and config.service is None
        and usable_cores() <= _MOST_CORES.get(schema.image.encoding, 0)
        and usable_cores() * _PIXELS_A_CORE <= size[0] * size[1]
    )


class Filled:
    """The batches of a dataset, by the positions of their records."""

    def __init__(self, records: Records, decoder: Decoder, request: Request) -> None:
        """`decoder` is asked for images that the faster one refuses."""
        schema, batch_size = decoder.schema, request.batch_size or 1
        self._target = decoder.target
        cut = None if request.max_boxes is None else Cut(request.max_boxes)
        self._values = Values(
            schema, (IMAGE, *self._target.names), decode=True, otherwise=decoder.pixels, cut=cut
        )
        is_raw = schema.image.encoding == "raw"
        threads = 1 if is_raw else request.config.num_parallel_calls_for_decode or usable_cores()
        batches = 1 + max(1, -(-threads * IMAGES_A_TURN // batch_size))
        self.num_parallel_calls = 1 if threads == 1 else batches
        """Batches at a time: no thread waits while others fill the last rows of one."""
        self._filler = Filler(
            Examples(records, self._values),
            batch_size=batch_size,
            num_threads=threads,
            num_kept=2 * self.num_parallel_calls,
        )

    def batch(self, positions: Any) -> Any:
        """Return (images, targets), or images alone, of the records at int64[batch] positions.

        A bad record is an error of the graph that names its shard, number and offset.
        """
        shapes = self._values.shapes()
        specs = [
            tf.TensorSpec((*positions.shape, *shape), dtype) for shape, dtype in shapes.values()
        ]
        columns = dict(zip(shapes, in_python(self._batch, [positions], specs), strict=True))
        return self._target.pair(columns[IMAGE], columns)

    def _batch(self, positions: Any) -> list[Any]:
        filling = self._filler.begin(positions.tolist())
        filling.wait()
        for row in sorted(filling.errors):
            raise filling.errors[row]
        columns = self._values.annotations.padded(filling.columns)
        return [columns[name] for name in self._values.names]
