"""One XML file of Pascal VOC, by a stranger: its content, within bounds.

Nearly all are as the tools write them: tag in tag, without comments, entities and attributes.
Expressions read such a file in a third of the time that a tree of its elements takes; expat reads
every other.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Sequence

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

_TEXT = r"[^<&\]\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\xff]*+"
"""Text that stands for itself. As `<` ends it, an expression has one way to go at every place."""
_LINE = r"[^<&\]\x00-\x08\x0b-\x1f\x7f-\xff]*+"
"""The same without carriage returns, which expat would change."""


def _element(group: str, inside: str = "") -> str:
    """Return the expression for an element and the text behind it; `group` holds its tag."""
    tag = r"[A-Za-z_][A-Za-z0-9_.-]*"
    return rf"<(?P<{group}>{tag})>{_TEXT}{inside}</(?P={group})>{_TEXT}"


_BARE = _element("bare")
_DEEPER = f"(?:{_element('inner', f'(?:{_BARE})*')})*"
_OTHER = rf"(?!<(?:filename|size|object)>){_element('outer', _DEEPER)}"
_HEAD = re.compile(
    r"(?:<\?xml version=\"1\.0\"(?: encoding=\"(?:utf|UTF)-8\")? ?\?>)?[ \t\r\n]*"
    rf"<annotation(?: verified=\"(?:yes|no)\")?>{_TEXT}"
    rf"(?:<filename>(?P<filename>{_LINE})</filename>{_TEXT}"
    rf"|<size>(?P<size>{_TEXT}(?:{_element('side')})*)</size>{_TEXT}|{_OTHER})*".encode()
)
_ANY_SIDE = rf"<({'|'.join(_SIDES)})>{_TEXT}</\{{}}>{_TEXT}"
_ORDER = re.compile(rf"<bndbox>{_TEXT}{''.join(map(_ANY_SIDE.format, (1, 2, 3, 4)))}</".encode())
_END = re.compile(rf"(?:{_OTHER})*</annotation>[ \t\r\n]*".encode())
_HEIGHT, _WIDTH = re.compile(rb"<height>([^<]*)"), re.compile(rb"<width>([^<]*)")
_USUAL = ("pose", "truncated", "difficult")
"""Tags that nearly all objects have between name and box, in their order."""


@functools.cache
def _objects(tags: tuple[bytes, ...]) -> tuple[re.Pattern[bytes], list[int]] | None:
    """Return the expression for objects with the sides in that order, or for all that is left.

    Its first group is the name, the last what is left where no other object follows; the others
    are those of `_SIDES`, numbered from 0. None where a side is there twice.
    """
    order = [tag.decode() for tag in tags]
    if sorted(order) != sorted(_SIDES):
        return None
    usual = "".join(f"(?:<{tag}>{_TEXT}</{tag}>{_TEXT})?+" for tag in _USUAL)
    sides = "".join(rf"<{side}>({_TEXT})</{side}>{_TEXT}" for side in order)
    expression = (
        rf"<object>{_TEXT}<name>({_LINE})</name>{_TEXT}{usual}"
        rf"(?:(?!<bndbox>){_element('before')})*<bndbox>{_TEXT}{sides}</bndbox>{_TEXT}"
        rf"(?:{_element('behind')})*</object>{_TEXT}|(.+)"
    )
    return re.compile(expression.encode(), re.DOTALL), [order.index(side) + 2 for side in _SIDES]


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
    plain = _plain(data) if len(data) <= _FEW_BYTES else None
    return _of_tree(data) if plain is None else plain


def _plain(data: bytes) -> VocFile | None:
    """Return the content of a file as the tools write it, which is what expat says; None: another.

    What counts is that of the first element of a name.
    """
    head = _HEAD.match(data)
    if head is None:
        return None
    left = head.end()
    if data.count(b"<filename>", 0, left) > 1 or data.count(b"<size>", 0, left) > 1:
        return None
    rows: list[tuple[bytes, ...]] = []
    sides: list[int] = []
    first = _ORDER.search(data, left)
    known = first and _objects(first.groups())
    if known:
        expression, sides = known
        rows = expression.findall(data, left)
        left = len(data) - len(rows.pop()[-1])
    if not _END.fullmatch(data, left):
        return None
    size = None
    if head["size"] is not None:
        height, width = _HEIGHT.search(head["size"]), _WIDTH.search(head["size"])
        size = _stated(height and height[1], width and width[1])
    filename = _text((head["filename"] or b"").decode())
    if not rows:
        return VocFile(filename, size)
    columns = list(zip(*rows, strict=True))
    name_of = {name: _text(name.decode()) for name in set(columns[0])}
    names = [name_of[name] for name in columns[0]]
    return VocFile(filename, size, names, _boxes([columns[at] for at in sides]))


def _of_tree(data: bytes) -> VocFile:
    """Return the content of a file as expat reads it; raises as `parse_voc`."""
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


def _boxes(sides: Sequence[tuple[bytes, ...]]) -> list[tuple[float, ...] | None]:
    """Return boxes of columns of texts, None for one of which a text is no number."""
    try:  # nearly always all are numbers
        return list(zip(*[map(float, side) for side in sides], strict=True))
    except ValueError:
        return [_floats(four) for four in zip(*sides, strict=True)]


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
