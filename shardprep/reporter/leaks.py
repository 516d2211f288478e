"""Find images with a copy in another split, or in another dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from shardprep.dataset.card import Card
from shardprep.dataset.leak_check import Leak, LeakSearch, RecordsSum
from shardprep.dataset.open_dataset import OpenDataset
from shardprep.errors import counted
from shardprep.image.near_pairs import METHOD, changes, near_groups, near_pairs
from shardprep.progress import Watch
from shardprep.reporter.findings.copies import exact_copies, near_copies
from shardprep.reporter.record_columns import Contents, read_contents
from shardprep.reporter.report import measure_contents


def find_leaks(dataset: OpenDataset, watcher: Watch) -> LeakSearch:
    """Return the leaks of a dataset. Decode its images unless their measures are cached."""
    contents = read_contents(dataset)
    measured = measure_contents(contents, watcher)
    groups = (*exact_copies(contents), *near_copies(contents, measured))
    divided = [one for one in groups if one.is_leak]
    leaks = tuple(
        Leak(one.kind, contents.keys_of(one.numbers), _splits(contents, one.numbers), one.changes)
        for one in divided
        if one.kind != "scene"
    )
    certificate, found = dataset.manifest.leaks, list[str]()
    if certificate is not None:
        records = RecordsSum()
        names = ("key", "split", "original_sha256")
        records.add(pa.table({name: contents.written.read(name) for name in names}))
        num_near = sum(one.kind == "near" for one in leaks)
        found += certificate.contradictions(METHOD, records.text, num_near)
    num_images = int(measured.measures["decoded"].sum())
    return LeakSearch(
        num_images,
        len(contents) - num_images,
        leaks,
        len(divided) - len(leaks),
        certificate is not None,
        tuple(found),
    )


def _splits(contents: Contents, numbers: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(contents.splits[code] for code in contents.split[list(numbers)].tolist())


class SharedImage(NamedTuple):
    """An image of the first dataset, and its copy in the second."""

    kind: Literal["exact", "near"]
    """`exact`: the originals have equal bytes; `near`: similar pictures."""
    key: str
    """Key of the image in the first dataset."""
    split: str
    """Split of the image in the first dataset."""
    copy: str
    """Key of the first of its copies in the second dataset."""
    copy_split: str
    """Split of that copy in the second dataset."""
    change: str
    """How the copy differs from the image, in words; "" for exact copies."""


@dataclass(frozen=True, slots=True, repr=False)
class Overlap(Card):
    """The images that two datasets share. If there are any, the command exits with 3."""

    first: str
    """Location of the first dataset."""
    second: str
    """Location of the second dataset."""
    num_first: int
    """Number of compared images of the first dataset."""
    num_second: int
    """Number of compared images of the second dataset."""
    shared: tuple[SharedImage, ...]
    """Images of the first dataset that have a copy in the second, in record order."""

    def facts(self) -> dict[str, Any]:
        return {
            "first": f"{self.first}: {counted(self.num_first, 'image')}",
            "second": f"{self.second}: {counted(self.num_second, 'image')}",
            "in both": [f"{one.key}: {one.copy}" for one in self.shared] or "none",
        }


@dataclass(frozen=True, slots=True)
class ComparedImages:
    """The images of one of two compared datasets, in record order."""

    where: str
    keys: list[str]
    splits: list[str]
    originals: list[str]
    """SHA-256 of each original; "" if unknown."""
    thumbnails: np.ndarray[Any, Any]
    """The `THUMBNAIL` of each image."""


def images_of(dataset: OpenDataset, watcher: Watch) -> ComparedImages:
    """Return the images of a dataset. Decode them unless their measures are cached."""
    contents = read_contents(dataset)
    return ComparedImages(
        str(dataset),
        contents.written.read("key").to_pylist(),
        [contents.splits[code] for code in contents.split.tolist()],
        [one or "" for one in contents.written.read("original_sha256").to_pylist()],
        measure_contents(contents, watcher).measures,
    )


def compare_images(first: ComparedImages, second: ComparedImages) -> Overlap:
    """Return the images of the first dataset that have an exact or near copy in the second."""
    known: dict[str, int] = {}
    for place, original in enumerate(second.originals):
        if original:
            known.setdefault(original, place)
    near, shared = _near(first, second), []
    for place, original in enumerate(first.originals):
        copy = known.get(original)
        kind: Literal["exact", "near"] = "near" if copy is None else "exact"
        copy, change = near.get(place, (None, "")) if copy is None else (copy, "")
        if copy is not None:
            own = first.keys[place], first.splits[place]
            shared.append(SharedImage(kind, *own, second.keys[copy], second.splits[copy], change))
    return Overlap(first.where, second.where, len(first.keys), len(second.keys), tuple(shared))


def _near(first: ComparedImages, second: ComparedImages) -> dict[int, tuple[int, str]]:
    """Return index in `first` → (index of its first near copy in `second`, change or "")."""
    if not second.keys:
        return {}
    number, both = len(first.keys), np.concatenate([first.thumbnails, second.thumbnails])
    pairs = near_pairs(both)
    pairs = pairs[pairs["is_copy"]]
    groups = near_groups(len(both), pairs)
    known, places = np.unique(groups[number:], return_index=True)
    at = np.searchsorted(known, groups[:number]).clip(max=len(known) - 1)
    shared = np.flatnonzero(known[at] == groups[:number])
    near = {one: (int(places[at[one]]), "") for one in shared.tolist()}
    for pair in pairs:
        own, copy = sorted((int(pair["inner"]), int(pair["outer"])))
        if own in near and near[own][0] == copy - number:
            near[own] = (copy - number, changes(both, pair, from_inner=pair["inner"] == own))
    return near
