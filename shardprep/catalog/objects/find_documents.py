"""Annotation documents of a source: those of many images, and those named as images."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from shardprep.catalog.names import stem
from shardprep.catalog.objects.formats.bounded_read import Text, read_each
from shardprep.catalog.objects.formats.box_format import image_size
from shardprep.catalog.objects.formats.pairing import num_named
from shardprep.catalog.tables.row_matching import KeyIndex
from shardprep.errors import SourceError, some_of
from shardprep.source.byte_range import Extent
from shardprep.source.members import Member

if TYPE_CHECKING:
    from shardprep.catalog.tables.metadata_files import Documents

ENOUGH = 0.5
"""Share of images outside of a test split that a format must list to be recognised."""
NUM_SAMPLES = 16
"""Number of documents that are looked into to recognise a format with one for each image."""
_MOST_SHARED = 64
"""Number of JSON documents that are looked into to find those of many images."""


class Sign(NamedTuple):
    """A format that a source is in."""

    option: str
    """The value of `--boxes` that reads it."""
    how: str
    """The evidence, in one line."""
    num_unlisted: int = 0
    """Number of images without a document, in a format with a document for each image."""


@dataclass(frozen=True, slots=True)
class AnnotatedSource:
    """A source whose boxes are to be read."""

    index: KeyIndex
    documents: Documents
    extents: Sequence[Extent] = ()
    """Extents of the images of the index; () if their sizes need not be known."""
    outlines: bool = False
    """Whether masks are wanted beside boxes."""
    areas: bool = False
    """Whether areas that are no objects are wanted as well: sky, grass."""
    numbers: bool = False
    """Whether objects are wanted as segments of masks of numbers, by their place in the file."""

    def size_of(self, image: int) -> tuple[int, int] | None:
        """Return height and width of an image as it is shown; None if they cannot be told."""
        return image_size(self.extents[image]) if self.extents else None


def shared_documents(
    source: AnnotatedSource,
    files: Sequence[str],
    is_one: Callable[[bytes], bool],
    form: str,
    suffix: str = ".json",
) -> list[str]:
    """Return the given documents of many images, or else all that look like one."""
    if files:
        return list(files)
    found: list[str] = []
    for key, data, fault in shared_texts(source, suffix):
        if fault:
            raise SourceError(key, fault, f"download or pack it again, or use {form}:FILE")
        found += [key] if is_one(data) else []
    if not found:
        there = [member.key for member in source.documents.members(suffix)]
        hint = f"the source has {some_of(there, 3) or f'no {suffix[1:].upper()}'}"
        raise SourceError(f"--boxes {form}", "no document of the source is one", hint)
    return found


def shared_json(source: AnnotatedSource) -> Iterator[Text]:
    """Yield the JSON documents that are not of one image, by their names; of any size."""
    yield from shared_texts(source, ".json")


def shared_texts(source: AnnotatedSource, suffix: str) -> Iterator[Text]:
    """Yield the documents of a suffix that are not of one image, by their names; of any size."""
    stems = {stem(key) for key in source.index.keys}
    shared = [m for m in source.documents.members(suffix) if stem(m.key) not in stems]
    yield from read_each(shared[:_MOST_SHARED], sys.maxsize)


def named_as_images(source: AnnotatedSource, suffix: str) -> list[Member]:
    """Return the members that are named as images."""
    stems = {stem(key) for key in source.index.keys}
    return [member for member in source.documents.members(suffix) if stem(member.key) in stems]


def below(members: Sequence[Member], document: str) -> list[Member]:
    """Return the members that lie in the folder of a document, or deeper."""
    folder = document.rpartition("/")[0]
    return [
        member
        for member in members
        if f"/{member.key}".startswith(f"/{folder}/".replace("//", "/"))
    ]


def by_sample(
    source: AnnotatedSource, members: Sequence[Member], is_one: Callable[[bytes], bool], sign: Sign
) -> list[Sign]:
    """Return the sign of a format with a document for each image, if half have one.

    Some of the documents, spread over all, are looked into.
    """
    named, total = num_named(source.index, [member.key for member in members])
    if not members or named < ENOUGH * total:
        return []
    sample = members[:: max(1, len(members) // NUM_SAMPLES)][:NUM_SAMPLES]
    fit = [not text.fault and is_one(text.data) for text in read_each(sample)]
    if sum(fit) < ENOUGH * len(fit):
        return []
    how = f"{sign.how}: a file for {named:,} of {total:,} images"
    return [Sign(sign.option, how, total - named)]
