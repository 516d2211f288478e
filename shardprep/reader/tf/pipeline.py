"""The tf.data pipeline of a request.

The stages, in order:

1. Tags name the records of all epochs in order. Shuffling is done here, before records are decoded
   to ten times their size. Epochs repeat here too, so each one ends before the next begins.
2. Tags become decoded batches: threads or processes of this package fill them (`decode`), or they
   are copied from a cache in memory, or the graph decodes records where that is faster.
3. `augment`, `dtype` and `box_format` change batches (`finish`): one call for many images, after
   the cache, so that nothing random is cached.
4. The last batch is dropped or padded (`finish`), and batches are prepared ahead.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from shardprep.dataset.schema import IMAGE, Schema
from shardprep.errors import DatasetError, RecordError
from shardprep.reader.array_types import Columns
from shardprep.reader.arrays.batch_maker import BatchSource
from shardprep.reader.arrays.team import Team
from shardprep.reader.config import (
    BadRecord,
    BatchOptions,
    Request,
    WholeImage,
    warn,
    warn_of_no_batch,
)
from shardprep.reader.decode.features import DecodedExamples, ExampleReader, FeatureDecoder
from shardprep.reader.decode.targets import Elements, element_names
from shardprep.reader.order.order import Order
from shardprep.reader.records.records import Records
from shardprep.reader.records.subset import (
    Subset,
    labelling_advice,
    labellings,
    open_request,
)
from shardprep.reader.tf.decode import (
    BatchDecoder,
    Decoder,
    from_memory,
    threads_are_faster,
)
from shardprep.reader.tf.finish import (
    Finisher,
    ahead,
    batched,
    count_steps,
    counted,
    num_batches,
    options_of,
    padded,
    parallel_calls,
    untuned,
)
from shardprep.reader.tf.image_cache import Note, cache_of, memory_cache, turn_of, twins
from shardprep.reader.tf.python_calls import as_written, one_pipeline
from shardprep.reader.tf.records import Cursor, EpochTags

# `fit` of Keras has shuffle=True by default, and warns that it ignores this for a tf.data.Dataset,
# even if the dataset is shuffled already.
warnings.filterwarnings("ignore", "`shuffle=True` was passed.* as a tf.data.Dataset")

_log = logging.getLogger("shardprep.reader")
_TAGS_A_STEP = 64
"""Number of tags that are computed at a time for single elements."""
_NUM_READS = 2
"""Number of parallel calls that read: one reads while the records of the other are decoded."""
_TOO_LARGE = 4
"""Smallest ratio of stored and requested pixels at which a smaller dataset is advised."""
_Begin = Callable[[], Cursor]


class Source(NamedTuple):
    """Records of a request, or the decoded copies of records if the request has a cache."""

    subset: Subset
    is_cached: bool = False
    """Whether the shards of the subset are decoded copies, in a folder."""
    rows: Columns | None = None
    """The decoded values of all records by feature, if they are cached in memory."""


def load(request: Request) -> Any:
    """Return the dataset of a request, with two attributes.

    `class_names` are the class names in label order. `loaded` are the source and the request, with
    the cache that is in use: "auto" may have chosen none.
    """
    source = opened(request)
    if not source.is_cached:
        request = replace(request, cache="memory" if source.rows is not None else False)
    dataset = make_dataset(source, request)
    dataset.loaded = source, request
    dataset.class_names = source.subset.class_names
    return dataset


def distribute(strategy: Any, request: Request) -> Any:
    """Return the distributed dataset of a request, with the attribute `class_names`."""
    replicas = strategy.num_replicas_in_sync
    if request.batch_size is None or request.batch_size % replicas:
        what = f"batch_size={request.batch_size} cannot be divided among {replicas} replicas"
        what = "no batch_size is given" if request.batch_size is None else what
        hint = f"use a multiple of {replicas}: batch_size counts the images of all replicas"
        raise DatasetError("reader.distribute", what, hint)

    if (request.config.shard_index, request.config.num_shards) != (None, None):
        what = "the strategy already decides num_shards and shard_index"
        raise DatasetError("reader.distribute", what, "leave out both")

    hosts: list[tuple[Subset, int]] = []

    def of_host(context: Any) -> Any:
        own = replace(
            request,
            batch_size=context.get_per_replica_batch_size(request.batch_size),
            drop_remainder=request.drop_remainder or not request.config.pad_batches,
            read_config=replace(request.config, input_context=context),
        )
        source = opened(own)
        hosts.append((source.subset, own.config.replicas))
        return make_dataset(source, own)

    distributed = strategy.distribute_datasets_from_function(of_host)
    subset, replicas = hosts[0]
    distributed = count_steps(distributed, replicas)
    distributed.class_names = subset.class_names
    return distributed


def opened(request: Request) -> Source:
    """Return the records of a request. If a cache is asked for, fill it and return decoded records.

    A cache is filled in the caller's thread, so that Ctrl-C ends it: other threads get no signal.
    """
    subset = open_request(request)
    cache = cache_of(subset, request)
    if not cache:
        return Source(subset)
    if cache != "memory":
        written = twins(subset, Path(cache), _image_decoder(subset, request), _reporter(request))
        return Source(written, is_cached=True)
    return Source(subset, rows=_rows(subset, request))


def undecoded(source: Source, request: Request, size: int) -> Any:
    """Return a dataset of batches of encoded records, read as in the pipeline of the request."""
    stages = _Stages(source, request, Cursor)
    with one_pipeline():
        read = stages.payloads(size).map(lambda data, _: data)
    return ahead(read.with_options(untuned()), is_batched=True)


def make_dataset(source: Source, request: Request, cursor: _Begin | None = None) -> Any:
    """Return the `tf.data.Dataset` of a request.

    Each iteration of the dataset begins at the result of `cursor()`. Without `cursor`, each
    iteration continues with the next epochs.
    """
    subset, config = source.subset, request.config
    is_cached = source.is_cached or source.rows is not None
    for line in _advice(subset, request, is_cached=is_cached):
        warn(line)
    if request.drop_remainder and not (request.repeat or num_batches(subset, request)):
        warn_of_no_batch(subset.batches.size, subset.batches.num_places)
    total = None
    if cursor is None and config.assert_cardinality:
        epochs, endless = request.num_epochs, int(tf.data.INFINITE_CARDINALITY)
        total = endless if epochs is None else subset.epoch_records * epochs
    stages = _Stages(source, request, cursor)
    dataset = stages.dataset(total)
    if request.drop_remainder and total is not None and not request.repeat:
        dataset = dataset.take(num_batches(subset, request))
    if config.pad_batches:
        dataset = padded(dataset, subset, request, stages.calls.finish)
    # Prefetching comes last, so that all stages work while the accelerator does.
    dataset = dataset.with_options(options_of(request))
    return ahead(dataset, is_batched=request.batch_size is not None)


def _advice(subset: Subset, request: Request, *, is_cached: bool) -> Iterator[str]:
    schema = subset.schema
    stored, asked = schema.image_size, request.config.image_size
    if stored and asked and not is_cached and math.prod(stored) >= _TOO_LARGE * math.prod(asked):
        size = f"{asked[1]}x{asked[0]}"
        yield (
            f"images of {stored[1]}x{stored[0]} are decoded to be shrunk to {size}; build the set "
            f"with --size {size}, or cache it"
        )
    if not request.as_supervised:
        return
    found = labellings(subset, request.split, request.weights)
    if request.is_shuffled or any(one.num_unlabelled != one.num_records for one in found):
        yield from labelling_advice(subset, found)


class _Stages:
    """The stages of one pipeline, without padding of the last batch and without prefetching."""

    def __init__(self, source: Source, request: Request, cursor: _Begin | None) -> None:
        subset, config = source.subset, request.config
        self._request, self._source = request, source
        self._size, self._drop = request.batch_size, request.drop_remainder
        # With several epochs, parallel calls keep the order: otherwise epochs would mix.
        self._keep_order = True if request.repeat else None
        self._order = order = subset.order(request)
        self._records = subset.records.in_order(order)
        # Workers read ahead by themselves.
        read = subset.records if config.num_workers else self._records
        begin, dtypes = cursor or _next_epochs(request), subset.schema.dtypes
        self._tags = EpochTags(order, read, request, dtypes, begin, is_whole=cursor is None)
        self._elements = Elements(subset.schema, as_supervised=request.as_supervised)
        self._decoder = Decoder(self._elements)
        self._finish = Finisher(request, self._elements.target, order.key, subset.schema)
        crop, size = request.crop, subset.image_size(request)
        height, width = crop.size if crop is not None else size or (0, 0)
        length = (request.max_length or 1) if subset.schema.is_stack else 1
        image_bytes = length * height * width * 3 * np.dtype(request.dtype).itemsize
        self.calls = parallel_calls(config, self._size and self._size * image_bytes)

    def dataset(self, total: int | None) -> Any:
        """Return the dataset; `total` is its number of records, or None to set no cardinality."""
        with one_pipeline():
            return self._finished(self._decoded(total))

    def payloads(self, size: int, *, drop: bool = False) -> Any:
        num_reads = self._request.config.num_parallel_calls_for_interleave_files or _NUM_READS
        return self._tags.payloads(size, num_reads, drop=drop)

    def _decoded(self, total: int | None) -> Any:
        subset, rows, records = self._source.subset, self._source.rows, self._records
        size, drop = self._size or 1, self._drop
        if rows is not None or self._fills:
            decode, num_calls = self._filled(rows)
            return self._by_tag(decode, num_calls, total)
        if self._size is not None and subset.schema.image.encoding == "raw":
            encoded = counted(self.payloads(size, drop=drop), total, size, drop=drop)
            return self._in_graph(encoded, self._decoder.raw_batch, self.calls.batches)
        # Larger reads for object storage: records that are close together share a request.
        config = self._request.config
        together = subset.group_records(config) if records.is_remote else subset.block_length
        encoded = counted(self.payloads(together).unbatch(), total, 1)
        dataset = self._in_graph(encoded, self._decoder.one, self.calls.images)
        if self._size is None:
            return dataset
        return batched(dataset, size, self.calls.finish, drop=drop, keep_order=self._keep_order)

    def _filled(self, rows: Columns | None) -> tuple[Callable[[Any], Any], int]:
        """Return a function that decodes or copies elements by tag, and its number of calls."""
        request, order, subset = self._request, self._order, self._source.subset
        source = _batch_source(subset, request, order, self._size or 1, copied=rows is not None)
        examples: ExampleReader | DecodedExamples = _examples(source, self._records)
        decoder = examples.decoder
        if rows is not None:
            examples = DecodedExamples(rows, decoder)
            if request.crop is None:
                return from_memory(examples, order, self._elements), self.calls.batches
        note = None if self._source.is_cached else _reporter(request)  # it was reported already
        team = Team(source, _noted(note, self._records), examples=examples)
        filled = BatchDecoder(team, decoder, self._elements)
        return filled, self.calls.images if self._size is None else filled.num_calls

    def _finished(self, dataset: Any) -> Any:
        finish = self._finish
        if not finish.is_needed:
            return dataset
        function = finish if finish.wants_seed else finish.untagged
        if not finish.has_own_code:
            function = as_written(function)
        dataset = self._mapped(dataset, function, self.calls.finish)
        finish.check()
        return dataset

    @property
    def _fills(self) -> bool:
        """Whether threads or workers decode elements, and not the graph."""
        request, schema, config = self._request, self._elements.schema, self._request.config
        is_changed = request.crop is not None or _whole_image(request, schema) is not None
        if is_changed or schema.is_stack or config.on_error != "raise" or config.num_workers:
            return True
        if not schema.annotations.keys().isdisjoint(self._elements.names):
            return True
        encoding = schema.image.encoding
        return self._size is not None and threads_are_faster(schema.image_size, encoding)

    @as_written
    def _by_tag(self, decode: Callable[[Any], Any], num_calls: int, total: int | None) -> Any:
        size, drop = self._size, self._drop
        dataset = self._tags.batches(size or _TAGS_A_STEP, drop=drop and size is not None)
        if size is None:
            dataset = dataset.unbatch()
        dataset = counted(dataset, total, size or 1, drop=drop)
        return self._mapped(dataset, self._tagged(decode), num_calls)

    @as_written
    def _in_graph(self, encoded: Any, decode: Callable[[Any], Any], num_calls: int) -> Any:
        """Return the elements of (records, tags), decoded by functions of TensorFlow."""
        return self._mapped(encoded, self._tagged(lambda data, _: decode(data)), num_calls)

    def _mapped(self, dataset: Any, function: Callable[..., Any], num_calls: int) -> Any:
        return dataset.map(function, num_calls, deterministic=self._keep_order)

    def _tagged(self, decode: Callable[..., Any]) -> Callable[..., Any]:
        """Return `decode`, or a function that also returns the tag if `augment` needs seeds."""
        if not self._finish.wants_seed:
            return decode
        return lambda *inputs: (decode(*inputs), inputs[-1])


def _rows(subset: Subset, request: Request) -> Columns:
    """Return the decoded, uncropped values of all records in the order of the shards."""
    size = turn_of(subset.image_size(request))
    alone = subset.alone(subset.records, size)
    source = _batch_source(alone, request, alone.order(request), size, whole=True)
    examples = _examples(source, alone.records.in_order(source.order))
    team = Team(source, _noted(_reporter(request), alone.records), examples=examples)
    return memory_cache(team, examples.decoder, len(alone.records), size)


def _image_decoder(subset: Subset, request: Request) -> FeatureDecoder:
    """Return a decoder of uncropped images, or of all features if bad records are replaced."""
    source = _batch_source(subset, request, subset.order(request), whole=True)
    names = (IMAGE,) if request.config.on_error == "raise" else tuple(subset.schema.features)
    return _examples(replace(source, names=names), subset.records).decoder


def _batch_source(
    subset: Subset,
    request: Request,
    order: Order,
    size: int = 1,
    *,
    whole: bool = False,
    copied: bool = False,
) -> BatchSource:
    """Return the source of batches of `size`: as requested, or `whole` without a crop or padding.

    Batches that are `copied` from a cache, and single elements, need no workers.
    """
    schema, config = subset.schema, request.config
    whole_image = _whole_image(request, schema)
    is_raw = schema.image.encoding == "raw" and not request.crop and not whole_image
    # The thread of tf.data that asks for a single element decodes it.
    is_alone = request.batch_size is None and not config.num_workers and not whole
    options = BatchOptions(
        size,
        max_boxes=None if whole and request.crop else request.max_boxes,
        random_resized_crop=None if whole else request.random_resized_crop,
        center_crop=whole_image if whole else request.center_crop or whole_image,
        every=request.every,
        max_length=request.max_length,
        ragged=whole,
        on_error="raise" if config.on_error == "raise" else "skip",
        num_workers=0 if copied or is_alone else config.num_workers,
        num_threads=0 if is_alone else 1 if is_raw else config.num_parallel_calls_for_decode,
    )
    return BatchSource(
        subset.records,
        schema,
        element_names(schema, as_supervised=request.as_supervised),
        decode=True,
        order=order,
        options=options,
        num_rows=size if request.repeat else min(size, len(order)),
    )


def _whole_image(request: Request, schema: Schema) -> WholeImage | None:
    size = request.config.image_size
    return None if size is None or size == schema.image_size else WholeImage(size)


def _examples(source: BatchSource, records: Records) -> ExampleReader:
    """Return the reader of examples; TensorFlow decodes images that other libraries cannot."""
    fallback = Decoder(Elements(source.schema, as_supervised=True)).pixels
    return ExampleReader(records, source.decoder(fallback))


def _reporter(request: Request) -> Note | None:
    """Return a function that reports each bad record once; None if on_error is "raise"."""
    report = request.config.on_error
    if report == "raise":
        return None
    lock, found = threading.Lock(), dict[BadRecord, None]()

    def note(records: Records, number: int, error: RecordError) -> None:
        bad = BadRecord(*records.place(number), error.what)
        with lock:
            if bad in found:
                return
            found[bad] = None
            if report == "skip":
                _log.warning("%s; left out, %d so far", bad, len(found))
            else:
                report(bad)

    return note


def _noted(note: Note | None, records: Records) -> Callable[[int, RecordError], None]:
    return (lambda *_: None) if note is None else functools.partial(note, records)


def _next_epochs(request: Request) -> Callable[[], Cursor]:
    """Return a `cursor` for `make_dataset` that begins each iteration after the previous one."""
    numbers = itertools.count(0, max(1, int(request.repeat)))
    return lambda: Cursor(next(numbers), 0)
