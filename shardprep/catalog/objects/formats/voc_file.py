"""One XML file of Pascal VOC, by a stranger: its content, within bounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree as ET

_SIDES = ("xmin", "ymin", "xmax", "ymax")
_MOST_DEPTH = 100
"""Depth of elements in a file; an annotation has 4 or 5."""
_PARTS = ((b"<", 1), (b"=", 4), (b"\n", 1), (b"\r", 1), (b"&", 1))
"""Marks of tags, attributes and pieces of text in every encoding, and the weight of each."""
_MOST_PARTS = 1_000_000
"""Weight of the parts of a file, of which each takes 100 bytes; one of 100 objects has 4,000."""
_FEW_BYTES = 100_000
"""Size of a file below which it cannot have so many."""
_DTD = b"<!DOCTYPE"
_MOST_TEXT = 4096
"""Characters of a name or a number."""


class NotVocError(ValueError):
    """The XML is of another kind: its root is not `annotation`."""


class VocError(ValueError):
    """The XML is damaged or forbidden; the message says why."""


@dataclass(slots=True)
class VocFile:
    """The content of one file."""

    filename: str = ""
    size: tuple[int, int] | None = None
    """Height and width."""
    names: list[str] = field(default_factory=list)
    """Class name of each object."""
    boxes: list[tuple[float, ...] | None] = field(default_factory=list)
    """Box of each as written: xmin, ymin, xmax, ymax; None for one that is none."""


def is_voc(data: bytes) -> bool:
    """Tell whether bytes are an annotation with a box; the XML of LabelMe has outlines alone."""
    try:
        return any(parse_voc(data).boxes)
    except (NotVocError, VocError):
        return False


def parse_voc(data: bytes) -> VocFile:
    """Return the content of an annotation.

    Raises:
        NotVocError: the root is another element.
        VocError: it is damaged, nested too deeply, or has a document type definition.

    """
    if _has_dtd(data):
        raise VocError("has a document type definition (DTD), which no annotation needs")
    if len(data) > _FEW_BYTES and sum(data.count(part) * n for part, n in _PARTS) > _MOST_PARTS:
        raise VocError(f"is XML of more than {_MOST_PARTS:,} parts")
    root, fault = _tree(data)
    tag = _local(root.tag) if root is not None else ""
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
            element.tag = _local(element.tag)
    return _content(root)


def _has_dtd(data: bytes) -> bool:
    """Tell whether a DTD may begin anywhere, in every encoding that expat reads.

    In those of 8 bits, all characters of it are themselves; in UTF-16, a zero is beside each.
    """
    has_zeros = b"\0" in data
    return _DTD in data or (has_zeros and _DTD in data.replace(b"\0", b""))


def _tree(data: bytes) -> tuple[ET.Element | None, Exception | None]:
    """Return the root of the elements, as many as there are before a fault, and the fault."""
    builder = ET.TreeBuilder()
    parser = ET.XMLParser(target=builder)  # noqa: S314 - a DTD does not come here
    try:
        parser.feed(data)
        return parser.close(), None
    except (ET.ParseError, LookupError, ValueError) as error:
        return builder.close(), error


def _local(tag: str) -> str:
    """Return the name of an element without its namespace."""
    return tag.rpartition("}")[2]


def _check_depth(root: ET.Element) -> None:
    level = [root]
    for _ in range(_MOST_DEPTH):
        level = [*itertools.chain.from_iterable(level)]
        if not level:
            return
    raise VocError(f"is nested more than {_MOST_DEPTH} elements deep")


def _content(root: ET.Element) -> VocFile:
    """Return what an annotation says; only direct children count, not parts of an object."""
    size = root.find("size")
    stated = None
    if size is not None:
        stated = _stated(size.findtext("height"), size.findtext("width"))
    objects = root.findall("object")
    names = [_text(one.findtext("name")) for one in objects]
    boxes = [_corners(one.find("bndbox")) for one in objects]
    return VocFile(_text(root.findtext("filename")), stated, names, boxes)


def _text(text: str | None) -> str:
    return (text or "")[:_MOST_TEXT].strip()


def _corners(box: ET.Element | None) -> tuple[float, ...] | None:
    """Return the four numbers of a box, None where it does not have them."""
    return None if box is None else _floats([box.findtext(side, "") for side in _SIDES])


def _floats(texts: Sequence[str | bytes]) -> tuple[float, ...] | None:
    try:
        return tuple(map(float, texts))
    except ValueError:
        return None


def _stated(height: str | bytes | None, width: str | bytes | None) -> tuple[int, int] | None:
    """Return height and width, None where they are not two numbers from 1 on."""
    down, across = _number(height), _number(width)
    is_size = 1 <= down < math.inf and 1 <= across < math.inf
    return (int(down), int(across)) if is_size else None


def _number(text: str | bytes | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
