"""Pascal VOC: an XML file for each image, and lists of the splits."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree as ET

from shardprep.catalog.names import given_split, stem
from shardprep.catalog.objects.formats.annotated_source import (
    DTD_FAULT,
    AnnotatedSource,
    Sign,
    Text,
    by_sample,
    has_dtd,
    local_name,
    named_as_images,
    no_documents,
    read_each,
)
from shardprep.catalog.objects.formats.pairing import Pairing
from shardprep.catalog.objects.object_table import (
    MALFORMED,
    NO_BOX,
    Found,
    ObjectTable,
    stated_size,
)
from shardprep.catalog.tables.key_index import KeyIndex
from shardprep.errors import counted, some_of
from shardprep.image.annotation_types import Segment
from shardprep.recipe.object_rules import BoxColumns, FormatRule
from shardprep.storage.text_file import decoded

_SPLIT_LISTS = "ImageSets/Main/"
_ORDER = ("test", "validation", "train")
"""Splits in order of precedence for an image that is on several lists."""
_SIDES = ("xmin", "ymin", "xmax", "ymax")
_MOST_DEPTH = 100
"""Maximum depth of elements in a file; annotations have 4 or 5."""
_PARTS = ((b"<", 1), (b"=", 4), (b"\n", 1), (b"\r", 1), (b"&", 1))
"""Byte that is in each tag, attribute or text, whatever the encoding is → its weight."""
_MOST_PARTS = 1_000_000
"""Maximum weight of a file. A unit needs 100 bytes of memory; 100 objects weigh 4,000."""
_FEW_BYTES = 100_000
"""Maximum bytes of a file that is parsed without checking its weight."""
_MOST_TEXT = 4096


def read(rule: FormatRule, source: AnnotatedSource) -> Found:
    """Return the objects of all files, with unshifted boxes and classes in natural order.

    A file belongs to the image of its name that `Pairing` finds, otherwise to the image in
    `filename`. Other kinds of XML are ignored. For errors see `Format`.
    """
    pairing, table = Pairing(source.index), ObjectTable(len(source.index.keys))
    keys: list[str] = []
    unreadable: list[str] = []
    findings: list[str] = []
    for key, data, fault in read_each(source.documents.members(".xml")):
        try:
            file = VocFile(fault=fault) if fault else parse_voc(data)
        except NotVocError:
            continue
        except VocError as error:
            file = VocFile(fault=str(error))
        keys.append(key)
        image = pairing.of_document(key, file.filename)
        if image is None:
            unreadable += [f"{key} {file.fault}"] if file.fault else []
            table.missing[key] = len(file.names)
            continue
        pairing.claim(image, key)
        if file.fault:
            table.fault(image, f"{key} {file.fault}")
        else:
            _add(table, image, file, numbers=source.numbers)
    if not pairing.documents:
        raise no_documents(source, rule.flag, ".xml", *keys[:1])
    if unreadable:
        findings.append(f"XML files cannot be read and have no image: {some_of(unreadable)}")
    lists = [m for m in source.documents.members(".txt") if _SPLIT_LISTS in f"/{m.key}"]
    splits = _list_splits(read_each(lists), source.index, findings)
    return table.found(
        f"Pascal VOC, {counted(len(pairing.documents), 'XML file')}: "
        "corners in pixels, not shifted by 1",
        keys,
        notation=BoxColumns(_SIDES, "xyxy"),
        splits=splits if any(splits) else None,
        are_listed=any(splits),
        findings=[*findings, *pairing.findings],
    )


def recognise(source: AnnotatedSource) -> list[Sign]:
    """Return the `Sign` of XML files with boxes that are named like images, or []."""
    return by_sample(source, named_as_images(source, ".xml"), is_voc, "voc", "Pascal VOC")[0]


def _add(table: ObjectTable, image: int, file: VocFile, *, numbers: bool) -> None:
    """Add the objects of an image; with `numbers`, object n (from 1) gets the segment n."""
    table.list_image(image, file.size)
    for number, (name, box) in enumerate(zip(file.names, file.boxes, strict=True), 1):
        if numbers:
            table.add(image, box or NO_BOX, table.number_of(name), outline=Segment(number))
        elif box is None:
            table.drop(image, MALFORMED)
        else:
            table.add(image, box, table.number_of(name))


def _list_splits(lists: Iterable[Text], index: KeyIndex, findings: list[str]) -> list[str | None]:
    """Return the split of each image by the lists in ImageSets/Main, or None."""
    of_split: dict[str, tuple[str, Sequence[str]]] = {}
    for key, data, fault in sorted(lists):
        if fault:
            continue
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
        beside = key.removesuffix(_SPLIT_LISTS + key.rpartition("/")[2]) + "Annotations/"
        for name in names:
            found = pairing.find_listed(name, beside, split)
            if found is None:
                continue
            num_twice += splits[found] not in (None, split)
            splits[found] = splits[found] or split
    if num_twice:
        findings.append(
            f"{counted(num_twice, 'image')} on the lists of two splits in {_SPLIT_LISTS}; test "
            "goes before validation, validation before train"
        )
    return splits


def _stems(data: bytes) -> list[str]:
    lines = (line.split("#")[0].split() for line in decoded(data).splitlines())
    return [words[0] for words in lines if words]


class NotVocError(ValueError):
    """The root of the XML is not `annotation`."""


class VocError(ValueError):
    """The XML is damaged or not allowed; the message says why."""


@dataclass(slots=True)
class VocFile:
    """Content of one XML file."""

    filename: str = ""
    size: tuple[int, int] | None = None
    names: list[str] = field(default_factory=list)
    boxes: list[tuple[float, ...] | None] = field(default_factory=list)
    """Box of each object as written: xmin, ymin, xmax, ymax; None if a number is missing."""
    fault: str = ""
    """Why the file cannot be read, or ""."""


def is_voc(data: bytes) -> bool:
    """Return whether bytes are an annotation with a box; the XML of LabelMe only has outlines."""
    try:
        return any(parse_voc(data).boxes)
    except (NotVocError, VocError):
        return False


def parse_voc(data: bytes) -> VocFile:
    """Return the content of an annotation file of Pascal VOC.

    NotVocError if the root is not `annotation`. VocError if the file is damaged, too large, nested
    too deeply, or has a document type definition.
    """
    if has_dtd(data):
        raise VocError(DTD_FAULT)
    if len(data) > _FEW_BYTES and sum(data.count(part) * n for part, n in _PARTS) > _MOST_PARTS:
        raise VocError(f"has too many tags, attributes or lines (limit {_MOST_PARTS:,})")
    root, fault = _tree(data)
    tag = local_name(root.tag) if root is not None else ""
    if tag != "annotation" and (tag or fault is None):
        raise NotVocError(f"its root is {tag[:_MOST_TEXT]!r}")
    if root is not None:
        _check_depth(root)
    if root is None or fault is not None:
        is_damaged = isinstance(fault, ET.ParseError)
        what = "damaged XML" if is_damaged else "XML that cannot be read"
        raise VocError(f"is {what} ({fault})") from fault
    if root.tag != tag:
        for element in root.iter():
            element.tag = local_name(element.tag)
    objects = root.findall("object")
    return VocFile(
        _text(root.findtext("filename")),
        stated_size(root.findtext("size/height"), root.findtext("size/width")),
        [_text(one.findtext("name")) for one in objects],
        [_corners(one.find("bndbox")) for one in objects],
    )


def _tree(data: bytes) -> tuple[ET.Element | None, Exception | None]:
    """Return the root with the elements before the first error, and the error or None."""
    builder = ET.TreeBuilder()
    parser = ET.XMLParser(target=builder)  # noqa: S314 - files with a DTD are rejected before
    try:
        parser.feed(data)
        return parser.close(), None
    except (ET.ParseError, LookupError, ValueError) as error:
        return builder.close(), error


def _check_depth(root: ET.Element) -> None:
    level = [root]
    for _ in range(_MOST_DEPTH):
        level = [*itertools.chain.from_iterable(level)]
        if not level:
            return
    raise VocError(f"is nested more than {_MOST_DEPTH} elements deep")


def _text(text: str | None) -> str:
    return (text or "")[:_MOST_TEXT].strip()


def _corners(box: ET.Element | None) -> tuple[float, ...] | None:
    try:
        return None if box is None else tuple(float(box.findtext(side, "")) for side in _SIDES)
    except ValueError:
        return None
