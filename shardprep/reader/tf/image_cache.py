"""The cache of decoded images, in memory or in a folder, and the choice of `cache="auto"`.

In a folder, every shard has a decoded copy, its *twin*: the same records in the same order with raw
pixels. Twins are complete or absent, never outdated. The folder of twins is named with a hash of
the decoding options, and a twin with the name of its shard and the start of the shard's SHA-256.
Twins have an index and are read like other shards. A missing or truncated twin is written again.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from shardprep.dataset import example
from shardprep.dataset.folder import INDEX_DIR, index_name
from shardprep.dataset.local_files import read_index
from shardprep.dataset.manifest import Shard
from shardprep.dataset.schema import IMAGE, MASK, MASKS, OBJECT_MASK, TARGET_IMAGE, Schema
from shardprep.dataset.tfrecord import frame
from shardprep.errors import BusyError, DatasetError, RecordError, counted
from shardprep.machine import free_bytes
from shardprep.reader.array_types import Columns
from shardprep.reader.arrays.team import Begun, Team
from shardprep.reader.config import Request
from shardprep.reader.decode.annotations import resized_mask
from shardprep.reader.decode.features import ExampleReader, FeatureDecoder
from shardprep.reader.decode.targets import element_names
from shardprep.reader.records.records import Places, Records, open_folder
from shardprep.reader.records.subset import Subset, open_records
from shardprep.storage.atomic_file import DurableFile, write_durably
from shardprep.storage.lock import take
from shardprep.storage.space import shortage

_FORMAT = 3
"""Part of the hash in folder names; a new value makes all existing caches outdated."""
_FRAME_BYTES = 64
"""Estimated bytes of a record for its frame, its line in the index, and longer length fields."""
_FOLDER = re.compile(r"[0-9a-f]{16}")
_FILE = re.compile(r".+\.[0-9a-f]{16}(\.idx)?(\.tmp)?")
"""Name of a twin or its index, complete or not."""
_LOCK = "lock"
_SECONDS_A_LINE = 5.0
_log = logging.getLogger("shardprep.reader")
_MOST_ROWS, _FEW_ROWS = 64, 8
_BYTES_A_TURN = 4 << 20
"""Maximum size of the images of a batch that fills a cache; at least one image."""
Note = Callable[[Records, int, RecordError], None]
"""Called for each bad record with the records, its number in them, and its error."""


def cache_of(subset: Subset, request: Request) -> str:
    """Return "memory", a folder, or "" for no cache; for cache="auto", log the choice."""
    if request.cache != "auto":
        return str(request.cache or "")
    config, needed = request.config, decoded_bytes(subset, request)
    if needed is None:
        what = "stacks differ in length" if subset.schema.is_stack else "images differ in size"
        _log.info("cache: none, its %s", what)
        return ""
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


def decoded_bytes(subset: Subset, request: Request) -> int | None:
    """Return the size of all decoded images and masks, or None if the images differ in size."""
    size = subset.image_size(request)
    if size is None or subset.schema.is_stack:
        return None
    return int(subset.num_records * size[0] * size[1] * _bytes_per_pixel(subset, request))


def _bytes_per_pixel(subset: Subset, request: Request) -> float:
    """Return the bytes of a decoded record with its masks, per pixel of the image."""
    names = element_names(subset.schema, as_supervised=request.as_supervised)
    num_bytes = 3.0
    if MASK in names:
        num_bytes += np.dtype(subset.schema.features[MASK].pixel_dtype).itemsize
    num_bytes += 3 * (TARGET_IMAGE in names)
    if OBJECT_MASK in names:
        manifests = [one.manifest for one in subset.datasets.opened]
        counts = [one.objects for manifest in manifests for one in manifest.annotations.values()]
        num_objects = sum(one.num_objects for one in counts if one)
        splits = [split for manifest in manifests for split in manifest.splits.values()]
        num_records = sum(split.num_records for split in splits)
        num_bytes += request.max_boxes or num_objects / num_records
    return num_bytes


def twins(subset: Subset, place: Path, decoder: FeatureDecoder, note: Note | None) -> Subset:
    """Return the subset with decoded copies of its shards, after writing the missing copies.

    `place` is the folder of all caches. If another process writes copies with these options, this
    one waits for it. `note` gets the bad records, which readers replace; without it, the first
    error is raised. DatasetError if images differ in size, or if twins cannot be written.
    """
    size = decoder.image_size
    if size is None:
        raise DatasetError(
            str(subset.datasets),
            "its images differ in size, so they cannot be cached decoded",
            "pass read_config=ReadConfig(image_size=(height, width)), or cache=False",
        )
    key = (_FORMAT, (size, subset.schema.image.encoding, note is not None))
    schema = subset.schema.with_images(size, "raw")
    folder = place / hashlib.sha256(repr(key).encode()).hexdigest()[:16]
    try:
        _write_missing(folder, subset, decoder, note)
        written = tuple(_twin(folder, shard) for shard in subset.records.shards)
    except OSError as error:
        raise DatasetError(
            str(folder), f"cannot be written ({error.strerror})", "give cache another folder"
        ) from error
    places = subset.records.places._replace(shards=written)
    return replace(subset, records=open_folder(folder, places), schema=schema)


def _write_missing(
    folder: Path, subset: Subset, decoder: FeatureDecoder, note: Note | None
) -> None:
    """Write the missing twins; before that, raise DatasetError if there is too little space."""
    size = decoder.image_size or (0, 0)
    schema = subset.schema.with_images(size, "raw")
    shards = subset.records.shards
    missing = [shard for shard in shards if not _is_whole(folder, shard)]
    if not missing:
        return
    existing = next(one for one in (folder, *folder.parents) if one.exists())
    if lacking := shortage(existing, _num_bytes(subset, missing, size)):
        what = f"the decoded images do not fit: {lacking}"
        raise DatasetError(str(folder.parent), what, "free some space, or give another folder")
    (folder / INDEX_DIR).mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        missing = [shard for shard in shards if not _is_whole(folder, shard)]
        begin = time.perf_counter()
        number = sum(shard.num_records for shard in missing)
        progress = CacheProgress(number, str(folder))
        try:
            for shard in missing:
                places = Places.whole(shard)
                records = open_records(subset.datasets.only, places, store=subset.records.store)
                _write_twin(folder, shard, _twin_records(records, decoder, schema, note), progress)
        except OSError:
            _remove(folder, missing)  # complete twins would keep the disk full
            raise
        if missing:
            seconds = time.perf_counter() - begin
            _log.info("decoded %d images to %s in %.1f s", number, folder, seconds)


def _num_bytes(subset: Subset, shards: list[Shard], size: tuple[int, int]) -> int:
    """Return the estimated bytes of twins; reads one record for the size of other features."""
    (record,) = subset.records.read(np.zeros(1, np.int64))
    others = _FRAME_BYTES
    with contextlib.suppress(RecordError):  # a bad record is reported when it is decoded
        if not isinstance(record, RecordError):
            images = example.decode(bytes(record)).get(IMAGE, ())
            others += len(record) - sum(len(data) for data in images if isinstance(data, bytes))
    return sum(shard.num_records for shard in shards) * (size[0] * size[1] * 3 + others)


def _twin_name(shard: Shard) -> str:
    return f"{shard.name}.{shard.sha256[:16]}"


def _twin(folder: Path, shard: Shard) -> Shard:
    """Return a manifest entry for the twin of a shard. OSError if the twin is missing."""
    name = _twin_name(shard)
    size = (folder / name).stat().st_size
    return shard.model_copy(update={"name": name, "num_bytes": size})


def _is_whole(folder: Path, shard: Shard) -> bool:
    """Return True if a twin is complete: its index, which is written last, matches it."""
    try:
        read_index(folder, _twin(folder, shard))
    except (DatasetError, OSError):
        return False
    return True


def _twin_records(
    records: Records, decoder: FeatureDecoder, schema: Schema, note: Note | None
) -> Iterator[bytes]:
    """Yield the framed records of a twin in order: raw pixels, and masks resized to the image size.

    With `note`, a bad record becomes an empty record, which each reader replaces itself.
    """
    examples, (height, width) = ExampleReader(records, decoder), decoder.image_size or (0, 0)
    masks = schema.annotations.keys() & MASKS

    def framed(payload: memoryview) -> bytes:
        columns = decoder.columns(1)
        columns[IMAGE] = np.empty((1, height, width, 3), np.uint8)
        decoder.fill(payload, columns, 0, 0)
        features: dict[str, Any] = example.decode(bytes(payload))
        features[IMAGE] = (columns[IMAGE].tobytes(),)
        try:
            for name in masks:
                features[name] = [resized_mask(one, decoder.image_size) for one in features[name]]
        except Exception as error:
            raise ValueError(f"a mask cannot be decoded ({error})") from error
        return frame(example.encode(features, schema.dtypes))

    def framed_or_empty(number: int, read: memoryview | RecordError) -> bytes:
        if isinstance(read, RecordError):
            error: Exception = read
        else:
            try:
                return framed(read)
            except Exception as raised:
                error = examples.error_of(number, raised)
        if note is None or not isinstance(error, RecordError):
            raise error
        note(records, number, error)
        return frame(b"")

    def several(numbers: range) -> list[bytes]:
        every = records.read(np.array(numbers, np.int64))
        return [framed_or_empty(*pair) for pair in zip(numbers, every, strict=True)]

    return chain.from_iterable(records.map_ranges(several, turn_of(decoder.image_size)))


def _write_twin(
    folder: Path, shard: Shard, framed: Iterator[bytes], progress: CacheProgress
) -> None:
    file = DurableFile(folder / _twin_name(shard))
    lines: list[str] = []
    offset = 0
    try:
        for one in framed:
            file.write(one)
            lines.append(f"{offset} {len(one)}\n")
            offset += len(one)
            progress.add(1)
        file.commit()
    finally:
        file.abandon()
    write_durably(folder / index_name(_twin_name(shard)), "".join(lines).encode())


def turn_of(size: tuple[int, int] | None) -> int:
    """Return the batch size for filling a cache; `size` is None if images differ in size."""
    if size is None:
        return _FEW_ROWS
    return min(_MOST_ROWS, max(1, _BYTES_A_TURN // (size[0] * size[1] * 3)))


class CacheProgress:
    """Progress of filling a cache: in the log at level INFO, on stderr at level WARNING."""

    def __init__(self, total: int, place: str) -> None:
        self._total = total
        self._place = place
        self._done = 0
        self._begin = time.monotonic()
        self._next = self._begin + _SECONDS_A_LINE

    def add(self, number: int) -> None:
        """Count `number` more images as done; show a line about every 5 seconds."""
        self._done += number
        if time.monotonic() < self._next:
            return
        self._next += _SECONDS_A_LINE
        left = (time.monotonic() - self._begin) * (self._total - self._done) / self._done
        line = (
            f"cache: {self._done:,} of {counted(self._total, 'image')} decoded to {self._place}, "
            f"about {left:.0f} s left"
        )
        level = _log.getEffectiveLevel()
        if level <= logging.INFO:
            _log.info(line)
        elif level <= logging.WARNING:
            sys.stderr.write(f"{line}\n")


@contextlib.contextmanager
def _locked(folder: Path, *, waits: bool = True) -> Iterator[None]:
    """Hold the lock of a folder of twins. Without `waits`, BusyError if the lock is taken."""
    with (folder / _LOCK).open("wb") as file:
        try:
            is_held = take(file.fileno(), waits=waits)
        except BlockingIOError:
            hint = "try again when that process has ended"
            raise BusyError(str(folder), "another process is writing this cache", hint) from None
        if not is_held:
            hint = "use another disk, or cache='memory'" if waits else "remove it by hand"
            raise DatasetError(str(folder), "cannot be locked on this disk or system", hint)
        yield


def _remove(folder: Path, shards: Iterable[Shard]) -> None:
    """Delete twins, and the folder if it has no other twin. The caller holds the lock."""
    for shard in shards:
        (folder / _twin_name(shard)).unlink(missing_ok=True)
        (folder / index_name(_twin_name(shard))).unlink(missing_ok=True)
    if not any(_FILE.fullmatch(path.name) for path in folder.iterdir()):
        _remove_empty(folder)


def memory_cache(team: Team, decoder: FeatureDecoder, number: int, size: int) -> Columns:
    """Return decoded values of `number` records, filled in batches of `size`; close the team."""
    cached = decoder.columns(number)
    if decoder.image_shape is not None:
        cached[decoder.image_name] = np.empty((number, *decoder.image_shape), decoder.dtype)
    progress = CacheProgress(number, "memory")
    begun = deque[tuple[range, Begun]]()
    with contextlib.closing(team):
        for start in range(0, number, size):
            begun.append((range(number)[start : start + size], team.begin((0, start // size))))
            if len(begun) > team.num_ahead:
                _keep(cached, progress, *begun.popleft())
        while begun:
            _keep(cached, progress, *begun.popleft())
    return cached


def _keep(cached: Columns, progress: CacheProgress, rows: range, begun: Begun) -> None:
    for name, values in begun.result().items():
        if isinstance(values, list):  # arrays of any shape, which NumPy would make one
            for row, value in zip(rows, values, strict=True):
                cached[name][row] = value
        else:
            cached[name][rows.start : rows.stop] = values
    progress.add(len(rows))


def clear(place: Path) -> int:
    """Delete all twins in `place`; return the bytes freed. Errors as in `reader.clear_cache`."""
    if not place.is_dir():
        raise DatasetError(str(place), "no such folder", "give the folder that load got as cache=")
    num_bytes = 0
    for folder in place.iterdir():
        if _FOLDER.fullmatch(folder.name) and (folder / _LOCK).is_file():
            try:
                num_bytes += _clear(folder)
            except OSError as error:
                what = f"cannot be removed ({error.strerror})"
                raise DatasetError(str(folder), what, "remove it by hand") from error
    return num_bytes


def _clear(folder: Path) -> int:
    num_bytes = 0
    with _locked(folder, waits=False):
        for path in (*folder.iterdir(), *(folder / INDEX_DIR).glob("*")):
            if _FILE.fullmatch(path.name) and path.is_file():
                num_bytes += path.lstat().st_size
                path.unlink()
        _remove_empty(folder)
    return num_bytes


def _remove_empty(folder: Path) -> None:
    (folder / _LOCK).unlink()
    with contextlib.suppress(OSError):  # other files are in it
        (folder / INDEX_DIR).rmdir()
        folder.rmdir()
