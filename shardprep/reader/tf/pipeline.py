"""The tf.data pipeline; `_stages` says why each of its stages stands where it does."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from shardprep.dataset.schema import BOX
from shardprep.errors import DatasetError
from shardprep.reader.decode.features import DecodedExamples, ExampleReader
from shardprep.reader.records.open import Subset, open_request
from shardprep.reader.tf.advice import advise
from shardprep.reader.tf.bad_records import GoodRecords
from shardprep.reader.tf.batch_decode import Filled, is_faster
from shardprep.reader.tf.batching import counted, evened, padded, stepped
from shardprep.reader.tf.cache.decoded_shards import twins
from shardprep.reader.tf.cache.memory import DecodedRows, cache_of, memory_cache, rows_a_turn
from shardprep.reader.tf.decode import Decoder, Finisher
from shardprep.reader.tf.graph_annotations import batched
from shardprep.reader.tf.parallelism import ahead, batch_calls, finish_calls, image_calls, untuned
from shardprep.reader.tf.python_calls import as_written, one_pipeline
from shardprep.reader.tf.records import Cursor, Reading
from shardprep.reader.tf.service import served, served_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardprep.reader.config import Request

_POSITIONS_A_STEP = 64
"""Positions found at a time where records come one by one."""


class Source(NamedTuple):
    """The records of a request, and what is decoded of them already."""

    subset: Subset
    is_cached: bool = False
    """Whether the shards of the subset are decoded copies."""
    rows: DecodedRows | None = None
    """The decoded elements of all records, in memory."""


def load(request: Request) -> Any:
    """Return the dataset of a request; `class_names` of it are the classes.

    `loaded` is the request, with the cache that "auto" has come to.
    """
    source = opened(request)
    if not source.is_cached:
        request = replace(request, cache="memory" if source.rows is not None else False)
    dataset = make_dataset(source, request)
    dataset.loaded = request
    dataset.class_names = source.subset.class_names
    return dataset


def distribute(strategy: Any, request: Request) -> Any:
    """Return the distributed dataset of a request whose batches are those of all replicas.

    Each host reads a range of records of its own.
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
    distributed = stepped(distributed, replicas)
    distributed.class_names = subset.class_names
    return distributed


def opened(request: Request) -> Source:
    """Return the records of a request, decoded where it asks for a cache, which is filled here.

    In the caller's thread, so that Ctrl-C ends it: TensorFlow's threads hear of no signal.
    """
    subset = open_request(request)
    kept = cache_of(subset, request)
    if not kept:
        return Source(subset)
    if kept != "memory":
        # Once decoded, never again: from here on the shards are those of the cache. The order is
        # that of the records, so it is the same with and without.
        return Source(twins(subset, request, Path(kept)), is_cached=True)
    size = subset.image_size(request)
    has_all = request.max_boxes is None or request.crop is not None
    is_ragged = BOX in subset.schema.features and has_all
    batch_size = None if size is None or is_ragged else rows_a_turn(*size)
    decoded = _plain(subset, request, batch_size)
    return Source(subset, rows=memory_cache(decoded, subset.num_records, batch_size))


def make_dataset(
    source: Source, request: Request, cursor: Callable[[], Cursor] | None = None
) -> Any:
    """Return the `tf.data.Dataset` of a request.

    `cursor` is asked where to begin each time the dataset is iterated; by default each iteration
    is the next epoch. Raises as `reader.load` says.
    """
    subset, config = source.subset, request.config
    advise(subset, request, is_cached=source.is_cached or source.rows is not None)
    total = None if cursor is not None or not config.assert_cardinality else _total(subset, request)
    dataset = _dataset(source, request, cursor or _counter(request), total)
    if request.drop_remainder and total is not None and not request.repeat:
        dataset = evened(dataset, subset, request)
    if config.pad_batches:
        dataset = padded(dataset, subset, request)
    # Last, so that everything above works while the accelerator does.
    return ahead(dataset.with_options(_options(request)), request)


def _dataset(
    source: Source, request: Request, cursor: Callable[[], Cursor], total: int | None
) -> Any:
    if request.config.service:  # its workers have a copy of the graph, of which nobody here knows
        return served(_stages(source, request, cursor, total), total, request)
    with one_pipeline():
        return _stages(source, request, cursor, total)


def _stages(
    source: Source, request: Request, cursor: Callable[[], Cursor], total: int | None
) -> Any:
    subset = source.subset
    order = subset.order(request)
    if not request.window:
        subset = replace(subset, records=subset.records.in_order(order))
    reading = Reading(subset, order, request, cursor)
    decoder = Decoder(subset.schema, request)
    finish = Finisher(request, decoder.target, reading.order.key)
    filled = _filled(subset, source.rows, decoder, reading.order.key)
    if filled is not None:
        dataset = _by_tag(reading, finish, filled.element, total, filled.num_parallel_calls)
    elif source.rows is not None:
        rows, number = source.rows, subset.num_records
        dataset = _by_tag(reading, finish, lambda tags: rows(tags % number), total)
    else:
        good = None
        if request.config.on_error != "raise":
            good = GoodRecords(subset, decoder, request, is_cached=source.is_cached)
        dataset = _by_record(reading, finish, decoder, total, good)
    if finish.is_needed:
        # After the batch: one call for many images. After the cache: what is random is never kept.
        last = finish if finish.wants_seed else _untagged(finish)
        last = as_written(last) if request.augment is None else last
        calls = finish_calls(subset, request)
        dataset = dataset.map(last, calls, deterministic=_in_order(request))
        finish.check()
    return dataset


def _filled(subset: Subset, rows: DecodedRows | None, decoder: Decoder, key: int) -> Filled | None:
    """Return what fills the elements of a request in one call, None where the graph makes them."""
    request = decoder.request
    if rows is not None and request.crop is not None:
        arrays = rows.by_feature(decoder)
        return Filled(DecodedExamples(arrays, decoder.values()), decoder, key)
    if rows is None and not subset.records.waits and is_faster(subset.schema, request):
        return Filled(ExampleReader(subset.records, decoder.values()), decoder, key)
    return None


@as_written
def _by_tag(
    reading: Reading,
    finish: Finisher,
    decode: Callable[[Any], Any],
    total: int | None,
    num_calls: int | None = None,
) -> Any:
    """Return the dataset of what is made from tags: no record is read in the graph."""
    request = reading.request
    size, drop = request.batch_size, request.drop_remainder
    dataset = reading.tags(size or _POSITIONS_A_STEP, drop=drop and size is not None)
    if size is None:
        dataset = dataset.unbatch()
    dataset = counted(dataset, total, size or 1, drop=drop)
    return dataset.map(
        _tagged(decode, finish),
        num_calls or batch_calls(reading.subset, request),
        deterministic=_in_order(request),
    )


@as_written
def _by_record(
    reading: Reading,
    finish: Finisher,
    decoder: Decoder,
    total: int | None,
    good: GoodRecords | None,
) -> Any:
    """Return the dataset of decoded records, in batches where a size is given."""
    # Records as they are stored, in the order of each epoch: blocks from all shards in a seeded
    # order, a few at a time mixed. Here and not later, because here they are encoded, a tenth of
    # their pixels. Epochs repeat in here, after the shuffle: all records come once before any comes
    # again.
    subset, request = reading.subset, reading.request
    config, size = request.config, request.batch_size
    in_order = _in_order(request)
    by_batch = size is not None and subset.schema.image.encoding == "raw" and good is None
    by_batch &= not decoder.has_annotations and request.crop is None
    if by_batch and not config.service and not subset.records.waits:
        drop = request.drop_remainder
        batches = counted(reading.batches(size or 1, drop=drop), total, size or 1, drop=drop)
        return batches.map(
            _tagged(lambda records, _: decoder.batch(records), finish),
            batch_calls(subset, request),
            deterministic=in_order,
        )
    if config.service:
        dataset = served_records(subset, reading.order, request)
    else:
        dataset = counted(reading.records(None if good is None else good.read), total, 1)

    cropped = None if request.crop is None else decoder.cropped(reading.order.key)

    def one(record: Any, tag: Any) -> Any:
        pixels = None
        if good is not None:
            record, pixels = good.image(record, tag % subset.num_records)
        return decoder.one(record, pixels) if cropped is None else cropped(record, tag)

    def batch(dataset: Any) -> Any:
        if size is None:
            return dataset
        calls = finish_calls(subset, request)
        return batched(dataset, size, calls, drop=request.drop_remainder, in_order=in_order)

    if by_batch:
        # One call for a whole batch: per record it would cost more than what it does.
        decode = _tagged(lambda records, _: decoder.batch(records), finish)
        return batch(dataset).map(decode, batch_calls(subset, request), deterministic=in_order)
    # One record a call: the decoder is one op for one image, and calls run side by side.
    return batch(dataset.map(_tagged(one, finish), image_calls(request), deterministic=in_order))


def _in_order(request: Request) -> bool | None:
    """Where epochs follow each other all keep the order: one's end would mix with the next."""
    return True if request.repeat else None


def _plain(subset: Subset, request: Request, batch_size: int | None) -> Any:
    """Return the dataset of what a request decodes, once and in order."""
    plain = replace(
        request,
        batch_size=batch_size,
        drop_remainder=False,
        shuffle=False,
        repeat=False,
        random_resized_crop=None,
        center_crop=None,
        augment=None,
        dtype="uint8",
        box_format="rel_yxyx",
        max_boxes=request.max_boxes if request.crop is None else None,
        cache=False,
    )
    source = Source(replace(subset, draws=None))
    return _dataset(source, plain, Cursor, None).with_options(_options(plain))


def _counter(request: Request) -> Callable[[], Cursor]:
    """Return a cursor for which each iteration goes on where the one before has ended."""
    numbers = itertools.count(0, max(1, int(request.repeat)))
    return lambda: Cursor(next(numbers), 0)


def _total(subset: Subset, request: Request) -> int:
    """Return the records of an iteration, as tf.data counts them."""
    if request.num_epochs is None:
        return int(tf.data.INFINITE_CARDINALITY)
    return subset.epoch_records * request.num_epochs


def _tagged(decode: Callable[..., Any], finish: Finisher) -> Callable[..., Any]:
    """Return a function of tags, or of records and their tags, that keeps tags that are wanted."""
    if not finish.wants_seed:
        return decode
    return lambda *inputs: (decode(*inputs), inputs[-1])


def _untagged(finish: Finisher) -> Callable[..., Any]:
    """Return the function for elements without a tag; tf.data unpacks a pair into arguments."""
    return lambda *element: finish(element if len(element) > 1 else element[0])


def _options(request: Request) -> Any:
    config = request.config
    options = untuned()
    # Waiting for the slowest of the parallel calls buys an order that nobody asked for.
    options.deterministic = (
        not request.is_shuffled
        or request.seed is not None
        or not config.shuffle_reshuffle_each_iteration
    )
    # Threads of its own: it does not wait behind the model's ops. The map runs many images at once;
    # threads inside one image's ops only get in their way.
    options.threading.private_threadpool_size = config.threads
    options.threading.max_intra_op_parallelism = 1
    # Each reader has its share of the records already.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options.merge(config.options) if config.options is not None else options
