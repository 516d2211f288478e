"""Find near copies among the items of a build; leave them out or keep them in one split.

Each image is processed as in the build, and reduced to a thumbnail as in `shardprep report`, so
that both find the same near copies. A repack uses the stored images. This machine caches the
thumbnails for later builds with the same stored images.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from shardprep.catalog.items import Item, Items
from shardprep.dataset.leak_check import LeakCheck, kept_rank, ratios_like
from shardprep.dataset.schema import Schema
from shardprep.dataset.stored_size import check_stored
from shardprep.errors import OptionName, counted, shown
from shardprep.image.decode import stored_pixels
from shardprep.image.near_pairs import METHOD, Pairs, Thumbnails, joined, near_groups
from shardprep.image.process import Rejection, process_image
from shardprep.image.spec import ImageSpec
from shardprep.image.thumbnail import LEAST_SIDE, THUMBNAIL, thumbnail
from shardprep.machine import usable_cores
from shardprep.processes import WorkerLimits
from shardprep.progress import Watch
from shardprep.recipe.recipe import Recipe
from shardprep.source.listing import Skipped
from shardprep.source.members import StackExtent
from shardprep.source.range_reads import read_ahead
from shardprep.source.string_column import Coded
from shardprep.storage.cache import array_file, keep_arrays, kept_arrays
from shardprep.writer.chunk import ChunkTask, Encode, EncodedChunk, Outcome
from shardprep.writer.chunk_encoder import read_item
from shardprep.writer.engine.job import ItemCounts
from shardprep.writer.engine.pool import run_chunks
from shardprep.writer.plan.fingerprint import fit_version, source_signature, versions
from shardprep.writer.record_encoder import stored_values
from shardprep.writer.shard import RETRIED

Keys = np.ndarray[Any, np.dtype[np.uint64]]

NEAR_COPY = "a near copy of another"
_MOST_SHOWN = 60


@dataclass(frozen=True)
class NearCopies:
    """Items, and the near copies among them."""

    items: Items
    groups: tuple[tuple[int, ...], ...]
    """Ascending item positions of each group, which has at least two items."""

    @classmethod
    def among(cls, items: Items, pairs: Pairs, *, has_scenes: bool) -> NearCopies:
        """Return the near copies among items; with `has_scenes`, also images of the same scene."""
        numbers = near_groups(len(items), pairs[pairs["is_copy"] | has_scenes])
        order = np.argsort(numbers, kind="stable")
        runs = np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)
        return cls(items, tuple(tuple(run.tolist()) for run in runs if len(run) > 1))

    @property
    def digest(self) -> str:
        keys = [[self.items.members.keys[i] for i in group] for group in self.groups]
        return hashlib.sha256(repr(keys).encode()).hexdigest()

    @cached_property
    def _kept_of(self) -> dict[int, int]:
        """Position of each left-out copy → position of the copy that is kept instead.

        Each group keeps its first item in the split with the lowest `kept_rank`.
        """
        kept_of: dict[int, int] = {}
        for group in self.groups:
            kept = min(group, key=lambda i: (kept_rank(self.items[i].split), i))
            kept_of.update((i, kept) for i in group if i != kept)
        return kept_of

    def without(self) -> tuple[Items, list[Skipped]]:
        """Return the items with one copy per group, and the left-out copies as skipped inputs."""
        items, kept_of = self.items, self._kept_of
        skipped = [
            Skipped(items[i].key, NEAR_COPY, items[i].extent.num_bytes, items[kept].key)
            for i, kept in sorted(kept_of.items())
        ]
        return items.take(np.delete(np.arange(len(items)), sorted(kept_of))), skipped

    def together(self) -> Items:
        """Return the items with near copies in one group, so that no split divides them.

        Overlapping groups are merged, and the first name is kept. Without a name, the merged group
        gets the key of its first item.
        """
        items = self.items
        firsts: dict[str, int] = {}
        pairs = [(firsts.setdefault(own, i), i) for i, own in enumerate(items.group) if own]
        pairs += [(group[0], i) for group in self.groups for i in group]
        joints = np.array(pairs, np.int64).reshape(-1, 2)
        root: list[int] = joined(np.arange(len(items)), joints).tolist()
        names = {root[group[0]]: "" for group in self.groups}
        for first, own in zip(root, items.group, strict=True):
            if own and first in names:
                names[first] = names[first] or own
        keys = items.members.keys
        groups = (
            (names[first] or keys[first]) if first in names else own
            for first, own in zip(root, items.group, strict=True)
        )
        return replace(items, group=Coded.of(groups))

    def remarks(self, final: Iterable[Item], *, are_left_out: bool) -> list[str]:
        """Return remarks for the user, a line each; `final` has the items with their new splits."""
        if not self.groups:
            return ["no near copies are found"]
        sizes = [len(group) for group in self.groups]
        if are_left_out:
            targets = [{self.items[i].target for i in group} - {None} for group in self.groups]
            number = sum(len(group) > 1 for group in targets)
            odd = f"; the targets differ in {counted(number, 'group')}" if number else ""
            copies = "copy" if len(self._kept_of) == 1 else "copies"
            kept = counted(len(sizes), "image")
            return [f"left out: {len(self._kept_of):,} near {copies} of {kept}{odd}"]
        text = f"{counted(len(sizes), 'group')} of near copies, {sum(sizes):,} images in all"
        hint = [f"the dataset has one split; {OptionName('split', 'validation=0.1')} divides it"]
        are_parted = len({item.split for item in final}) > 1
        more = self._across(final) if are_parted else hint
        return [f"{text}; the largest has {max(sizes):,}", *more]

    def leak_check(self, final: Iterable[Item], recipe: Recipe) -> LeakCheck:
        """Return the certificate of this search, without the checksum of the records."""
        are_left_out = recipe.dedup == "near"
        own, is_near = recipe.rules.group.text, recipe.rules.group.is_near
        near = ("near copies",) if is_near and not are_left_out else ()
        return LeakCheck(
            method=METHOD,
            kept_together=(*near, *((own,) if own else ())),
            num_images=len(self.items),
            num_groups=len(self.groups),
            num_left_out=len(self._kept_of) if are_left_out else 0,
            num_across=0 if are_left_out else len(self._divided(final)),
        )

    def _divided(self, final: Iterable[Item]) -> list[dict[str, str]]:
        """Return, for each group in several splits: split → key of an image of the group."""
        wanted = {self.items[i].key for group in self.groups for i in group}
        split_of = {first.key: first.split for first in final if first.key in wanted}
        parted: list[dict[str, str]] = []
        for group in self.groups:
            keys = [self.items[i].key for i in group]
            example_of = {split_of[key]: key for key in reversed(keys) if key in split_of}
            parted += [example_of] if len(example_of) > 1 else []
        return parted

    def _across(self, final: Iterable[Item]) -> list[str]:
        parted = self._divided(final)
        if not parted:
            return []
        first, second = (shown(key, _MOST_SHOWN) for key in sorted(parted[0].values())[:2])
        text = f"{len(parted):,} of these are in several given splits, such as {first} and {second}"
        flag = OptionName("split", ratios_like(Counter(item.split for item in final)))
        near = OptionName("dedup", "near")
        return [f"{text}: {flag} divides labelled images again, and {near} leaves copies out"]


_VERSION = 2
"""Version of the cached thumbnails."""
_AT_ONCE = 64
_TASKS_A_WORKER = 8


@dataclass(frozen=True, slots=True)
class ThumbnailMaker:
    """An `Encode` that returns the `THUMBNAIL` of each readable image instead of a record."""

    spec: ImageSpec

    def __call__(self, task: ChunkTask, before_item: Callable[[], None]) -> EncodedChunk:
        found: list[bytes | Outcome] = []
        spans = [item.extent.span for item in task.items]
        for item, _ in zip(task.items, read_ahead(spans), strict=True):
            before_item()
            found.append(self._thumbnail(item))
        return _chunk(found)

    def _thumbnail(self, item: Item) -> bytes | Outcome:
        extent = item.extent
        source = (
            extent.members[len(extent.members) // 2] if isinstance(extent, StackExtent) else item
        )
        data = read_item(source)
        if isinstance(data, Outcome):
            return data
        image = process_image(data, self.spec)
        if isinstance(image, Rejection):
            return Outcome(image.kind, image.reason, 0, 0, 0, "", len(data), "")
        raw_size = (image.height, image.width) if self.spec.format == "raw" else None
        return bytes(thumbnail(stored_pixels(image.data, raw_size, LEAST_SIDE)))


@dataclass(frozen=True, slots=True)
class StoredThumbnailMaker:
    """An `Encode` that returns the `THUMBNAIL` of each image in the records of `ChunkTask.old`."""

    schema: Schema

    def __call__(self, task: ChunkTask, before_item: Callable[[], None]) -> EncodedChunk:
        """Return the thumbnails; RecordError or DatasetError if a record is damaged."""
        found: list[bytes | Outcome] = []
        for item, _, values in stored_values(task, self.schema, before_item):
            before_item()
            images = () if values is None else values[self.schema.image_name]
            image = images[len(images) // 2] if images else b""
            found.append(self._thumbnail(item, image))
        return _chunk(found)

    def _thumbnail(self, item: Item, image: bytes) -> bytes | Outcome:
        is_raw = self.schema.image.encoding == "raw"
        try:
            if not is_raw:
                check_stored(image)
            raw_size = self.schema.image_size if is_raw else None
            return bytes(thumbnail(stored_pixels(image, raw_size, LEAST_SIDE)))
        except (ValueError, OSError) as error:
            return Outcome.unread(item, "undecodable", str(error))


def _chunk(found: Sequence[bytes | Outcome]) -> EncodedChunk:
    outcomes = (
        one if isinstance(one, Outcome) else Outcome("", "", len(one), 0, 0, "", 0, "")
        for one in found
    )
    return EncodedChunk(b"".join(one for one in found if isinstance(one, bytes)), tuple(outcomes))


class ThumbnailSource(NamedTuple):
    """The encoder that makes the thumbnails of items, and the identity of the images."""

    encode: Encode
    mark: str
    """Identity of the images, part of the key of cached thumbnails."""
    old: pa.Table | None = None
    """Row of each item in the item tables of the repacked datasets."""

    @classmethod
    def files(cls, recipe: Recipe, spec: ImageSpec) -> ThumbnailSource:
        mark = f"{source_signature(recipe)} {spec} {sorted(fit_version(spec.fit).items())}"
        return cls(ThumbnailMaker(spec), mark)

    @classmethod
    def records(cls, mark: str, schema: Schema, rows: pa.Table) -> ThumbnailSource:
        columns = ("key", "status", "file", "offset", "length")
        return cls(StoredThumbnailMaker(schema), mark, rows.select(columns))


def make_thumbnails(
    items: Items, source: ThumbnailSource, recipe: Recipe, num_workers: int, watcher: Watch
) -> Thumbnails:
    """Return the `THUMBNAIL` of each item, and cache it; `decoded` is False for bad images."""
    made_of = f"{_VERSION} {source.mark} {sorted(versions().items())}"
    file = array_file("near", hashlib.sha256(made_of.encode()).hexdigest()[:32])
    digests = (hashlib.blake2b(key.encode(), digest_size=8).digest() for key in items.members.keys)
    keys = np.frombuffer(b"".join(digests), ">u8").astype(np.uint64)
    result, is_known = _kept(file, keys)
    todo = np.flatnonzero(~is_known).tolist()
    if not todo:
        return result
    watcher.start("looking for near copies", len(items), "images", len(items) - len(todo))
    num_workers = min(num_workers, usable_cores(), len(todo))
    size = max(1, min(_AT_ONCE, len(todo) // (num_workers * _TASKS_A_WORKER)))
    limits = WorkerLimits.of(recipe.timeout, recipe.max_pixels)
    places = iter(todo)

    def on_chunk(chunk: EncodedChunk) -> None:
        thumbnails = iter(np.frombuffer(chunk.data, THUMBNAIL))
        for outcome in chunk.outcomes:
            i = next(places)
            is_known[i] = outcome.kind not in RETRIED
            if not outcome.kind:
                result[i] = next(thumbnails)
        counts = ItemCounts.of(chunk)
        watcher.advance(counts.num_items, counts.num_rejected)

    parts = (np.array(todo[start : start + size]) for start in range(0, len(todo), size))
    tasks = (
        ChunkTask(
            "near copies",
            int(part[0]),
            items.listed(part),
            None if source.old is None else source.old.take(pa.array(part)),
        )
        for part in parts
    )
    try:
        run_chunks(source.encode, tasks, num_workers, limits, on_chunk)
    finally:
        _keep(file, keys[is_known], result[is_known])
    return result


def _kept(file: Path, keys: Keys) -> tuple[Thumbnails, np.ndarray[Any, np.dtype[np.bool_]]]:
    result, is_known = np.zeros(len(keys), THUMBNAIL), np.zeros(len(keys), bool)
    cached = kept_arrays(file) or {}
    there, found = cached.get("keys"), cached.get("thumbnails")
    if there is None or found is None or not len(there):
        return result, is_known
    if there.dtype != np.uint64 or found.dtype != THUMBNAIL or there.shape != found.shape:
        return result, is_known
    places = np.searchsorted(there, keys).clip(max=len(there) - 1)
    is_known = there[places] == keys
    result[is_known] = found[places[is_known]]
    return result, is_known


def _keep(file: Path, keys: Keys, found: Thumbnails) -> None:
    cached = kept_arrays(file) or {}
    if cached.keys() == {"keys", "thumbnails"}:
        keys, found = np.append(cached["keys"], keys), np.append(cached["thumbnails"], found)
    keys, places = np.unique(keys, return_index=True)
    keep_arrays(file, {"keys": keys, "thumbnails": found[places]})
