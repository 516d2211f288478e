"""Changes tried: a pipeline as it would be with one, on a part of the records where it must fill.

What a cache holds is decoded first, which for a whole set takes minutes; so a trial decodes as many
records as it can in its turn, and reads those over and over.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from shardprep.reader.decode.targets import target_of
from shardprep.reader.records.open import open_request
from shardprep.reader.tf.cache.decoded_shards import small_twin
from shardprep.reader.tf.decode import Finisher
from shardprep.reader.tf.pipeline import Source, load, make_dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardprep.reader.config import Request
    from shardprep.reader.diagnosis.analysis import Candidate
    from shardprep.reader.diagnosis.train_step import Take
    from shardprep.reader.records.open import Subset

_SAMPLE_BYTES = 1 << 29
"""Bytes of decoded images of a sample, at most."""
_SAMPLE_BATCHES = 4
"""Batches of a sample, at least."""


class Tried(NamedTuple):
    """A pipeline and a step as they are with a change."""

    dataset: Any
    take: Take
    evict: Callable[[], None] = lambda: None
    """Puts what is read back to where it would come from."""
    num_images: int | None = None
    """Images that can be read before they come from elsewhere; None for any number."""


@contextmanager
def trial(candidate: Candidate, request: Request, take: Take, num_images: float) -> Iterator[Tried]:
    """Yield what a candidate makes of a request and a step; a sample has about `num_images`."""
    if candidate.trial == "folder":
        with tempfile.TemporaryDirectory(prefix="shardprep-", dir=candidate.options["cache"]) as at:
            small = open_request(sample(request, num_images))
            twin = small_twin(small, request, Path(at))
            plain = replace(request, cache=False, repeat=True)
            yield Tried(
                make_dataset(Source(twin, is_cached=True), plain),
                take,
                lambda: _evict(Path(at)),
                len(twin.records),
            )
        return
    dataset = pipeline(replace(request, **candidate.options), num_images)
    if candidate.trial == "in step":
        yield Tried(dataset, _finishing(request, take))
    elif candidate.trial == "prefetch":
        (device, *_) = tf.config.list_logical_devices("GPU")
        there = tf.data.experimental.prefetch_to_device(device.name)
        yield Tried(dataset.apply(there), take)
    else:
        yield Tried(dataset, take)


def pipeline(request: Request, num_images: float) -> Any:
    """Return the pipeline of a request; where it is cached in memory, of a sample without end.

    The epochs of a sample are none of the request's.
    """
    some = sample(request, num_images) if request.cache == "memory" else request
    return load(request if some == request else replace(some, repeat=True))


def sample(request: Request, num_images: float) -> Request:
    """Return a request for about so many records of those of a request, all where they are few."""
    subset = open_request(request)
    least = _SAMPLE_BATCHES * (request.batch_size or 1)
    most = min(num_images, _SAMPLE_BYTES / (image_bytes(subset, request) or 1))
    parts = int(subset.num_records / max(least, most))
    if parts <= 1:
        return request
    index, readers = request.config.shard_of
    config = replace(
        request.config, num_shards=readers * parts, shard_index=index * parts, input_context=None
    )
    return replace(request, read_config=config)


def image_bytes(subset: Subset, request: Request) -> int | None:
    """Return the bytes of an image as it is yielded, uint8; None where images differ in size."""
    size = subset.image_size(request)
    return None if size is None else 3 * size[0] * size[1]


def _finishing(request: Request, take: Take) -> Take:
    """Return a step that begins with what `augment` and `dtype` do, as layers of a model would."""
    target = target_of(open_request(request).schema)
    finish = tf.function(Finisher(request, target, 0))

    def finished(batch: Any) -> None:
        take(finish(batch, tf.zeros(1, tf.int64)))

    return finished


def _evict(folder: Path) -> None:
    """Take what files of a folder hold out of memory: it is to be read from the disk."""
    for path in folder.iterdir():
        if path.is_file() and hasattr(os, "posix_fadvise"):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
