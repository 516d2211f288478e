"""The first pass over the pixels of a source, where near copies are looked for before the plan.

Each image is processed as the build will do it, and what would be stored is hashed as `shardprep
report` hashes it: so both find the same near copies, to the bit, and a report of the dataset finds
none of those that were left out. The hashes are kept in the cache of this machine, for a build that
goes on and for others of this source whose stored images are the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shardprep.catalog.items import Item, Items
from shardprep.image.decode import stored_pixels
from shardprep.image.phash import LEAST_SIDE, PHASH, TILE, grey_levels, phashes, tile
from shardprep.image.process import Rejection, process_image
from shardprep.image.spec import ImageSpec
from shardprep.progress import Watcher
from shardprep.recipe.recipe import Recipe, outputs
from shardprep.source.range_reads import read_ahead
from shardprep.storage.array_cache import array_file, keep_arrays, kept_arrays
from shardprep.writer.encode.chunk import ChunkTask, EncodedChunk, Outcome
from shardprep.writer.encode.chunk_encoder import read_item
from shardprep.writer.engine.pool import run_chunks
from shardprep.writer.engine.worker_process import WorkerLimits
from shardprep.writer.plan.fingerprint import fit_version, source_signature, versions
from shardprep.writer.shard import RETRIED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from shardprep.image.phash import Pixels
    from shardprep.image.spec import ImageSpec
    from shardprep.recipe.recipe import Recipe

    Phashes = np.ndarray[Any, Any]
    Keys = np.ndarray[Any, np.dtype[np.uint64]]

_VERSION = 1
"""Version of the kept hashes: another one for other hashes of the same pixels."""
_AT_ONCE = 64
"""Items that a worker hashes at a time, at most."""
_TASKS_A_WORKER = 8
"""Tasks that each worker has at least, where there are items enough."""


@dataclass(frozen=True, slots=True)
class ImageHasher:
    """Hashes items; every worker is given one."""

    spec: ImageSpec

    def __call__(self, task: ChunkTask, before_item: Callable[[], None]) -> EncodedChunk:
        """Return the `PHASH` of each item that has one; its outcome says why another has none."""
        tiles: list[Pixels] = []
        outcomes: list[Outcome] = []
        spans = [item.extent.span for item in task.items]
        for item, _ in zip(task.items, read_ahead(spans), strict=True):
            before_item()
            found = self._tile(item)
            if isinstance(found, Outcome):
                outcomes.append(found)
            else:
                tiles.append(found)
                outcomes.append(Outcome("", "", PHASH.itemsize, 0, 0, "", 0, ""))
        stack = np.array(tiles, np.uint8).reshape(-1, TILE, TILE, 3)
        return EncodedChunk(phashes(stack, grey_levels(stack)).tobytes(), tuple(outcomes))

    def _tile(self, item: Item) -> Pixels | Outcome:
        """Return the tile of what would be stored of an item, or its rejection."""
        data = read_item(item)
        if isinstance(data, Outcome):
            return data
        image = process_image(data, self.spec)
        if isinstance(image, Rejection):
            return Outcome(image.kind, image.reason, 0, 0, 0, "", len(data), "")
        raw_size = (image.height, image.width) if self.spec.format == "raw" else None
        return tile(stored_pixels(image.data, raw_size, LEAST_SIDE))


def hash_images(
    items: Items, spec: ImageSpec, recipe: Recipe, num_workers: int, watcher: Watcher
) -> Phashes:
    """Return the `PHASH` of what would be stored of each item, from the cache if it is there.

    An image that cannot be stored is not `decoded`; the build rejects it with the reason.

    Raises:
        BuildError: many workers die, one after the other.
        SourceError, StorageError: the source cannot be read.

    """
    signature = source_signature(recipe.source, outputs(recipe), follow_links=recipe.follow_links)
    made_by = sorted((versions() | fit_version(spec.fit)).items())
    made_of = f"{_VERSION} {signature} {spec} {made_by}"
    file = array_file("near", hashlib.sha256(made_of.encode()).hexdigest()[:32])
    keys = np.array([_hash_of(key) for key in items.members.keys], np.uint64)
    found, is_known = _kept(file, keys)
    todo = np.flatnonzero(~is_known).tolist()
    if not todo:
        return found
    watcher.start("looking for near copies", len(items), "images", len(items) - len(todo))
    has_affinity = hasattr(os, "sched_getaffinity")  # macOS and Windows do not tell
    num_cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    num_workers = min(num_workers, num_cores, len(todo))
    size = max(1, min(_AT_ONCE, len(todo) // (num_workers * _TASKS_A_WORKER)))
    limits = WorkerLimits.of(recipe.timeout, recipe.max_pixels)
    places = iter(todo)
    try:
        tasks = _tasks(items.take(np.array(todo)), size)
        with contextlib.closing(run_chunks(ImageHasher(spec), tasks, num_workers, limits)) as done:
            for chunk in done:
                hashes = iter(np.frombuffer(chunk.data, PHASH))
                for outcome in chunk.outcomes:
                    i = next(places)
                    is_known[i] = outcome.kind not in RETRIED
                    if not outcome.kind:
                        found[i] = next(hashes)
                num_rejected = sum(bool(outcome.kind) for outcome in chunk.outcomes)
                watcher.advance(len(chunk.outcomes), num_rejected)
    finally:
        _keep(file, keys[is_known], found[is_known])
    return found


def _tasks(items: Sequence[Item], size: int) -> Iterator[ChunkTask]:
    for start in range(0, len(items), size):
        yield ChunkTask("near copies", start, tuple(items[start : start + size]))


def _hash_of(key: str) -> int:
    """Return a hash of the key of an item, 64 bits."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest())


def _kept(file: Path, keys: Keys) -> tuple[Phashes, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Return the hashes of items that are kept under their keys, and whether each is."""
    found, is_known = np.zeros(len(keys), PHASH), np.zeros(len(keys), bool)
    kept = kept_arrays(file) or {}
    there, hashes = kept.get("keys"), kept.get("hashes")
    if there is None or hashes is None or not len(there):
        return found, is_known
    if there.dtype != np.uint64 or hashes.dtype != PHASH or there.shape != hashes.shape:
        return found, is_known
    places = np.searchsorted(there, keys).clip(max=len(there) - 1)
    is_known = there[places] == keys
    found[is_known] = hashes[places[is_known]]
    return found, is_known


def _keep(file: Path, keys: Keys, hashes: Phashes) -> None:
    """Keep hashes of items under their keys, beside those that are kept there already."""
    kept = kept_arrays(file) or {}
    if kept.keys() == {"keys", "hashes"}:
        keys, hashes = np.append(kept["keys"], keys), np.append(kept["hashes"], hashes)
    keys, places = np.unique(keys, return_index=True)
    keep_arrays(file, {"keys": keys, "hashes": hashes[places]})
