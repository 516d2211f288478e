"""Find images with a copy in another split, or in another dataset or file of hashes.

The images of two datasets are compared by their thumbnails, so that cropped copies are found too. A
file of hashes has the key, split and `picture_hashes` of each image, 16 bytes: it can be given away
without the images. Such a file finds copies that are not cropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardprep.dataset.card import Card
from shardprep.dataset.item_table import UNREADABLE, bounded_table
from shardprep.dataset.leak_check import Leak, LeakSearch, RecordsSum
from shardprep.dataset.open_dataset import OpenDataset
from shardprep.errors import DatasetError, shown
from shardprep.image.near_pairs import METHOD, changes, near_groups, near_pairs
from shardprep.image.thumbnail import VERSION, Words, near_hashes, picture_hashes
from shardprep.progress import Watch
from shardprep.reporter.findings.copies import exact_copies, near_copies
from shardprep.reporter.record_columns import Contents, read_contents
from shardprep.reporter.report import measure_contents
from shardprep.storage.atomic_file import write_durably
from shardprep.storage.regular_file import read_regular

_HASH_BYTES = 16
_MOST_FILE_BYTES = 1 << 32
_COLUMNS = pa.schema(
    [("key", pa.string()), ("split", pa.string()), ("hash", pa.binary(_HASH_BYTES))]
)
_VERSION = b"shardprep_hash"
"""Key of the metadata that has the version of the hashes."""
_HINT = "write it with shardprep leaks DATASET --save FILE"


def find_leaks(dataset: OpenDataset, watcher: Watch) -> LeakSearch:
    """Return the leaks of a dataset; images are decoded unless this machine has measured them."""
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
    """Split of this copy."""
    change: str
    """How the copy differs from the image, in words; "" for exact copies and files of hashes."""


@dataclass(frozen=True, slots=True, repr=False)
class Overlap(Card):
    """The images that two datasets share. With such images, the command exits with 3."""

    first: str
    """The first dataset or file of hashes."""
    second: str
    """The second dataset or file of hashes."""
    num_first: int
    """Number of images of the first that were compared."""
    num_second: int
    """Number of images of the second that were compared."""
    shared: tuple[SharedImage, ...]
    """The images of the first that have a copy in the second, in their order."""

    def facts(self) -> dict[str, Any]:
        return {
            "first": f"{self.first}: {self.num_first:,} images",
            "second": f"{self.second}: {self.num_second:,} images",
            "in both": [f"{one.key}: {one.copy}" for one in self.shared] or "none",
        }


@dataclass(frozen=True, slots=True)
class ComparedImages:
    """The images of one side of a comparison."""

    where: str
    keys: list[str]
    splits: list[str]
    hashes: Words
    originals: list[str]
    """SHA-256 of each original; "" if unknown."""
    thumbnails: np.ndarray[Any, Any] | None = None
    """The `THUMBNAIL` of each image; None for a file of hashes."""

    def save(self, path: Path) -> None:
        """Write the file of hashes."""
        hashes = pa.array([bytes(one) for one in self.hashes], pa.binary(_HASH_BYTES))
        schema = _COLUMNS.with_metadata({_VERSION: str(VERSION)})
        table = pa.table([pa.array(self.keys), pa.array(self.splits), hashes], schema)
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, sink.getvalue().to_pybytes())


def images_of(dataset: OpenDataset, watcher: Watch) -> ComparedImages:
    """Return the images of a dataset; they are decoded unless this machine has measured them."""
    contents = read_contents(dataset)
    thumbnails = measure_contents(contents, watcher).measures
    return ComparedImages(
        str(dataset),
        contents.written.read("key").to_pylist(),
        [contents.splits[code] for code in contents.split.tolist()],
        picture_hashes(thumbnails["grey"]),
        [one or "" for one in contents.written.read("original_sha256").to_pylist()],
        thumbnails,
    )


def read_hashes(path: Path) -> ComparedImages:
    """Return the images in a file of hashes; DatasetError if it is not one."""
    try:
        data = read_regular(path, _MOST_FILE_BYTES)
    except OSError as error:
        raise DatasetError(str(path), f"cannot be read ({error.strerror or error})") from error
    try:
        file = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
        table = bounded_table(file, len(data), _COLUMNS.names).cast(_COLUMNS)
    except (*UNREADABLE, KeyError, ValueError) as error:
        raise DatasetError(str(path), "is not a file of hashes", _HINT) from error
    version = (file.schema_arrow.metadata or {}).get(_VERSION, b"").decode(errors="replace")
    if version != str(VERSION):
        stated = f"of version {shown(version)}" if version else "without a version"
        what = f"has hashes {stated}, but version {VERSION} is compared"
        raise DatasetError(str(path), what, _HINT)
    if any(column.null_count for column in table.columns):
        raise DatasetError(str(path), "lacks keys, splits or hashes", _HINT)
    keys, splits = table["key"].to_pylist(), table["split"].to_pylist()
    joined = b"".join(table["hash"].to_pylist())
    hashes = np.frombuffer(joined, np.uint64).reshape(-1, 2)
    return ComparedImages(str(path), keys, splits, hashes, [""] * len(keys))


def compare_images(first: ComparedImages, second: ComparedImages) -> Overlap:
    """Return the images of the first that have a copy in the second."""
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
    counts = len(first.keys), len(second.keys)
    return Overlap(first.where, second.where, *counts, tuple(shared))


def _near(first: ComparedImages, second: ComparedImages) -> dict[int, tuple[int, str]]:
    """Return position in `first` → position of its first copy in `second`, and how that differs."""
    if first.thumbnails is None or second.thumbnails is None:
        pairs = near_hashes(first.hashes, second.hashes)[::-1].tolist()
        return {one: (other, "") for one, other in pairs}
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
