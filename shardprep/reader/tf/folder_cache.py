"""The cache of decoded images on disk: raw shards, complete or absent, never stale.

Every shard has its decoded twin: the same records in the same order with the pixels as they are,
in a folder named for the options of decoding, under a name with the shard's SHA-256. Twins are
shards as any other, with an index: reading them, in whatever order, is what reading is without a
cache. A twin that is missing or cut short is made again, alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import tensorflow as tf

from shardprep.dataset import example
from shardprep.dataset.folder import index_name
from shardprep.dataset.index import read_index
from shardprep.dataset.schema import IMAGE
from shardprep.dataset.tfrecord import frame
from shardprep.errors import DatasetError
from shardprep.storage.atomic_file import DurableFile, write_durably

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from shardprep.dataset.manifest import Shard
    from shardprep.dataset.schema import Schema

_FORMAT = 2
_log = logging.getLogger("shardprep.reader")


def cached(
    place: Path,
    shards: list[Shard],
    made_with: object,
    decode: Callable[[Shard], Iterable[tuple[bytes, bytes]]],
) -> Path:
    """Return the folder of the decoded twins of shards, made where they are not there yet.

    Another process that wants them waits until the first has made them.

    Args:
        place: the folder of all caches, made if need be.
        shards: of the dataset.
        made_with: the options of decoding; its `repr` is part of the folder's name.
        decode: gives (bytes, pixels) of each record of a shard, in order; no bytes of a bad one.

    Raises:
        DatasetError: the folder cannot be written to.

    """
    folder = place / _digest(made_with)
    try:
        (folder / index_name("x")).parent.mkdir(parents=True, exist_ok=True)
        if all(_is_whole(folder, shard) for shard in shards):
            return folder
        with _alone(folder / "lock"):
            missing = [shard for shard in shards if not _is_whole(folder, shard)]
            number = sum(shard.num_records for shard in missing)
            begin = time.perf_counter()
            for shard in missing:
                _write_twin(folder, shard, decode(shard))
            if missing:
                seconds = time.perf_counter() - begin
                _log.info("decoded %d images to %s in %.1f s", number, folder, seconds)
    except OSError as error:
        raise DatasetError(
            str(folder), f"cannot be written ({error.strerror})", "give cache another folder"
        ) from error
    return folder


def raw_schema(schema: Schema, size: tuple[int, int]) -> Schema:
    """Return the schema of decoded twins, whose images are of that height and width."""
    update = {"encoding": "raw", "shape": (*size, 3)}
    image = schema.image.model_copy(update=update)
    return schema.model_copy(update={"features": {**schema.features, IMAGE: image}})


def _digest(made_with: object) -> str:
    text = repr((_FORMAT, tf.__version__, made_with))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def twin(folder: Path, shard: Shard) -> Shard:
    """Return a shard's decoded twin, as it lies in the folder of the cache.

    Raises:
        OSError: it is not there.

    """
    name = _twin_name(shard)
    size = (folder / name).stat().st_size
    return shard.model_copy(update={"name": name, "num_bytes": size})


def _twin_name(shard: Shard) -> str:
    return f"{shard.name}.{shard.sha256[:16]}"


def _is_whole(folder: Path, shard: Shard) -> bool:
    """Tell whether a twin is there, with all records: the index is written after it."""
    try:
        read_index(folder, twin(folder, shard))
    except (DatasetError, OSError):
        return False
    return True


def _write_twin(folder: Path, shard: Shard, decoded: Iterable[tuple[bytes, bytes]]) -> None:
    file = DurableFile(folder / _twin_name(shard))
    lines = []
    offset = 0
    try:
        for data, pixels in decoded:
            # The twin of a bad record is empty: what stands in for it, each reader knows.
            framed = frame(
                example.encode({**example.decode(data), IMAGE: (pixels,)}) if data else b""
            )
            file.write(framed)
            lines.append(f"{offset} {len(framed)}\n")
            offset += len(framed)
        file.commit()
    finally:
        file.abandon()
    write_durably(folder / index_name(_twin_name(shard)), "".join(lines).encode())


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process holds the file, then hold it; the hold ends with the process."""
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
