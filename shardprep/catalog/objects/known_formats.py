"""The formats of boxes: how each is asked for, recognised and read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardprep.catalog.objects.find_documents import (
    ENOUGH,
    NUM_SAMPLES,
    AnnotatedSource,
    Sign,
    by_sample,
    named_as_images,
    shared_documents,
    shared_json,
    shared_texts,
)
from shardprep.catalog.objects.formats import (
    coco,
    cvat,
    labelme,
    via,
    voc,
    voc_file,
    yolo,
    yolo_files,
)
from shardprep.catalog.objects.formats.bounded_read import MOST_BYTES, read_each
from shardprep.catalog.objects.formats.box_table import read_box_table, recognised_rule
from shardprep.catalog.objects.formats.coco_document import chosen, is_coco, stated_names
from shardprep.catalog.objects.formats.pairing import num_named
from shardprep.catalog.objects.parsed import Found
from shardprep.catalog.tables.row_matching import KeyIndex
from shardprep.errors import some_of
from shardprep.recipe.object_rules import FormatRule
from shardprep.source.byte_range import Extent

if TYPE_CHECKING:
    from shardprep.catalog.tables.metadata_files import Documents


class Format(NamedTuple):
    """One way in which boxes are written."""

    read: Callable[[FormatRule, AnnotatedSource], Found]
    recognise: Callable[[AnnotatedSource], list[Sign]]


def read_boxes(
    rule: FormatRule,
    index: KeyIndex,
    documents: Documents,
    *,
    extents: Sequence[Extent] = (),
    outlines: bool = False,
    areas: bool = False,
) -> Found:
    """Return the boxes of all images, as a rule other than none and auto asks for.

    Args:
        rule: names the format and its files.
        index: the images.
        documents: the files beside them.
        extents: those of the images, of which some heads are read where the sizes of images tell
            what four numbers mean.
        outlines: keep polygons, run lengths and segments beside boxes.
        areas: keep segments that are no objects, too.

    Raises:
        SourceError: a document of many images is damaged, or nothing is found.

    """
    source = AnnotatedSource(index, documents, extents, outlines, areas)
    with np.errstate(over="ignore", invalid="ignore"):  # numbers that overflow are dropped later
        return FORMATS[rule.kind].read(rule, source)


def read_numbered_boxes(index: KeyIndex, documents: Documents) -> Found:
    """Return the boxes of Pascal VOC, each with its number in the file as the segment of a mask.

    Raises:
        SourceError: the source has none.

    """
    return FORMATS["voc"].read(FormatRule("voc"), AnnotatedSource(index, documents, numbers=True))


def holds_boxes(documents: Documents, name: str, keys: Sequence[str]) -> bool:
    """Tell whether one of some documents holds boxes of a format with a document for each image."""
    is_one = {"voc": voc_file.is_voc, "yolo": yolo.is_yolo}[name]
    some = set(keys[:: max(1, len(keys) // NUM_SAMPLES)][:NUM_SAMPLES])
    sample = [member for member in documents.members("") if member.key in some]
    return any(is_one(text.data) for text in read_each(sample))


def recognise(index: KeyIndex, documents: Documents) -> list[Sign]:
    """Return the formats that a source surely is in, in the order of `FORMATS`."""
    source = AnnotatedSource(index, documents)
    return [sign for one in FORMATS.values() for sign in one.recognise(source)]


def _read_coco(rule: FormatRule, source: AnnotatedSource) -> Found:
    files = shared_documents(source, rule.files, is_coco, "coco")
    several = files if rule.files else chosen(files)
    documents = (source.documents.find(file) for file in several)
    return coco.read_coco(
        documents,
        source.index,
        outlines=source.outlines,
        areas=source.areas,
        may_repeat=bool(rule.files),
    )


def _recognise_coco(source: AnnotatedSource) -> list[Sign]:
    several = shared_json(source)
    names = {key: stated_names(data) for key, data, _ in several if is_coco(data)}
    kept = chosen(list(names))
    named, total = num_named(source.index, [name for key in kept for name in names[key]])
    if not kept or named < ENOUGH * total:
        return []
    how = f"{some_of(kept, 2)}: COCO with boxes, names {named:,} of {total:,} images"
    return [Sign("coco", how)]


def _read_voc(rule: FormatRule, source: AnnotatedSource) -> Found:
    del rule
    documents = source.documents
    lists = [m for m in documents.members(".txt") if voc.SPLIT_LISTS in f"/{m.key}"]
    texts = [(text.key, text.data) for text in read_each(lists) if not text.fault]
    members = documents.members(".xml")
    return voc.read_voc(read_each(members), source.index, texts, numbers=source.numbers)


def _recognise_voc(source: AnnotatedSource) -> list[Sign]:
    members = named_as_images(source, ".xml")
    return by_sample(source, members, voc_file.is_voc, Sign("voc", "Pascal VOC"))


def _read_csv(rule: FormatRule, source: AnnotatedSource) -> Found:
    table = source.documents.table(rule.files)
    return read_box_table(table, rule.table, source.index, source.size_of)


def _recognise_csv(source: AnnotatedSource) -> list[Sign]:
    for table in source.documents.tables():
        option, id_column = recognised_rule(table, source.index)
        if not option:
            continue
        ids = table.column(id_column)
        named, total = num_named(source.index, {row[ids] for row in table.rows})
        if named >= ENOUGH * total:
            how = f"{table.name}: boxes of {named:,} of {total:,} images"
            return [Sign(option, how)]
    return []


def _read_labelme(rule: FormatRule, source: AnnotatedSource) -> Found:
    del rule
    members = source.documents.members(".json")
    return labelme.read_labelme(
        read_each(members, 4 * MOST_BYTES), source.index, outlines=source.outlines
    )


def _recognise_labelme(source: AnnotatedSource) -> list[Sign]:
    members = named_as_images(source, ".json")
    return by_sample(source, members, labelme.is_labelme, Sign("labelme", "LabelMe"))


def _read_via(rule: FormatRule, source: AnnotatedSource) -> Found:
    files = shared_documents(source, rule.files, via.is_via, "via")
    documents = (source.documents.find(file) for file in files)
    return via.read_via(documents, source.index, outlines=source.outlines)


def _recognise_via(source: AnnotatedSource) -> list[Sign]:
    found = [key for key, data, _ in shared_json(source) if via.is_via(data)]
    return [Sign("via", f"{some_of(found, 2)}: VIA")] if found else []


def _read_cvat(rule: FormatRule, source: AnnotatedSource) -> Found:
    files = shared_documents(source, rule.files, cvat.is_cvat, "cvat", ".xml")
    documents = (source.documents.find(file) for file in files)
    return cvat.read_cvat(documents, source.index, outlines=source.outlines)


def _recognise_cvat(source: AnnotatedSource) -> list[Sign]:
    found = [text for text in shared_texts(source, ".xml") if cvat.is_cvat(text.data)]
    named, total = num_named(
        source.index, [name for text in found for name in cvat.stated_names(text.data)]
    )
    if not found or named < ENOUGH * total:
        return []
    keys = some_of([text.key for text in found], 2)
    return [Sign("cvat", f"{keys}: CVAT for images, names {named:,} of {total:,} images")]


FORMATS = {
    "coco": Format(_read_coco, _recognise_coco),
    "voc": Format(_read_voc, _recognise_voc),
    "yolo": Format(yolo_files.read_source, yolo_files.recognise),
    "csv": Format(_read_csv, _recognise_csv),
    "labelme": Format(_read_labelme, _recognise_labelme),
    "via": Format(_read_via, _recognise_via),
    "cvat": Format(_read_cvat, _recognise_cvat),
}
"""The formats by the word that `--boxes` begins with, those recognised first in front."""
