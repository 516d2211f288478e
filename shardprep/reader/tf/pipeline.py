"""The tf.data pipeline of a request.

The stages, in order:

1. Tags name the records of all epochs in order. Shuffling is done here, before records are decoded
   to ten times their size. Epochs repeat here too, so each one ends before the next begins.
2. Tags become decoded batches: threads of this package fill them (`decode`), or they are
   copied from a cache in memory, or the graph decodes records.
3. `augment`, `dtype` and `box_format` change batches (`finish`): one call for many images, after
   the cache, so that nothing random is cached.
4. The last batch is dropped or padded (`batching`), and batches are prepared ahead.
"""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from shardprep.dataset.schema import BOX, LABEL, LABELS, TARGET, TARGETS, TEXT, TEXTS
from shardprep.errors import DatasetError, RecordError
from shardprep.reader.arrays.batch_maker import BatchSource
from shardprep.reader.config import BatchOptions, Request, warn
from shardprep.reader.decode.features import DecodedExamples, ExampleReader, FeatureDecoder
from shardprep.reader.decode.targets import BoxLimit
from shardprep.reader.records.records import Records
from shardprep.reader.records.subset import Subset, only_in_graph, open_request
from shardprep.reader.selection.selection import Selection
from shardprep.reader.tf.bad_records import CheckedRecords, log_bad_records
from shardprep.reader.tf.batching import batched, count_steps, counted, num_batches, padded
from shardprep.reader.tf.decode import (
    BatchDecoder,
    Decoder,
    Elements,
    decode_in_python,
    threads_are_faster,
)
from shardprep.reader.tf.finish import Finisher
from shardprep.reader.tf.folder_cache import small_twin, twins
from shardprep.reader.tf.memory_cache import DecodedRows, cache_of, memory_cache, rows_a_turn
from shardprep.reader.tf.python_calls import as_written, one_pipeline
from shardprep.reader.tf.records import Cursor, EpochTags, Read, served, served_records
from shardprep.reader.tf.tuning import ahead, options_of, parallel_calls, untuned

# `fit` of Keras has shuffle=True by default, and warns that it ignores this for a tf.data.Dataset,
# even if the dataset is shuffled already.
warnings.filterwarnings("ignore", "`shuffle=True` was passed.* as a tf.data.Dataset")

_TAGS_A_STEP = 64
"""Number of tags that are computed at a time for single elements."""
_NUM_READS = 2
"""Number of parallel calls that read: one reads while the records of the other are decoded."""
_TOO_LARGE = 4
"""Smallest ratio of stored to requested pixels at which a smaller dataset is advised."""
_MISSING = {LABELS: "all 0", TARGET: "NaN", TARGETS: "NaN", TEXT: "''", TEXTS: "''"}
"""Value of a missing target, by feature; −1 for classes."""


class Source(NamedTuple):
    """The records of a request, or their decoded copies if it has a cache."""

    subset: Subset
    is_cached: bool = False
    """Whether the shards of the subset are decoded copies."""
    rows: DecodedRows | None = None
    """The decoded elements of all records if they are cached in memory."""


def load(request: Request) -> Any:
    """Return the dataset of a request, with two attributes.

    `class_names` are the class names in label order. `loaded` is the request with the cache that
    is really used.
    """
    source = opened(request)
    if not source.is_cached:
        request = replace(request, cache="memory" if source.rows is not None else False)
    dataset = make_dataset(source, request)
    dataset.loaded = request
    dataset.class_names = source.subset.class_names
    return dataset


def distribute(strategy: Any, request: Request) -> Any:
    """Return the distributed dataset of a request, with the attribute `class_names`.

    The replicas share each batch. Each host reads its part of each global batch, or with
    `shuffle=N` a range of the records.
    """
    replicas = strategy.num_replicas_in_sync
    if request.batch_size is None or request.batch_size % replicas:
        raise DatasetError(
            "reader.distribute",
            f"batch_size={request.batch_size} for {replicas} replicas",
            f"batch_size counts images of all replicas together: use a multiple of {replicas}",
        )

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
    """Return the records of a request. If it asks for a cache, fill it and return decoded records.

    A cache is filled in the caller's thread, so that Ctrl-C ends it: other threads get no signal.
    """
    subset = open_request(request)
    cache = cache_of(subset, request)
    if not cache:
        return Source(subset)
    size = subset.image_size(request)
    if cache != "memory":
        skips = request.config.on_error != "raise"
        decode = functools.partial(_decoded, subset, request)
        return Source(twins(subset, Path(cache), size, decode, skips=skips), is_cached=True)
    has_all = request.max_boxes is None or request.crop is not None
    is_ragged = BOX in subset.schema.features and has_all
    is_ragged |= subset.schema.is_stack and request.max_length is None
    is_ragged |= bool(subset.schema.rows) or TEXTS in subset.schema.features
    batch_size = None if size is None or is_ragged else rows_a_turn(*size)
    decoded = _all_elements(subset, request, batch_size)
    return Source(subset, rows=memory_cache(decoded, subset, request, batch_size))


def cached_sample(request: Request, folder: Path) -> Source:
    """Return the records of a request after decoding them to one shard in an empty folder."""
    subset = open_request(request)
    decode = functools.partial(_decoded, subset, request)
    return Source(small_twin(subset, folder, subset.image_size(request), decode), is_cached=True)


def undecoded(request: Request, size: int) -> Any:
    """Return a dataset of batches of encoded records, read like in the pipeline of the request."""
    stages = _Stages(Source(open_request(request)), request, Cursor)
    with one_pipeline():
        read = stages.payloads(size).map(lambda data, _: data)
    return ahead(read.with_options(untuned()), is_batched=True)


def make_dataset(
    source: Source, request: Request, cursor: Callable[[], Cursor] | None = None
) -> Any:
    """Return the `tf.data.Dataset` of a request. Raises like `reader.load`.

    Each iteration of the dataset begins at the result of `cursor()`. Without `cursor`, it continues
    with the next epochs.
    """
    subset, config = source.subset, request.config
    is_cached = source.is_cached or source.rows is not None
    for line in _advice(subset, request, is_cached=is_cached):
        warn(line)
    total = None
    if cursor is None and config.assert_cardinality:
        epochs, endless = request.num_epochs, int(tf.data.INFINITE_CARDINALITY)
        total = endless if epochs is None else subset.epoch_records * epochs
    stages = _Stages(source, request, cursor or _next_epochs(request))
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
    if request.config.service and request.is_shuffled and not request.repeat:
        yield "a service gives every epoch the same order; use repeat=True and steps_per_epoch"
    if not request.as_supervised or not schema.has_target:
        return
    for name, num_unlabelled, num_records in _unlabelled(subset, request):
        if num_unlabelled:
            feature = schema.target or "class"
            yield (
                f"{num_unlabelled:,} of {num_records:,} records of {name} have no "
                f"{feature} ({_MISSING.get(feature, '−1')}), which fit and evaluate count all "
                "the same; model.predict ignores them, and to get their names as well, call "
                "model(batch['image']) on the batches of as_supervised=False"
            )


def _unlabelled(subset: Subset, request: Request) -> Iterator[tuple[str, int, int]]:
    """Yield the name of each split read, and its numbers of records without a target and in all.

    With weights="balanced" nothing is yielded: it draws no record without a class.
    """
    if isinstance(request.weights, str):
        return
    if isinstance(request.split, Selection) and subset.schema.target == LABEL:
        yield request.split.name, int((request.split.labels < 0).sum()), len(request.split)
        return
    paths = {*subset.records.paths}
    for dataset in subset.datasets.opened:
        for name, split in dataset.manifest.splits.items():
            if any(dataset.files.location(one.name) in paths for one in split.shards):
                yield name, split.num_unlabelled, split.num_records


class _Stages:
    """The stages of one pipeline, without padding of the last batch and without prefetching."""

    def __init__(self, source: Source, request: Request, cursor: Callable[[], Cursor]) -> None:
        subset, config = source.subset, request.config
        self._request = request
        self._rows = source.rows
        self._size, self._drop = request.batch_size, request.drop_remainder
        # With several epochs, parallel calls keep the order: otherwise epochs would mix.
        self._keep_order = True if request.repeat else None
        self._order = order = subset.order(request)
        records = subset.records if request.window else subset.records.in_order(order)
        self._subset, self._records = subset, records
        # Workers read ahead by themselves.
        read = subset.records if config.num_workers else records
        self._tags = EpochTags(order, read, request, cursor)
        self._blocks = subset.blocks(config, shuffle=request.is_shuffled)
        self._block_length = subset.block_length
        self._elements = Elements(subset.schema, as_supervised=request.as_supervised)
        most = request.max_boxes
        self._limit = None if most is None or config.service else BoxLimit(most)
        self._decoder = Decoder(
            self._elements, resize=config.image_size, max_boxes=most, limit=self._limit
        )
        self._finish = Finisher(request, self._elements.target, order.key, subset.schema)
        crop, size = request.crop, subset.image_size(request)
        height, width = crop.size if crop is not None else size or (0, 0)
        length = (request.max_length or 1) if subset.schema.is_stack else 1
        image_bytes = length * height * width * 3 * np.dtype(request.dtype).itemsize
        self.calls = parallel_calls(config, self._size and self._size * image_bytes)
        decode = report = None
        if config.on_error != "raise":
            decode = self._checked_stack if subset.schema.is_stack else self._decoder.one
            if not source.is_cached:  # reported when the cache was filled
                report = log_bad_records() if config.on_error == "skip" else config.on_error
        self._checked = CheckedRecords(records, subset.schema.dtypes, decode, report)

    def _checked_stack(self, record: Any) -> None:
        try:
            self._feature_decoder().item(memoryview(record.numpy()))
        except ValueError as error:
            raise RecordError("image", str(error)) from error

    def dataset(self, total: int | None) -> Any:
        """Return the dataset. `total` is its number of records, or None to set no cardinality."""
        service = self._request.config.service
        if not service:
            with one_pipeline():
                return self._finished(self._decoded(total))
        # Workers run a copy of the graph, whose functions this process cannot release.
        size = self._size or 1
        dataset = served(self._finished(self._served()), service, size, drop=self._drop)
        return counted(dataset, total, size, drop=self._drop)

    def payloads(self, size: int, read: Read | None = None, *, drop: bool = False) -> Any:
        """Return the dataset of batches of (bytes, tag)."""
        num_reads = self._request.config.num_parallel_calls_for_interleave_files
        if num_reads is None:
            # With `on_error`, these calls also decode every record once, to find bad ones.
            skips = self._request.config.on_error != "raise"
            decodes = skips and not self._records.is_remote
            num_reads = self.calls.images if decodes else _NUM_READS
        return self._tags.payloads(size, read or self._checked.read, num_reads, drop=drop)

    @as_written
    def images(self) -> Any:
        """Return the dataset of (bytes, pixels) of single records; b"" for a bad one to skip."""
        decode = self._decoder.record_and_image
        records = self._single_payloads(self._checked.read_or_empty)
        return records.map(lambda record, _: decode(record), self.calls.images)

    def _single_payloads(self, read: Read | None = None) -> Any:
        # Larger reads for object storage: records that are close together share a request.
        is_remote = self._records.is_remote
        size = self._blocks.group_records if is_remote else self._block_length
        return self.payloads(size, read).unbatch()

    def _decoded(self, total: int | None) -> Any:
        """Return the dataset of decoded elements, in the fastest way that the request allows."""
        request, rows, order = self._request, self._rows, self._order
        if rows is not None and request.crop is None:
            return self._by_tag(
                functools.partial(rows, numbers=order.rows), self.calls.batches, total
            )
        if rows is not None:
            arrays = rows.by_feature(self._elements)
            examples = DecodedExamples(arrays, self._feature_decoder())
            return self._filled(examples, total)
        if self._may_fill and (request.config.num_workers or not self._records.waits):
            reader = ExampleReader(self._records, self._feature_decoder())
            return self._filled(reader, total)
        if self._decodes_batches and not self._records.waits:
            size = self._size or 1
            dataset = counted(self.payloads(size, drop=self._drop), total, size, drop=self._drop)
            return self._raw_batches(dataset)
        return self._by_record(counted(self._single_payloads(), total, 1))

    def _served(self) -> Any:
        epochs = self._request.num_epochs
        records = served_records(self._records, self._order, self._blocks, epochs)
        return self._by_record(records)

    def _finished(self, dataset: Any) -> Any:
        finish = self._finish
        if not finish.is_needed:
            return dataset
        function = finish if finish.wants_seed else finish.untagged
        if self._request.augment is None:
            function = as_written(function)
        dataset = self._mapped(dataset, function, self.calls.finish)
        finish.check()
        return dataset

    @property
    def _may_fill(self) -> bool:
        """Whether threads or workers can fill batches, and do so faster than the graph."""
        request, schema = self._request, self._elements.schema
        return not only_in_graph(schema, request) and (
            request.crop is not None
            or schema.is_stack
            or bool(request.config.num_workers)
            or threads_are_faster(schema.image_size, schema.image.encoding)
        )

    @property
    def _decodes_batches(self) -> bool:
        return self._size is not None and self._decoder.is_batched and self._request.crop is None

    def _feature_decoder(self) -> FeatureDecoder:
        return FeatureDecoder(
            self._elements.schema,
            self._elements.names,
            decode=True,
            fallback=self._decoder.pixels,
            limit=self._limit,
            options=self._request,
        )

    def _filled(self, examples: ExampleReader | DecodedExamples, total: int | None) -> Any:
        request, order, names = self._request, self._order, examples.decoder.names
        size, config = request.batch_size or 1, request.config
        is_copied = examples.decoder.encoding == "raw" and request.crop is None
        options = BatchOptions(
            size,
            max_boxes=request.max_boxes,
            random_resized_crop=request.random_resized_crop,
            center_crop=request.center_crop,
            every=request.every,
            max_length=request.max_length,
            num_workers=config.num_workers if self._rows is None else 0,
            num_threads=1 if is_copied else config.num_parallel_calls_for_decode,
        )
        records, schema = self._subset.records, self._elements.schema
        num_rows = size if request.repeat else min(size, len(order))
        source = BatchSource(
            records, schema, names, decode=True, order=order, options=options, num_rows=num_rows
        )
        decoder = BatchDecoder(source, examples, self._elements)
        return self._by_tag(decoder, decoder.num_calls, total)

    @as_written
    def _by_tag(self, decode: Callable[[Any], Any], num_calls: int, total: int | None) -> Any:
        size, drop = self._size, self._drop
        dataset = self._tags.batches(size or _TAGS_A_STEP, drop=drop and size is not None)
        if size is None:
            dataset = dataset.unbatch()
        dataset = counted(dataset, total, size or 1, drop=drop)
        return self._mapped(dataset, self._tagged(decode), num_calls)

    @as_written
    def _by_record(self, records: Any) -> Any:
        """Return the dataset of elements that the graph decodes from a dataset of (bytes, tag)."""
        if self._decodes_batches:
            # A call for a single raw image would cost more than its work.
            return self._raw_batches(self._batched(records))
        decode = self._decoder.one
        in_python = None
        if self._request.crop is not None or self._elements.schema.is_stack:
            in_python = decode_in_python(self._feature_decoder(), self._elements, self._order.key)

        def one(record: Any, tag: Any) -> Any:
            return decode(record) if in_python is None else in_python(record, tag)

        return self._batched(self._mapped(records, self._tagged(one), self.calls.images))

    @as_written
    def _raw_batches(self, records: Any) -> Any:
        decode = self._decoder.batch
        function = self._tagged(lambda records, _: decode(records))
        return self._mapped(records, function, self.calls.batches)

    def _batched(self, dataset: Any) -> Any:
        if self._size is None:
            return dataset
        rows = self._elements.ignored, self._size, self.calls.finish
        return batched(dataset, *rows, drop=self._drop, keep_order=self._keep_order)

    def _mapped(self, dataset: Any, function: Callable[..., Any], num_calls: int) -> Any:
        return dataset.map(function, num_calls, deterministic=self._keep_order)

    def _tagged(self, decode: Callable[..., Any]) -> Callable[..., Any]:
        """Return `decode`, or if seeds are needed a function that returns the tag in addition."""
        if not self._finish.wants_seed:
            return decode
        return lambda *inputs: (decode(*inputs), inputs[-1])


def _decoded(subset: Subset, request: Request, records: Records) -> Iterator[tuple[bytes, bytes]]:
    """Yield (bytes, pixels) of records in order; b"" for bad ones unless `on_error="raise"`."""
    plain = _plain(request, batch_size=None, max_boxes=request.max_boxes)
    stages = _Stages(Source(subset.alone(records, 1)), plain, Cursor)
    with one_pipeline():
        dataset = stages.images()
    dataset = ahead(dataset.with_options(untuned()), is_batched=False)
    for data, pixels in dataset.as_numpy_iterator():
        yield data, pixels.tobytes()


def _all_elements(subset: Subset, request: Request, batch_size: int | None) -> Any:
    """Return a dataset of the decoded elements of a request, each once, in shard order."""
    most = request.max_boxes if request.crop is None else None
    plain = _plain(request, batch_size=batch_size, max_boxes=most)
    stages = _Stages(Source(subset.alone(subset.records, batch_size or 1)), plain, Cursor)
    return stages.dataset(None).with_options(options_of(plain))


def _plain(request: Request, *, batch_size: int | None, max_boxes: int | None) -> Request:
    """Return the request for uncropped, unchanged images, each once, in shard order."""
    return replace(
        request,
        batch_size=batch_size,
        max_boxes=max_boxes,
        drop_remainder=False,
        shuffle=False,
        repeat=False,
        random_resized_crop=None,
        center_crop=None,
        augment=None,
        dtype="uint8",
        box_format="rel_yxyx",
        cache=False,
    )


def _next_epochs(request: Request) -> Callable[[], Cursor]:
    """Return a `cursor` for `make_dataset` that begins each iteration after the previous one."""
    numbers = itertools.count(0, max(1, int(request.repeat)))
    return lambda: Cursor(next(numbers), 0)
