"""The tf.data pipeline; `_dataset` says why each of its stages stands where it does."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from shardprep.errors import DatasetError
from shardprep.reader.subset import open_request
from shardprep.reader.tf.advice import advise
from shardprep.reader.tf.bad_records import GoodRecords
from shardprep.reader.tf.batch_decode import Filled, is_faster
from shardprep.reader.tf.batching import evened, padded, served
from shardprep.reader.tf.blocks import Source, make_source
from shardprep.reader.tf.caching import kept_in, twins
from shardprep.reader.tf.decode import Decoder, Finisher
from shardprep.reader.tf.memory_cache import Held
from shardprep.reader.tf.positions import position_batches
from shardprep.reader.tf.records import Cursor, Reading, records

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardprep.reader.options import Request
    from shardprep.reader.subset import Subset

_POSITIONS_A_STEP = 64
"""Positions found at a time where records come one by one."""


class _Plan(NamedTuple):
    """How the records of a request become what it yields."""

    subset: Subset
    source: Source
    reading: Reading
    decode: Callable[..., Any]
    by_batch: bool
    """Decode a whole batch in one call."""
    num_calls: int
    """Calls of `decode` at a time."""
    finish: Callable[..., Any] | None


def load(request: Request) -> Any:
    """Return the dataset of a request; `loaded` of it is the request."""
    dataset = make_dataset(open_request(request), request)
    dataset.loaded = request
    return dataset


def distribute(strategy: Any, request: Request) -> Any:
    """Return the distributed dataset of a request whose batches are those of all replicas.

    Each host reads a range of records of its own.

    Raises:
        DatasetError: a batch cannot be parted evenly among the replicas.

    """
    replicas = strategy.num_replicas_in_sync
    if request.batch_size is None or request.batch_size % replicas:
        raise DatasetError(
            "reader.distribute",
            f"batch_size={request.batch_size} for {replicas} replicas",
            f"batch_size counts images of all replicas together: use a multiple of {replicas}",
        )

    def of_host(context: Any) -> Any:
        own = replace(
            request,
            batch_size=context.get_per_replica_batch_size(request.batch_size),
            drop_remainder=request.drop_remainder or not request.config.pad_batches,
            read_config=replace(request.config, input_context=context),
        )
        return make_dataset(open_request(own), own)

    return strategy.distribute_datasets_from_function(of_host)


def make_dataset(
    subset: Subset,
    request: Request,
    cursor: Callable[[], Cursor] | None = None,
) -> Any:
    """Return the `tf.data.Dataset` of a request.

    `cursor` is asked where to begin each time the dataset is iterated; by default each iteration
    is the next epoch. Raises as `reader.load` says.
    """
    config = request.config
    begin = cursor if cursor is not None or config.service else _counter(request)
    plan = _plan(subset, request, begin)
    advise(plan.source, subset.schema, request)
    total = None if cursor is not None or not config.assert_cardinality else _total(plan, request)
    dataset = _dataset(plan, request, total)
    if request.drop_remainder and total is not None and not request.repeat:
        dataset = evened(dataset, subset, request)
    if config.pad_batches:
        dataset = padded(dataset, subset, request)
    # Last, so that everything above works while the accelerator does.
    return dataset.with_options(_options(request)).prefetch(tf.data.AUTOTUNE)


def _dataset(plan: _Plan, request: Request, total: int | None) -> Any:
    # Records as they are stored, in the order of each epoch: blocks from all shards in a seeded
    # order, a few at a time mixed. Here and not later, because here they are encoded, a tenth of
    # their pixels; and by index, so that no buffer has to fill and any place is found at once.
    # Epochs repeat in here, after the shuffle: all records come once before any comes again.
    size, drop = request.batch_size, request.drop_remainder
    service = request.config.service
    # Where epochs follow each other all keep the order, or the end of one would mix with the next.
    in_order = True if request.repeat else None
    # Positions stand for records that are not read here at all, and come in batches at once.
    in_batches = plan.reading.is_positions and not request.window
    if in_batches:
        dataset = position_batches(
            plan.source,
            plan.reading,
            size or _POSITIONS_A_STEP,
            drop_remainder=drop and size is not None,
            may_resume=total is None,
        )
        if size is None:
            dataset = dataset.unbatch()
    else:
        dataset = records(plan.source, plan.reading)
    if total is not None and service is None and not (in_batches and size):
        # Of a service, each worker has a part of them; batches of positions are counted.
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(total))
    if not plan.by_batch:
        # One record a call: the decoder is one op for one image, and calls run side by side.
        dataset = dataset.map(plan.decode, plan.num_calls, deterministic=in_order)
    if size is not None and not in_batches:
        dataset = dataset.batch(
            size,
            drop_remainder=drop,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=in_order,
        )
    if plan.by_batch:
        # One call for a whole batch: per record it would cost more than what it does.
        dataset = dataset.map(plan.decode, plan.num_calls, deterministic=in_order)
    if plan.finish is not None:
        # After the batch: one call for many images. After the cache: what is random is never kept.
        dataset = dataset.map(
            plan.finish, num_parallel_calls=tf.data.AUTOTUNE, deterministic=in_order
        )
    return dataset if service is None else served(dataset, total, request)


def _plan(subset: Subset, request: Request, cursor: Callable[[], Cursor] | None) -> _Plan:
    kept = kept_in(subset, request)
    if kept not in ("", "memory"):
        # Once decoded, never again: from here on the shards are those of the cache. The order is
        # that of the records, so it is the same with and without.
        subset = twins(subset, request, Path(kept))
    source = make_source(subset, request)
    decoder = Decoder(subset.schema, request)
    finish = Finisher(request, subset.schema.target, source.order.key)
    in_memory = kept == "memory"
    is_filled = not in_memory and not subset.records.is_remote and is_faster(subset.schema, request)
    num_calls = request.config.num_parallel_calls_for_decode or tf.data.AUTOTUNE
    good = None
    decode: Callable[..., Any]
    if is_filled:
        filled = Filled(source, decoder, request)
        decode, num_calls = filled.batch, filled.num_parallel_calls
        by_batch = True
    elif in_memory:
        decode = Held(lambda: _plain(subset, request), subset.num_records).rows
        by_batch = True
    elif request.config.on_error != "raise":
        good = GoodRecords(source, decoder, request)
        decode = _past_errors(good, decoder, source)
        by_batch = False
    else:
        by_batch = subset.schema.image.encoding == "raw"
        decode = decoder.batch if by_batch and request.batch_size is not None else decoder.one
    is_tagged = finish.wants_seed or good is not None
    if is_tagged and good is None:
        decode = _with_tag(decode)
    is_positions = in_memory or is_filled
    if is_positions:
        size = request.batch_size if request.drop_remainder else None
        decode = _of_tags(decode, source.num_records, size, is_tagged=is_tagged)
    reading = Reading(
        request,
        cursor,
        read=None if good is None else good.read,
        is_positions=is_positions,
        is_tagged=is_tagged,
    )
    last = (finish if is_tagged else _untagged(finish)) if finish.is_needed or is_tagged else None
    by_batch = by_batch and request.batch_size is not None
    return _Plan(subset, source, reading, decode, by_batch, num_calls, last)


def _plain(subset: Subset, request: Request) -> Any:
    """Return the dataset of what a request decodes, one by one, once and in order."""
    plain = replace(
        request,
        batch_size=None,
        shuffle=False,
        repeat=False,
        augment=None,
        dtype="uint8",
        cache=False,
    )
    plan = _plan(subset, plain, None)
    return _dataset(plan, plain, None).with_options(_options(plain))


def _counter(request: Request) -> Callable[[], Cursor]:
    """Return a cursor for which each iteration goes on where the one before has ended."""
    numbers = itertools.count(0, max(1, int(request.repeat)))
    return lambda: Cursor(next(numbers), 0)


def _total(plan: _Plan, request: Request) -> int:
    """Return the records of an iteration, as tf.data counts them."""
    if request.repeat is True:
        return int(tf.data.INFINITE_CARDINALITY)
    return plan.source.num_records * (request.repeat or 1)


def _past_errors(good: GoodRecords, decoder: Decoder, source: Source) -> Callable[..., Any]:
    """Return how to decode a record, or the one in its place; the tag is kept."""

    def decode(record: Any, tag: Any) -> tuple[Any, Any]:
        return decoder.decoded(*good.image(record, tag % source.num_records)), tag

    return decode


def _with_tag(decode: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return the function for records that come with a tag, which it lets through."""
    return lambda record, tag: (decode(record), tag)


def _of_tags(
    decode: Callable[..., Any], num_records: int, size: int | None, *, is_tagged: bool
) -> Callable[[Any], Any]:
    """Return the function of positions as one of tags, of which a batch has so many, if known."""

    def decoded(tags: Any) -> Any:
        tags = tf.ensure_shape(tags, (size,)) if tags.shape.rank else tags
        return decode(tags % num_records, tags) if is_tagged else decode(tags % num_records)

    return decoded


def _untagged(finish: Finisher) -> Callable[..., Any]:
    """Return the function for elements without a tag; tf.data unpacks a pair into arguments."""
    return lambda *element: finish(element if len(element) > 1 else element[0])


def _options(request: Request) -> Any:
    config = request.config
    options = tf.data.Options()
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
