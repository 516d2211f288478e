"""Pascal VOC: an XML file for each image, and lists of the splits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from shardprep.catalog.names import given_split, stem
from shardprep.catalog.objects.formats.pairing import Pairing
from shardprep.catalog.objects.formats.voc_file import NotVocError, VocError, VocFile, parse_voc
from shardprep.catalog.objects.object_table import MALFORMED, ObjectTable
from shardprep.catalog.objects.parsed import Found
from shardprep.catalog.tables.row_matching import AmbiguousIdError, KeyIndex
from shardprep.errors import SourceError, counted, some_of
from shardprep.image.annotation_types import Segment
from shardprep.recipe.object_rules import BoxColumns
from shardprep.storage.text_file import decoded

if TYPE_CHECKING:
    from shardprep.catalog.objects.formats.bounded_read import Text

SPLIT_LISTS = "ImageSets/Main/"
"""Folder of the lists of images of each split."""
_ANNOTATIONS = "Annotations/"
_NO_BOX = (math.nan,) * 4
_ORDER = ("test", "validation", "train")
"""Splits, the first of which counts where several lists name an image."""


def read_voc(
    documents: Iterable[Text],
    index: KeyIndex,
    lists: Iterable[tuple[str, bytes]] = (),
    *,
    numbers: bool = False,
) -> Found:
    """Return the objects of all files, boxes as they are written; classes in natural order.

    A file belongs to the image of its own name beside it or in a folder of images, or else to the
    one that it states. XML of other kinds is passed over.

    Args:
        documents: XML files.
        index: the images.
        lists: key and bytes of the lists of the splits, `ImageSets/Main/train.txt`.
        numbers: give each object its number, from 1, as its segment; one without a box stays.

    Raises:
        SourceError: two files belong to one image, or none to any.

    """
    pairing, table = Pairing(index), ObjectTable(len(index.keys))
    read: list[str] = []
    missing: dict[str, int] = {}
    unreadable: list[str] = []
    findings: list[str] = []
    for key, content in _parsed(documents):
        read.append(key)
        image = _image(pairing, key, content)
        if image is not None:
            pairing.claim(image, key)
            _add(table, image, key, content, numbers=numbers)
        elif isinstance(content, str):
            unreadable.append(f"{key} {content}")
            missing[key] = 0
        else:
            missing[key] = len(content.names)
    if not pairing.documents:
        what = "none is named as an image" if read else "none has the root 'annotation'"
        raise SourceError("--boxes voc", f"of the XML files of the source {what}")
    names, labels = table.natural_names()
    if unreadable:
        findings.append(f"XML files cannot be read and have no image: {some_of(unreadable)}")
    splits = list_splits(lists, index, findings)
    return Found(
        annotations=table.annotations(labels),
        names=names,
        how=f"Pascal VOC, {counted(len(pairing.documents), 'XML file')}; boxes as written",
        documents=tuple(read),
        without_image=missing,
        notation=BoxColumns(("xmin", "ymin", "xmax", "ymax"), "xyxy"),
        splits=splits if any(splits) else None,
        findings=findings,
    )


def _parsed(documents: Iterable[Text]) -> Iterator[tuple[str, VocFile | str]]:
    """Yield key and content of each file, or why it cannot be read; XML of other kinds is none."""
    for key, data, fault in documents:
        try:
            yield key, fault or parse_voc(data)
        except NotVocError:
            continue
        except VocError as error:
            yield key, str(error)


def _add(
    table: ObjectTable, image: int, key: str, content: VocFile | str, *, numbers: bool
) -> None:
    if isinstance(content, str):
        table.fault(image, f"{key} {content}")
        return
    table.list_image(image, content.size)
    for number, (name, box) in enumerate(zip(content.names, content.boxes, strict=True), 1):
        if numbers:
            place = table.number_of(name)
            table.add(image, box or _NO_BOX, place, outline=Segment(number))
        elif box is None:
            table.drop(image, MALFORMED)
        else:
            table.add(image, box, table.number_of(name))


def _image(pairing: Pairing, key: str, content: VocFile | str) -> int | None:
    """Return the image of a file: by its own name, then by the one that it states."""
    filename = content.filename if isinstance(content, VocFile) else ""
    try:
        found = pairing.find(stem(key), key)
    except AmbiguousIdError:
        if not filename:
            raise
        found = None
    return pairing.find(filename, key) if found is None and filename else found


def list_splits(
    lists: Iterable[tuple[str, bytes]], index: KeyIndex, findings: list[str]
) -> list[str | None]:
    """Return the split whose list names each image; of several, test goes before training.

    Lists of a class (`cat_train.txt`) are passed over, and `trainval.txt` if there is another.
    """
    of_split: dict[str, tuple[str, Sequence[str]]] = {}
    for key, data in sorted(lists):
        split = given_split([stem(key)])
        if stem(key) == "trainval":
            of_split.setdefault("train", (key, _stems(data)))
        elif split is not None:
            of_split[split] = key, _stems(data)
    pairing = Pairing(index)
    splits: list[str | None] = [None] * len(index.keys)
    num_twice = 0
    for split in _ORDER:
        key, names = of_split.get(split, ("", ()))
        beside = key.removesuffix(SPLIT_LISTS + key.rpartition("/")[2]) + _ANNOTATIONS
        for name in names:
            found = pairing.find(name, beside)
            if found is None:
                continue
            num_twice += splits[found] not in (None, split)
            splits[found] = splits[found] or split
    if num_twice:
        findings.append(
            f"{num_twice:,} images are on the lists of two splits in {SPLIT_LISTS}; test goes "
            "before validation, and that before train"
        )
    return splits


def _stems(data: bytes) -> list[str]:
    lines = (line.split("#")[0].split() for line in decoded(data).splitlines())
    return [words[0] for words in lines if words]
