"""The cache of decoded images in a folder: raw shards, complete or absent, never stale.

Every shard has a decoded twin: the same records in the same order with the pixels as they are,
in a folder named for the options of decoding, under a name with the shard's SHA-256. Twins are
shards with an index, read as any other. A twin that is missing or cut short is made again, alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from shardprep.dataset import example
from shardprep.dataset.folder import index_name
from shardprep.dataset.index import read_index
from shardprep.dataset.schema import IMAGE, MASKS
from shardprep.dataset.tfrecord import frame
from shardprep.errors import DatasetError, RecordError
from shardprep.reader.decode.annotations import resized_mask
from shardprep.reader.records.open import open_records
from shardprep.reader.records.positions import Places
from shardprep.reader.records.records import open_folder
from shardprep.reader.tf.bad_records import GoodRecords
from shardprep.reader.tf.cache.cache_folder import alone, forget, twin_name
from shardprep.reader.tf.cache.memory import Progress
from shardprep.reader.tf.decode import Decoder
from shardprep.reader.tf.parallelism import ahead, image_calls, untuned
from shardprep.reader.tf.python_calls import one_pipeline
from shardprep.reader.tf.records import Reading
from shardprep.storage.atomic_file import DurableFile, write_durably
from shardprep.storage.space import shortage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardprep.dataset.manifest import Shard
    from shardprep.dataset.schema import Schema
    from shardprep.reader.config import Request
    from shardprep.reader.records.open import Subset

_FORMAT = 2
"""Number in the names of folders; another one makes all caches anew."""
_FRAME_BYTES = 64
"""Bytes of the frame of a record, its line in the index, and of lengths that have more digits."""
_log = logging.getLogger("shardprep.reader")


def twins(subset: Subset, request: Request, place: Path) -> Subset:
    """Return the decoded twins of the wanted shards in place of these, made if need be.

    Another process that wants them waits until the first has made them. `place` is the folder of
    all caches.

    Raises:
        DatasetError: images differ in size, they do not fit on the disk, the folder cannot be
            written to, or a record is bad.

    """
    size = subset.image_size(request)
    if size is None:
        raise DatasetError(
            str(subset.dataset),
            "its images differ in size, so they cannot be cached decoded",
            "pass read_config=ReadConfig(image_size=(height, width)), or cache=False",
        )
    skips = request.config.on_error != "raise"
    made_with = (_FORMAT, tf.__version__, (size, subset.schema.image.encoding, skips))
    schema = _twin_schema(subset.schema, size)
    folder = place / hashlib.sha256(repr(made_with).encode()).hexdigest()[:16]
    try:
        _make(folder, subset, request, schema)
        made = {shard.name: _twin(folder, shard) for shard in subset.records.shards}
    except OSError as error:
        raise DatasetError(
            str(folder), f"cannot be written ({error.strerror})", "give cache another folder"
        ) from error
    places = subset.records.places
    places = places._replace(shards=tuple(made[one.name] for one in places.shards))
    return _decoded_twin(subset, folder, places, schema)


def small_twin(subset: Subset, request: Request, folder: Path) -> Subset:
    """Return the decoded twin of the wanted records alone, one shard in a folder that is empty."""
    (folder / index_name("x")).parent.mkdir()
    first = subset.records.shards[0]
    schema = _twin_schema(subset.schema, subset.image_size(request) or (0, 0))
    _write_twin(folder, first, schema, _decoded(subset, request))
    made = _twin(folder, first).model_copy(update={"num_records": subset.num_records})
    return _decoded_twin(subset, folder, Places.whole(made), schema)


def _decoded_twin(subset: Subset, folder: Path, places: Places, schema: Schema) -> Subset:
    """Return the subset that reads records of raw shards in place of its own."""
    return replace(
        subset,
        records=open_folder(folder, places),
        schema=schema,
    )


def _make(folder: Path, subset: Subset, request: Request, schema: Schema) -> None:
    """Make the missing twins, of that schema; none, where the disk has no room for all."""
    shards = subset.records.shards
    missing = [shard for shard in shards if not _is_whole(folder, shard)]
    if not missing:
        return
    there = next(one for one in (folder, *folder.parents) if one.exists())
    if lacking := shortage(there, _num_bytes(subset, missing, schema.image_size or (0, 0))):
        what = f"the decoded images do not fit: {lacking}"
        raise DatasetError(str(folder.parent), what, "free some, or give cache another folder")
    (folder / index_name("x")).parent.mkdir(parents=True, exist_ok=True)
    with alone(folder):
        missing = [shard for shard in shards if not _is_whole(folder, shard)]
        begin = time.perf_counter()
        number = sum(shard.num_records for shard in missing)
        progress = Progress(number, str(folder))
        try:
            for shard in missing:
                whole = _whole(subset, shard)
                _write_twin(folder, shard, schema, progress.over(_decoded(whole, request)))
        except OSError:
            forget(folder, missing)  # a part of them would fill a disk that is full
            raise
        if missing:
            seconds = time.perf_counter() - begin
            _log.info("decoded %d images to %s in %.1f s", number, folder, seconds)


def _num_bytes(subset: Subset, shards: list[Shard], size: tuple[int, int]) -> int:
    """Return about the bytes of the twins of shards: what lies beside an image is as in one."""
    (record,) = subset.records.read(np.zeros(1, np.int64))
    beside = _FRAME_BYTES
    with contextlib.suppress(RecordError):  # a bad one is told of when its turn comes
        if not isinstance(record, RecordError):
            images = example.decode(bytes(record)).get(IMAGE, ())
            beside += len(record) - sum(len(one) for one in images if isinstance(one, bytes))
    return sum(one.num_records for one in shards) * (size[0] * size[1] * 3 + beside)


def _whole(subset: Subset, shard: Shard) -> Subset:
    """Return all records of a shard, in order."""
    store = subset.records.store
    return replace(subset, records=open_records(subset.dataset, Places.whole(shard), store=store))


def _decoded(subset: Subset, request: Request) -> Iterator[tuple[bytes, bytes]]:
    """Yield (bytes, pixels) of each record of a subset, in order; no bytes of a bad one."""
    plain = replace(request, shuffle=False, repeat=False, batch_size=None)
    subset = replace(subset, draws=None)
    reading = Reading(subset, subset.order(plain), plain)
    decoder = Decoder(subset.schema, request)
    with one_pipeline():
        if request.config.on_error == "raise":
            dataset = reading.records().map(decoder.record_and_image, image_calls(plain))
        else:
            good = GoodRecords(subset, decoder, request, by="none")
            dataset = reading.records(good.read).map(good.image, image_calls(plain))
    for data, pixels in ahead(dataset.with_options(untuned()), plain).as_numpy_iterator():
        yield data, pixels.tobytes()


def _twin_schema(schema: Schema, size: tuple[int, int]) -> Schema:
    """Return the schema of twins: raw pixels, and masks of their size."""
    changed = {IMAGE: schema.image.model_copy(update={"encoding": "raw", "shape": (*size, 3)})}
    for name in schema.annotations.keys() & MASKS:
        changed[name] = schema.features[name].model_copy(update={"shape": (*size, 1)})
    return schema.model_copy(update={"features": {**schema.features, **changed}})


def _twin(folder: Path, shard: Shard) -> Shard:
    """Return a shard's twin in the folder; OSError where there is none."""
    name = twin_name(shard)
    size = (folder / name).stat().st_size
    return shard.model_copy(update={"name": name, "num_bytes": size})


def _is_whole(folder: Path, shard: Shard) -> bool:
    """Tell whether a twin is there, with all records: the index is written after it."""
    try:
        read_index(folder, _twin(folder, shard))
    except (DatasetError, OSError):
        return False
    return True


def _twin_record(data: bytes, pixels: bytes, schema: Schema) -> bytes:
    """Return a record with decoded pixels, and masks of their size; `schema` is that of twins."""
    features: dict[str, Any] = {**example.decode(data), IMAGE: (pixels,)}
    for name in schema.annotations.keys() & MASKS:
        features[name] = [resized_mask(one, schema.image_size) for one in features[name]]
    return example.encode(features, schema.dtypes)


def _write_twin(
    folder: Path, shard: Shard, schema: Schema, decoded: Iterator[tuple[bytes, bytes]]
) -> None:
    file = DurableFile(folder / twin_name(shard))
    lines: list[str] = []
    offset = 0
    try:
        for data, pixels in decoded:
            # The twin of a bad record is empty: each reader finds the record in its place anew.
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
