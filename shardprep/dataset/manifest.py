"""The manifest: the document with the shards, splits, totals and fingerprint of a dataset.

A build writes it last. Nothing in it depends on the time, the number of workers or the path of a
build, so builds with the same recipe, inputs and versions have equal manifests. When a manifest is
read, its names, its own hash and its sums are checked.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from shardprep.dataset import documents
from shardprep.dataset.documents import Count, Document, Name, Sha256, SparseDocument, Version
from shardprep.dataset.leak_check import LeakCheck
from shardprep.dataset.schema import OBJECTS
from shardprep.dataset.tfrecord import FRAME_BYTES
from shardprep.errors import DatasetError, OptionName, counted
from shardprep.storage.regular_file import read_regular
from shardprep.storage.space import megabytes

MANIFEST_FILE = "manifest.json"


class Shard(Document):
    """Name, size and hash of a shard file."""

    name: str
    """File name of the shard."""
    num_records: Count
    num_bytes: Count
    sha256: Sha256


class Split(Document):
    """Counts of one split, and its shards in order."""

    num_records: Count
    num_bytes: Count
    label_counts: dict[str, Count]
    """Number of records by class name, in label order; 0 for classes without a record."""
    num_unlabelled: Count
    shards: tuple[Shard, ...] = Field(min_length=1)


class Totals(Document):
    """Counts of all inputs: written + rejected + skipped = inputs."""

    num_inputs: Count
    num_written: Count
    num_rejected: Count
    num_skipped: Count
    rejected: dict[str, Count]
    """Number of rejected images by kind."""
    skipped: dict[str, Count]
    """Number of skipped inputs by reason."""
    num_copies: Count
    """Number of written images with the same original bytes as an earlier image."""
    num_leaks: Count
    """Number of leaks: images with the same original bytes that are in n splits count n - 1."""
    num_damaged: Count
    """Number of written images that were damaged; `reason` in the item table says how."""
    num_enlarged: Count
    """Number of written images that were enlarged."""
    original_bytes: Count
    """Size in bytes of the originals of all written images."""
    num_bytes: Count
    """Size in bytes of all shards."""

    def reason_of(self, text: str) -> str:
        """Return the key of `skipped` that the reason `text` begins with, else the whole text."""
        known = (one for one in self.skipped if text == one or text.startswith(f"{one}: "))
        return max(known, key=len, default=text)


class Labels(Document):
    """The class names, and the rule that gave the images their labels."""

    names: tuple[str, ...]
    """Class names; a label is an index into them."""
    found_by: str
    num_rows_without_image: Count
    """Number of rows of the label table, and of image names in annotations, that have no image."""
    rows_without_image: tuple[str, ...]
    """Ids of some of these rows, or names of some of these images."""


NO_IMAGE, LEFT_OUT, ELSEWHERE = "no image", "image left out", "document of other images"
"""Reasons why an annotated object has no image in the dataset. `ELSEWHERE`: no image of its
annotation document is in the source."""


class ObjectCounts(Document):
    """Counts of the objects of one split."""

    num_objects: Count
    num_background: Count
    """Number of records without an object."""
    objects: dict[str, Count]
    """Number of objects by class name, in label order; 0 for classes without an object."""
    images: dict[str, Count]
    """Number of records with an object of the class, by class name."""


class MaskCounts(Document):
    """Counts of the class masks of one split."""

    pixels: dict[str, Count]
    """Number of pixels in stored masks by class name, in label order; 0 for unused classes."""
    images: dict[str, Count]
    """Number of records with a pixel of the class, by class name."""
    num_ignored: Count
    """Number of pixels without a class."""
    num_uniform: Count
    """Number of masks with one value, except for ignored pixels on at most half of the mask."""


class PointCounts(Document):
    """Counts of the keypoints of one split."""

    num_labelled: Count
    """Number of stored keypoints that are labelled."""
    num_without: Count
    """Number of objects and images that could have keypoints and have none."""
    lost: dict[str, Count]
    """Number of keypoints that are not stored, by reason."""


class AnnotationCounts(SparseDocument):
    """Counts of the annotations of one split, and of dropped and clipped objects."""

    sparse_keys: ClassVar[frozenset[str]] = frozenset({"points"})

    num_clipped: Count
    """Number of objects whose box was clipped at the edge of the image."""
    dropped: dict[str, Count]
    """Number of dropped objects by reason."""
    objects: ObjectCounts | None
    """Null if the dataset has neither boxes nor masks of objects."""
    masks: MaskCounts | None
    """Null if the dataset has no class masks."""
    points: PointCounts | None = None
    """Left out of a dataset without keypoints."""


class Unmatched(Document):
    """Counts of annotated objects without an image, and of images without an annotation."""

    objects: dict[str, Count]
    """Number of annotated objects without an image in the dataset, by reason."""
    num_unlisted: Count
    """Number of images without an annotation that the build treats as images without objects."""


def unmatched_of(objects: Mapping[str, int], num_unlisted: int) -> Unmatched | None:
    """Return the counts as a document, sorted by reason, or None if all are 0."""
    if not objects and not num_unlisted:
        return None
    return Unmatched(objects=dict(sorted(objects.items())), num_unlisted=num_unlisted)


def united_unmatched(several: Iterable[Unmatched | None]) -> Unmatched | None:
    """Return the sums of the counts of several datasets, or None if all are 0."""
    known = [counts for counts in several if counts is not None]
    objects = sum((Counter(counts.objects) for counts in known), Counter[str]())
    return unmatched_of(objects, sum(counts.num_unlisted for counts in known))


class Fingerprint(Document):
    """The inputs, options and versions that determine the bytes of a dataset."""

    inputs: dict[str, str]
    """Name of each input → a hash that changes with the input."""
    options: dict[str, Any]
    """Options of the recipe that influence the bytes."""
    versions: dict[str, str]
    """Versions of the packages and libraries that influence the bytes."""


REPACKED = "repack"
"""Key in the `versions` of a repacked dataset; its value is the version of shardprep."""


_GIVEN = re.compile(r"items/[0-9a-f]{64}\.\w+")
"""Matches the cached file of a table that was passed as a Python object."""


def fingerprint_differences(one: Fingerprint, two: Fingerprint) -> list[str]:
    """Return the differences between two fingerprints, in words: "quality (90, now 95)".

    If only one dataset was repacked, only options and versions that both have are compared.
    """
    differences = []
    from_dataset = [REPACKED in side.versions for side in (one, two)]
    is_mixed = from_dataset[0] != from_dataset[1]
    if is_mixed:
        was, is_now = ("a dataset" if yes else "a source" for yes in from_dataset)
        differences.append(f"made from ({was}, now {is_now})")
    for section, lacking in (("inputs", ""), ("options", "not given"), ("versions", "not there")):
        before, now = getattr(one, section), getattr(two, section)
        keys = before.keys() | now.keys()
        if is_mixed:  # the repacked dataset records the value that "auto" stood for
            known = before.keys() & now.keys() if section != "inputs" else ()
            keys = {key for key in known if "auto" not in (before[key], now[key])}
        for key in sorted(keys):
            if before.get(key) != now.get(key) and not _GIVEN.fullmatch(key):
                was, is_now = (_shown(key, side.get(key)) or lacking for side in (before, now))
                values = f"{was}, now {is_now}" if lacking and was != is_now else "its content"
                differences.append(f"{key} ({values})")
    return differences


def _shown(key: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, list):
        return "none" if value == "" else _GIVEN.sub("a table of Python", str(value))
    parts = [f"{part:g}" if isinstance(part, float) else str(part) for part in value]
    return ("x".join(reversed(parts)) if key == "size" else ",".join(parts)) or "none"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes >= _LEAST_IN_MB else megabytes(num_bytes)


_LEAST_IN_MB = 50_000
"""Smallest size that is shown in MB; smaller sizes would be 0.0 MB."""


class Manifest(SparseDocument):
    """Contents and origin of a whole dataset."""

    sparse_keys: ClassVar[frozenset[str]] = frozenset(
        {"annotations", "unmatched", "num_rescaled", "num_own_levels", "num_encodings", "leaks"}
    )

    format_version: Literal[1] = 1
    name: Name
    version: Version
    seed: int
    fingerprint: Fingerprint
    labels: Labels
    totals: Totals
    splits: dict[Name, Split] = Field(min_length=1)
    """Splits in the order train, validation, test, then others by name."""
    annotations: dict[Name, AnnotationCounts] = Field(default_factory=dict)
    """Counts of boxes, masks and keypoints by split; left out of a dataset without annotations."""
    unmatched: Unmatched | None = None
    """In a dataset with boxes or masks: annotations without an image, and images without an
    annotation; left out if all counts are 0."""
    num_rescaled: Count = 0
    """Number of written images whose boxes and outlines were scaled, because the annotations state
    another image size; left out if 0."""
    num_own_levels: Count = 0
    """Number of stacks whose black and white come from their own values or windows, so that their
    brightness cannot be compared with other stacks; left out if 0."""
    num_encodings: Count = 0
    """Number of times that stored images were encoded again after the build; each time costs
    quality in JPEG. Left out if 0."""
    leaks: LeakCheck | None = None
    """The search for near copies; left out if the build made none."""
    files: dict[str, Sha256] = Field(default_factory=dict)
    """SHA-256 of `items.parquet` and `schema.json`, in hexadecimal."""
    sha256: str = ""
    """SHA-256, in hexadecimal, of this document with an empty `sha256` and no final newline."""

    @property
    def shards(self) -> dict[str, Shard]:
        return {shard.name: shard for split in self.splits.values() for shard in split.shards}

    def facts(self) -> dict[str, Any]:
        splits = self.splits.values()
        classes = {
            name: sum(split.label_counts.get(name, 0) for split in splits)
            for name in self.labels.names
        }
        totals = self.totals
        lines: dict[str, Any] = {
            "images": {name: split.num_records for name, split in self.splits.items()},
            "classes": classes,
            "objects": sum(
                (Counter(one.objects.objects) for one in self.annotations.values() if one.objects),
                Counter(),
            ),
            "rejected": totals.rejected,
            "written, but damaged": totals.num_damaged,
            "copies across splits": totals.num_leaks,
            "skipped": totals.skipped,
            "dropped objects": sum(
                (Counter(one.dropped) for one in self.annotations.values()), Counter()
            ),
            "clipped objects": sum(one.num_clipped for one in self.annotations.values()),
            "rows without image": self.labels.num_rows_without_image,
            "size": f"{counted(len(self.shards), 'shard')}, {_size(totals.num_bytes)}",
        }
        return {title: value for title, value in lines.items() if value}

    def signed(self) -> Manifest:
        """Return a copy with the `sha256` of its current content."""
        unsigned = self.model_copy(update={"sha256": ""}).model_dump_json(indent=2)
        return self.model_copy(update={"sha256": hashlib.sha256(unsigned.encode()).hexdigest()})

    def dumps(self) -> str:
        return self.signed().text()

    def text(self) -> str:
        return self.model_dump_json(indent=2) + "\n"


def load_manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder; DatasetError if it is missing, damaged or inconsistent."""
    path = folder / MANIFEST_FILE
    try:
        data = read_regular(path, documents.MAX_DOCUMENT_BYTES)
    except FileNotFoundError as error:
        raise DatasetError(
            str(folder),
            f"has no {MANIFEST_FILE}: it is not a finished shardprep dataset",
            "run the build again",
        ) from error
    except OSError as error:
        raise _unreadable(str(path), error.strerror or str(error)) from error
    return parse_manifest(data, str(path))


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Return the parsed manifest; DatasetError if it is malformed or its hash or sums are wrong."""
    manifest = decode_manifest(data, where)
    for what in contradictions(manifest, data):
        raise DatasetError(where, what, _hint())
    return manifest


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Return the parsed manifest, its hash and sums unchecked; DatasetError if it is malformed."""
    try:
        manifest = documents.parse_document(Manifest, data)
    except documents.DocumentError as error:
        raise _unreadable(where, str(error), error.hint) from error
    for name, split in manifest.splits.items():
        count = len(split.shards)
        for i, shard in enumerate(split.shards):
            wanted = documents.shard_name(manifest.name, name, i, count)
            if shard.name != wanted:
                what = f"splits.{name}.shards.{i} is called {shard.name!r}, not {wanted}"
                raise _unreadable(where, what)
    return manifest


def contradictions(manifest: Manifest, data: bytes) -> Iterator[str]:
    """Yield the contradictions in a manifest that was read from `data`, a wrong `sha256` first."""
    if data != manifest.dumps().encode():
        yield "is not what the build wrote: its own SHA-256 differs"
    for name, split in manifest.splits.items():
        for field in ("num_records", "num_bytes"):
            said, total = getattr(split, field), sum(getattr(s, field) for s in split.shards)
            if said != total:
                yield f"splits.{name}.{field} is {said:,}, but its shards have {total:,}"
        for i, shard in enumerate(split.shards):
            if shard.num_records * FRAME_BYTES > shard.num_bytes:
                what = f"{counted(shard.num_records, 'record')} in {shard.num_bytes:,} bytes"
                yield f"splits.{name}.shards.{i} has {what}"
        if tuple(split.label_counts) != manifest.labels.names:
            yield f"splits.{name}.label_counts do not match the classes"
    num_records = {name: split.num_records for name, split in manifest.splits.items()}
    yield from _annotation_contradictions(manifest, num_records)
    totals = manifest.totals
    sums = {
        "num_inputs": totals.num_written + totals.num_rejected + totals.num_skipped,
        "num_written": sum(split.num_records for split in manifest.splits.values()),
        "num_bytes": sum(split.num_bytes for split in manifest.splits.values()),
        "num_rejected": sum(totals.rejected.values()),
        "num_skipped": sum(totals.skipped.values()),
    }
    for field, total in sums.items():
        if getattr(totals, field) != total:
            yield f"totals.{field} is {getattr(totals, field):,}, but its parts have {total:,}"


def _annotation_contradictions(manifest: Manifest, num_records: Mapping[str, int]) -> Iterator[str]:
    total = sum(num_records.values())
    for field in ("num_rescaled", "num_own_levels"):
        if (number := getattr(manifest, field)) > total:
            yield f"{field} is {number:,}, but there are {counted(total, 'image')}"
    if manifest.annotations and [*manifest.annotations] != [*num_records]:
        yield "annotations have other splits than the dataset"
        return
    for split, counts in manifest.annotations.items():
        where, most = f"annotations.{split}", num_records[split]
        if objects := counts.objects:
            total = sum(objects.objects.values())
            if objects.objects and objects.num_objects != total:
                yield f"{where}.{OBJECTS}.num_objects is {objects.num_objects:,}, not {total:,}"
            images = {"background": objects.num_background, **objects.images}
            yield from _too_many(f"{where}.{OBJECTS}", images, most)
        if masks := counts.masks:
            images = {"one value": masks.num_uniform, **masks.images}
            yield from _too_many(f"{where}.masks", images, most)


def _too_many(where: str, images: Mapping[str, int], most: int) -> Iterator[str]:
    for name, count in images.items():
        if count > most:
            yield f"{where} has {counted(count, 'image')} of {name!r}, but its split has {most:,}"


def _unreadable(where: str, what: str, hint: str = "") -> DatasetError:
    return DatasetError(where, f"cannot be read ({what})", hint or _hint())


def _hint() -> str:
    return f"copy the dataset again, or build it again with {OptionName('overwrite')}"
