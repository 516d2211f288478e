"""Code that annotation formats share: input, reading of documents, and detection.

A shared document describes many images. Other documents describe one image, with the same name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from shardprep.catalog.names import stem
from shardprep.catalog.objects.formats.box_format import image_size
from shardprep.catalog.tables.key_index import KeyIndex
from shardprep.catalog.tables.metadata_files import Documents
from shardprep.errors import OptionName, SourceError, counted, shown, some_of
from shardprep.recipe.object_rules import FormatRule
from shardprep.recipe.options import spelled
from shardprep.source.byte_range import MemberError
from shardprep.source.members import Member
from shardprep.source.names import composed
from shardprep.source.range_reads import read_ahead
from shardprep.storage.text_file import as_utf8

MOST_BYTES = 16 << 20
"""Usual maximum bytes of a document that describes one image."""
MOST_VALUES = 2_000_000
"""Maximum number of values in JSON that is parsed at once; each takes up to 100 bytes."""
NO_CLASSES = ("__ignore__", "_background_")
"""Labels of LabelMe that are not classes; documents of other formats may have them as well."""
DTD_FAULT = "has a document type definition (DTD), which no annotation needs"
_DTD = b"<!DOCTYPE"
ENOUGH = 0.5
"""Minimum share of images outside of test splits that the documents of a format must list."""
_NUM_SAMPLES = 16
_MOST_SHARED = 64
"""Maximum number of shared documents that are searched for a format."""


@dataclass(frozen=True, slots=True)
class Sign:
    """A detected format: boxes, masks or keypoints that the source states."""

    key: str
    """Option that selects the detected objects: "boxes", "masks" or "points"."""
    option: str
    """Value of the option `key`."""
    how: str
    """The evidence, in one line."""
    instances: bool = False
    """True if mask values look like object numbers, which `--instances` keeps apart."""
    num_unlisted: int = 0
    """Number of images outside of test splits that no document or row names."""
    is_unclear: bool = False
    """Whether the user must choose: few images are named, or each image has only one row."""
    has_points: bool = False
    """Whether objects have keypoints, which `--points` with the same value stores."""
    has_outlines: bool = False
    """Whether the objects have outlines other than their boxes."""

    @property
    def has_unlisted(self) -> bool:
        """Whether `--unlisted background` is needed: YOLO has no file for an empty image."""
        return bool(self.num_unlisted) and self.option.partition(":")[0] == "yolo"

    @property
    def options(self) -> dict[str, str | bool]:
        """Options, with values, that store everything that was detected."""
        options: dict[str, str | bool] = {self.key: self.option}
        options |= {"unlisted": "background"} if self.has_unlisted else {}
        options |= {"points": self.option} if self.has_points else {}
        return options | ({"instances": True} if self.instances else {})

    @property
    def flag(self) -> str:
        return spelled(self.options)


@dataclass(frozen=True, slots=True)
class AnnotatedSource:
    """The images and documents of a source, and the facts of objects to read."""

    index: KeyIndex
    documents: Documents
    images: Sequence[Member] = ()
    """Images in the order of the index; () if their sizes are not needed."""
    outlines: bool = False
    """Whether to read polygons, run lengths and segments in addition to boxes."""
    areas: bool = False
    """Whether to read segments that are not objects, such as sky or grass."""
    numbers: bool = False
    """Whether each object gets a segment with its number in the file."""
    keypoints: bool = False
    keeps_crowds: bool = True
    """Whether crowds have the attribute `IS_CROWD`; otherwise they are ordinary objects."""

    def size_of(self, image: int) -> tuple[int, int] | None:
        return image_size(self.images[image].extent) if self.images else None


class Text(NamedTuple):
    """The content of a document, or the reason why it cannot be read."""

    key: str
    data: bytes
    fault: str = ""


def read_each(members: Sequence[Member], most_bytes: int = MOST_BYTES) -> Iterator[Text]:
    """Yield the content of each member in order (JSON as UTF-8), or why it cannot be read."""
    spans = read_ahead([member.extent.span for member in members])
    for member, _ in zip(members, spans, strict=True):
        num_bytes = member.extent.num_bytes
        if num_bytes > most_bytes:
            fault = f"is larger than {most_bytes >> 20} MiB ({num_bytes:,} bytes)"
            yield Text(member.key, b"", fault)
            continue
        try:
            data = member.extent.read()
        except MemberError as error:
            yield Text(member.key, b"", str(error))
            continue
        yield Text(member.key, as_utf8(data) if member.key.lower().endswith(".json") else data)


def sampled(members: Sequence[Member]) -> Sequence[Member]:
    """Return at most 16 of the members, evenly spaced."""
    return members[:: max(1, len(members) // _NUM_SAMPLES)][:_NUM_SAMPLES]


def has_many_values(data: bytes) -> bool:
    """Return whether a JSON document may have more than `MOST_VALUES`; it is not parsed."""
    return data.count(b",") + data.count(b"[") + data.count(b"{") > MOST_VALUES


def has_dtd(data: bytes) -> bool:
    """Return whether XML, also in UTF-16, has a document type definition, which may be hostile."""
    return _DTD in data or (b"\0" in data and _DTD in data.replace(b"\0", b""))


def local_name(tag: str) -> str:
    """Return the name of an XML element without its namespace."""
    return tag.rpartition("}")[2]


def shared_documents(
    source: AnnotatedSource, rule: FormatRule, is_one: Callable[[bytes], bool], suffix: str
) -> list[str]:
    """Return the documents that the rule names, or keys of shared documents that `is_one` accepts.

    SourceError if no document is found, or if a document cannot be read.
    """
    if rule.files:
        return list(rule.files)
    found: list[str] = []
    for key, data, fault in shared_texts(source, suffix, most=None):
        if fault:
            flag = OptionName(rule.option, f"{rule.kind}:FILE")
            raise SourceError(key, fault, f"download or pack it again, or use {flag}")
        found += [key] if is_one(data) else []
    if not found:
        raise no_documents(source, rule.flag, suffix)
    return found


def no_documents(
    source: AnnotatedSource, option: OptionName, suffix: str, stray: str = ""
) -> SourceError:
    """Return the error for a source whose files with a suffix do not have the format of an option.

    `stray` is the key of a file that has the format, but belongs to no image.
    """
    kind = suffix[1:].upper()
    if stray:
        hint = f"give each file the name of its image, such as {shown(source.index.keys[0])}"
        what = f"no {kind} file, such as {shown(stray)}, belongs to an image"
        return SourceError(option, what, hint)
    there = [member.key for member in source.documents.members(suffix)]
    hint = f"use another format: the source has {some_of(there, 3) or f'no {kind}'}"
    return SourceError(option, "no document of the source has this format", hint)


def shared_texts(
    source: AnnotatedSource, suffix: str, most: int | None = _MOST_SHARED
) -> Iterator[Text]:
    """Yield the first `most` shared documents, of any size; None for all documents."""
    named = {member.key for member in named_as_images(source, suffix)}
    shared = [member for member in source.documents.members(suffix) if member.key not in named]
    yield from read_each(shared[:most], sys.maxsize)


def named_as_images(source: AnnotatedSource, suffix: str) -> list[Member]:
    """Return the members with a suffix that have the stem of an image."""
    members = source.documents.members(suffix)
    stems = {stem(key) for key in source.index.keys} if members else set()
    return [member for member in members if stem(member.key) in stems]


def of_own_documents(source: AnnotatedSource, members: Sequence[Member]) -> str:
    """Return FILE:ID of a rule for JSON documents `members` that describe one image each."""
    is_clear = len({stem(one.key) for one in members}) == len(source.documents.members(".json"))
    return "{id}.json:id" if is_clear else "{folder}/{id}.json:{folder}/{id}"


class Coverage(NamedTuple):
    """Number of images outside of test splits that documents name, and of all such images."""

    num_named: int
    num_images: int

    @property
    def is_enough(self) -> bool:
        return self.num_named > 0 and self.num_named >= ENOUGH * self.num_images

    def __str__(self) -> str:
        return f"{self.num_named:,} of {counted(self.num_images, 'image')}"

    def signs(self, sign: Sign) -> list[Sign]:
        """Return `sign` with the number of unnamed images; [] if no image is named."""
        number = self.num_images - self.num_named
        is_unclear = sign.is_unclear or not self.is_enough
        return [replace(sign, num_unlisted=number, is_unclear=is_unclear)] if self.num_named else []


def coverage(index: KeyIndex, names: Iterable[str]) -> Coverage:
    """Return how many images outside of test splits have the stem of one of the names.

    A name without an extension, such as most ids of tables, is a stem.
    """
    stems = {_stem(name) for name in names}
    is_test = index.splits.fit(lambda split: split == "test")
    considered = index.keys if is_test.all() else index.keys.where(~is_test)
    num_named = sum(_stem(key) in stems for key in considered) if stems else 0
    return Coverage(num_named, len(considered))


def _stem(path: str) -> str:
    return stem(path) or composed(path.rpartition("/")[2])


def by_sample(
    source: AnnotatedSource,
    members: Sequence[Member],
    is_one: Callable[[bytes], bool],
    option: str,
    title: str,
) -> tuple[list[Sign], list[bytes]]:
    """Return the `Sign` of a format with a document per image, and the contents of a sample.

    Without a sign if less than half of the sample fits.
    """
    named = coverage(source.index, [member.key for member in members])
    sample = [*read_each(sampled(members))]
    num_fit = sum(not text.fault and is_one(text.data) for text in sample)
    signs = named.signs(Sign("boxes", option, f"{title}: a file for {named}"))
    return signs if num_fit >= ENOUGH * len(sample) else [], [text.data for text in sample]
