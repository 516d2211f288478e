"""The cache of decoded images: none, memory or a folder; uint8, never float."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import tensorflow as tf

from shardprep.errors import DatasetError
from shardprep.machine import free_bytes
from shardprep.reader.records import open_records
from shardprep.reader.splits import ShardSlice
from shardprep.reader.tf import folder_cache
from shardprep.reader.tf.bad_records import GoodRecords
from shardprep.reader.tf.blocks import make_source
from shardprep.reader.tf.decode import Decoder
from shardprep.reader.tf.records import Reading, records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardprep.dataset.manifest import Shard
    from shardprep.reader.options import Request
    from shardprep.reader.subset import Subset

_log = logging.getLogger("shardprep.reader")


def kept_in(subset: Subset, request: Request) -> str:
    """Return where decoded images are kept: "" for nowhere, "memory", or a folder.

    Raises:
        DatasetError: they are to be kept, and differ in size.

    """
    if not request.cache:
        return ""
    if request.cache != "auto":
        if request.cache != "memory":
            kept_size(subset, request)
        return str(request.cache)
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


def kept_size(subset: Subset, request: Request) -> tuple[int, int]:
    """Return height and width of what is kept.

    Raises:
        DatasetError: images differ in size.

    """
    size = subset.image_size(request)
    if size is None:
        raise DatasetError(
            str(subset.path),
            "its images differ in size, so they cannot be cached decoded",
            "pass read_config=ReadConfig(image_size=(height, width)), or cache=False",
        )
    return size


def twins(subset: Subset, request: Request, place: Path) -> Subset:
    """Return the decoded twins of the wanted shards in place of these, made if need be.

    Raises:
        DatasetError: the folder cannot be written to, or a record is bad.

    """
    size = kept_size(subset, request)
    shards = subset.shards
    skips = request.config.on_error != "raise"
    decoder = Decoder(subset.schema, request)

    def decoded(shard: Shard) -> Iterator[tuple[bytes, bytes]]:
        every = [ShardSlice(shard.name, 0, shard.num_records)]
        found = open_records(subset.folder, subset.shards, every, subset.remote)
        whole = replace(subset, slices=every, records=found)
        plain = replace(request, shuffle=False, repeat=False)
        source = make_source(whole, plain)
        good = GoodRecords(source, decoder, request, by="none") if skips else None
        reading = Reading(
            plain, None, good.read if good else None, is_positions=False, is_tagged=skips
        )
        image = good.image if good else decoder.record_and_image
        dataset = records(source, reading).map(image, num_parallel_calls=tf.data.AUTOTUNE)
        for data, pixels in dataset.prefetch(tf.data.AUTOTUNE).as_numpy_iterator():
            yield data, pixels.tobytes()

    made_with = (size, subset.schema.image.encoding, skips)
    folder = folder_cache.cached(place, list(shards.values()), made_with, decoded)
    made = {name: folder_cache.twin(folder, shard) for name, shard in shards.items()}
    slices = [replace(one, shard=made[one.shard].name) for one in subset.slices]
    by_name = {one.name: one for one in made.values()}
    return replace(
        subset,
        folder=folder,
        slices=slices,
        shards=by_name,
        records=open_records(folder, by_name, slices),
        schema=folder_cache.raw_schema(subset.schema, size),
        remote=None,
        is_cache=True,
    )
