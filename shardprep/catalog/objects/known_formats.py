"""The formats of boxes: how each is asked for, recognised and read."""

from __future__ import annotations

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
from shardprep.catalog.objects.formats.box_table import (
    parse_box_rule,
    read_box_table,
    recognised_rule,
)
from shardprep.catalog.objects.formats.coco_document import chosen, is_coco, stated_names
from shardprep.catalog.objects.formats.pairing import num_named
from shardprep.errors import RecipeError, some_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardprep.catalog.objects.parsed import Found
    from shardprep.catalog.tables.metadata_files import Documents
    from shardprep.catalog.tables.row_matching import KeyIndex
    from shardprep.source.byte_range import Extent


class Format(NamedTuple):
    """One way in which boxes are written."""

    form: str
    """Value of `--boxes`, with its arguments."""
    read: Callable[[str, AnnotatedSource], Found]
    recognise: Callable[[AnnotatedSource], list[Sign]]


def read_boxes(
    option: str,
    index: KeyIndex,
    documents: Documents,
    *,
    extents: Sequence[Extent] = (),
    outlines: bool = False,
    areas: bool = False,
) -> Found:
    """Return the boxes of all images, as a value of `--boxes` other than auto asks for.

    Args:
        option: `coco[:FILE,…]`, `voc`, `yolo[:NAMES]`, `csv:FILE[:ID:BOX[:LABEL]]`, `labelme`,
            `via[:FILE,…]` or `cvat[:FILE,…]`.
        index: the images.
        documents: the files beside them.
        extents: those of the images, of which some heads are read where the sizes of images tell
            what four numbers mean.
        outlines: keep polygons, run lengths and segments beside boxes.
        areas: keep segments that are no objects, too.

    Raises:
        RecipeError: there is no such format, or its arguments are wrong.
        SourceError: a document of many images is damaged, or nothing is found.

    """
    name, argument = parse_boxes(option)
    source = AnnotatedSource(index, documents, extents, outlines, areas)
    with np.errstate(over="ignore", invalid="ignore"):  # numbers that overflow are dropped later
        return FORMATS[name].read(argument, source)


def read_numbered_boxes(index: KeyIndex, documents: Documents) -> Found:
    """Return the boxes of Pascal VOC, each with its number in the file as the segment of a mask.

    Raises:
        SourceError: the source has none.

    """
    return FORMATS["voc"].read("", AnnotatedSource(index, documents, numbers=True))


def parse_boxes(option: str) -> tuple[str, str]:
    """Return the format that a value of `--boxes` names, and its argument.

    Raises:
        RecipeError: there is no such format, or its argument is wrong.

    """
    name, _, argument = option.partition(":")
    if name not in FORMATS:
        hint = f"use {', '.join(one.form for one in FORMATS.values())}"
        raise RecipeError("--boxes", f"{option!r} is no format of boxes", hint)
    if argument and ":" not in FORMATS[name].form:
        raise RecipeError("--boxes", f"{name} takes no argument, it has {argument!r}")
    if name == "csv":
        parse_box_rule(argument)
    return name, argument


def box_files(option: str) -> tuple[str, ...]:
    """Return the files that a value of `--boxes` names; they may lie in the source or on disk."""
    name, argument = parse_boxes(option)
    if name == "csv":
        return parse_box_rule(argument).files
    return tuple(file.strip() for file in argument.split(",") if file.strip())


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


def _read_coco(argument: str, source: AnnotatedSource) -> Found:
    files = shared_documents(source, argument, is_coco, "coco")
    several = files if argument else chosen(files)
    documents = (source.documents.find(file) for file in several)
    return coco.read_coco(
        documents,
        source.index,
        outlines=source.outlines,
        areas=source.areas,
        may_repeat=bool(argument),
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


def _read_voc(argument: str, source: AnnotatedSource) -> Found:
    del argument
    documents = source.documents
    lists = [m for m in documents.members(".txt") if voc.SPLIT_LISTS in f"/{m.key}"]
    texts = [(text.key, text.data) for text in read_each(lists) if not text.fault]
    members = documents.members(".xml")
    return voc.read_voc(read_each(members), source.index, texts, numbers=source.numbers)


def _recognise_voc(source: AnnotatedSource) -> list[Sign]:
    members = named_as_images(source, ".xml")
    return by_sample(source, members, voc_file.is_voc, Sign("voc", "Pascal VOC"))


def _read_csv(argument: str, source: AnnotatedSource) -> Found:
    rule = parse_box_rule(argument)
    table = source.documents.table(rule.files)
    return read_box_table(table, rule, source.index, source.size_of)


def _recognise_csv(source: AnnotatedSource) -> list[Sign]:
    for table in source.documents.tables():
        rule = recognised_rule(table, source.index)
        if not rule:
            continue
        ids = table.column(parse_box_rule(rule).id_column)
        named, total = num_named(source.index, {row[ids] for row in table.rows})
        if named >= ENOUGH * total:
            how = f"{table.name}: boxes of {named:,} of {total:,} images"
            return [Sign(f"csv:{rule}", how)]
    return []


def _read_labelme(argument: str, source: AnnotatedSource) -> Found:
    del argument
    members = source.documents.members(".json")
    return labelme.read_labelme(
        read_each(members, 4 * MOST_BYTES), source.index, outlines=source.outlines
    )


def _recognise_labelme(source: AnnotatedSource) -> list[Sign]:
    members = named_as_images(source, ".json")
    return by_sample(source, members, labelme.is_labelme, Sign("labelme", "LabelMe"))


def _read_via(argument: str, source: AnnotatedSource) -> Found:
    files = shared_documents(source, argument, via.is_via, "via")
    documents = (source.documents.find(file) for file in files)
    return via.read_via(documents, source.index, outlines=source.outlines)


def _recognise_via(source: AnnotatedSource) -> list[Sign]:
    found = [key for key, data, _ in shared_json(source) if via.is_via(data)]
    return [Sign("via", f"{some_of(found, 2)}: VIA")] if found else []


def _read_cvat(argument: str, source: AnnotatedSource) -> Found:
    files = shared_documents(source, argument, cvat.is_cvat, "cvat", ".xml")
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
    "coco": Format("coco[:FILE,…]", _read_coco, _recognise_coco),
    "voc": Format("voc", _read_voc, _recognise_voc),
    "yolo": Format("yolo[:NAMES]", yolo_files.read_source, yolo_files.recognise),
    "csv": Format("csv:FILE:ID:BOX[:LABEL]", _read_csv, _recognise_csv),
    "labelme": Format("labelme", _read_labelme, _recognise_labelme),
    "via": Format("via[:FILE,…]", _read_via, _recognise_via),
    "cvat": Format("cvat[:FILE,…]", _read_cvat, _recognise_cvat),
}
"""The formats by the word that `--boxes` begins with, those recognised first in front."""
