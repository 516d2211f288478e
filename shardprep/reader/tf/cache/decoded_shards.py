"""The cache of decoded images in a folder: raw shards, complete or absent, never outdated.

Every shard has a decoded copy, its *twin*: the same records in the same order with raw pixels. The
name of its folder is a hash of the decoding options, and its own name has the SHA-256 of the shard.
Twins have an index and are read like other shards. A twin that is missing or cut is written again.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from shardprep.dataset import example
from shardprep.dataset.folder import index_name
from shardprep.dataset.index import read_index
from shardprep.dataset.manifest import Shard
from shardprep.dataset.schema import IMAGE, MASKS, Schema
from shardprep.dataset.tfrecord import frame
from shardprep.errors import DatasetError, RecordError
from shardprep.reader.decode.annotations import resized_mask
from shardprep.reader.records.open import Subset, open_records
from shardprep.reader.records.records import Places, Records, open_folder
from shardprep.reader.tf.cache.cache_folder import alone, forget, twin_name
from shardprep.reader.tf.cache.memory import CacheProgress
from shardprep.storage.atomic_file import DurableFile, write_durably
from shardprep.storage.space import shortage

_FORMAT = 2
"""Part of the names of folders; another number makes all caches outdated."""
_FRAME_BYTES = 64
"""Bytes per record of framing, its line in the index, and longer lengths."""
_log = logging.getLogger("shardprep.reader")

Decode = Callable[[Records], Iterator[tuple[bytes, bytes]]]
"""Yields (bytes, pixels) of records in order; b"" and any pixels for a bad one."""


def twins(
    subset: Subset, place: Path, size: tuple[int, int] | None, decode: Decode, *, skips: bool
) -> Subset:
    """Return the subset with decoded shards, which are written first if they are missing.

    Another process that wants them waits.

    Args:
        subset: the records.
        place: folder of all caches.
        size: height and width of the images, None if they differ.
        decode: decodes records.
        skips: whether bad records are replaced.

    Raises:
        DatasetError: images differ in size, they do not fit on the disk, the folder cannot be
            written, or a record is bad.

    """
    if size is None:
        raise DatasetError(
            str(subset.dataset),
            "its images differ in size, so they cannot be cached decoded",
            "pass read_config=ReadConfig(image_size=(height, width)), or cache=False",
        )
    key = (_FORMAT, tf.__version__, (size, subset.schema.image.encoding, skips))
    schema = _twin_schema(subset.schema, size)
    folder = place / hashlib.sha256(repr(key).encode()).hexdigest()[:16]
    try:
        _write_missing(folder, subset, schema, decode)
        written = tuple(_twin(folder, shard) for shard in subset.records.shards)
    except OSError as error:
        raise DatasetError(
            str(folder), f"cannot be written ({error.strerror})", "give cache another folder"
        ) from error
    places = subset.records.places._replace(shards=written)
    return _decoded_twin(subset, folder, places, schema)


def small_twin(
    subset: Subset, folder: Path, size: tuple[int, int] | None, decode: Decode
) -> Subset:
    """Return the subset with its records decoded to a single shard in an empty folder."""
    (folder / index_name("x")).parent.mkdir()
    first = subset.records.shards[0]
    schema = _twin_schema(subset.schema, size or (0, 0))
    _write_twin(folder, first, schema, decode(subset.records))
    written = _twin(folder, first).model_copy(update={"num_records": subset.num_records})
    return _decoded_twin(subset, folder, Places.whole(written), schema)


def _decoded_twin(subset: Subset, folder: Path, places: Places, schema: Schema) -> Subset:
    return replace(subset, records=open_folder(folder, places), schema=schema)


def _write_missing(folder: Path, subset: Subset, schema: Schema, decode: Decode) -> None:
    """Write the missing twins, or none if the disk lacks room for all."""
    shards = subset.records.shards
    missing = [shard for shard in shards if not _is_whole(folder, shard)]
    if not missing:
        return
    existing = next(one for one in (folder, *folder.parents) if one.exists())
    if lacking := shortage(existing, _num_bytes(subset, missing, schema.image_size or (0, 0))):
        what = f"the decoded images do not fit: {lacking}"
        raise DatasetError(str(folder.parent), what, "free some, or give cache another folder")
    (folder / index_name("x")).parent.mkdir(parents=True, exist_ok=True)
    with alone(folder):
        missing = [shard for shard in shards if not _is_whole(folder, shard)]
        begin = time.perf_counter()
        number = sum(shard.num_records for shard in missing)
        progress = CacheProgress(number, str(folder))
        try:
            for shard in missing:
                decoded = progress.over(decode(_all_records(subset, shard)))
                _write_twin(folder, shard, schema, decoded)
        except OSError:
            forget(folder, missing)  # part of them would fill a disk that is full
            raise
        if missing:
            seconds = time.perf_counter() - begin
            _log.info("decoded %d images to %s in %.1f s", number, folder, seconds)


def _num_bytes(subset: Subset, shards: list[Shard], size: tuple[int, int]) -> int:
    """Return about the bytes of twins, given that records differ little except in their image."""
    (record,) = subset.records.read(np.zeros(1, np.int64))
    others = _FRAME_BYTES
    with contextlib.suppress(RecordError):  # a bad record is reported when it is decoded
        if not isinstance(record, RecordError):
            images = example.decode(bytes(record)).get(IMAGE, ())
            others += len(record) - sum(len(data) for data in images if isinstance(data, bytes))
    return sum(shard.num_records for shard in shards) * (size[0] * size[1] * 3 + others)


def _all_records(subset: Subset, shard: Shard) -> Records:
    return open_records(subset.dataset, Places.whole(shard), store=subset.records.store)


def _twin_schema(schema: Schema, size: tuple[int, int]) -> Schema:
    """Return the schema of twins: raw pixels, and masks of their size."""
    changed = {IMAGE: schema.image.model_copy(update={"encoding": "raw", "shape": (*size, 3)})}
    for name in schema.annotations.keys() & MASKS:
        changed[name] = schema.features[name].model_copy(update={"shape": (*size, 1)})
    return schema.model_copy(update={"features": {**schema.features, **changed}})


def _twin(folder: Path, shard: Shard) -> Shard:
    """Return a shard's twin in the folder; OSError if it is missing."""
    name = twin_name(shard)
    size = (folder / name).stat().st_size
    return shard.model_copy(update={"name": name, "num_bytes": size})


def _is_whole(folder: Path, shard: Shard) -> bool:
    """Return whether a twin has all records; its index is written last."""
    try:
        read_index(folder, _twin(folder, shard))
    except (DatasetError, OSError):
        return False
    return True


def _twin_record(data: bytes, pixels: bytes, schema: Schema) -> bytes:
    """Return a record with decoded pixels, and masks of their size; `schema` is that of twins."""
    features: dict[str, Any] = {**example.decode(data), IMAGE: (pixels,)}
    for name in schema.annotations.keys() & MASKS:
        features[name] = [resized_mask(mask, schema.image_size) for mask in features[name]]
    return example.encode(features, schema.dtypes)


def _write_twin(
    folder: Path, shard: Shard, schema: Schema, decoded: Iterator[tuple[bytes, bytes]]
) -> None:
    file = DurableFile(folder / twin_name(shard))
    lines: list[str] = []
    offset = 0
    try:
        for data, pixels in decoded:
            # The twin of a bad record is empty, and each reader finds its replacement again.
            try:
                framed = frame(_twin_record(data, pixels, schema) if data else b"")
            except Exception as error:
                where = f"{shard.name}, record {len(lines)}"
                raise RecordError(where, f"a mask cannot be decoded ({error})") from error
            file.write(framed)
            lines.append(f"{offset} {len(framed)}\n")
            offset += len(framed)
        file.commit()
    finally:
        file.abandon()
    write_durably(folder / index_name(twin_name(shard)), "".join(lines).encode())
