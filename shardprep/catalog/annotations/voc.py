"""Pascal VOC: an XML file for each image, and lists of the splits."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from shardprep.catalog.annotations.object_table import MALFORMED, ObjectTable
from shardprep.catalog.annotations.pairing import Pairing, stem
from shardprep.catalog.annotations.result import Found
from shardprep.catalog.lookup import AmbiguousIdError
from shardprep.catalog.splits import given_split
from shardprep.catalog.table import decoded
from shardprep.errors import SourceError, some_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shardprep.catalog.annotations.members import Text
    from shardprep.catalog.lookup import KeyIndex

SPLIT_LISTS = "ImageSets/Main/"
"""Folder of the lists of images of each split."""
_ANNOTATIONS = "Annotations/"
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
_ORDER = ("test", "validation", "train")
"""Splits, the first of which counts where several lists name an image."""


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
    objects: list[tuple[str, tuple[float, ...] | None]] = field(default_factory=list)
    """Class name and box as written: xmin, ymin, xmax, ymax; None for a box that is none."""


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
        height, width = _number(size.findtext("height")), _number(size.findtext("width"))
        if 1 <= height < math.inf and 1 <= width < math.inf:
            stated = int(height), int(width)
    objects = [
        (_text(one.findtext("name")), _corners(one.find("bndbox")))
        for one in root.iterfind("object")
    ]
    return VocFile(_text(root.findtext("filename")), stated, objects)


def _text(text: str | None) -> str:
    return (text or "")[:_MOST_TEXT].strip()


def _corners(box: ET.Element | None) -> tuple[float, ...] | None:
    """Return the four numbers of a box, None where it does not have them."""
    if box is None:
        return None
    try:
        return tuple([float(box.findtext(side, "")) for side in _SIDES])
    except ValueError:
        return None


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def read_voc(
    documents: Iterable[Text], index: KeyIndex, lists: Iterable[tuple[str, bytes]] = ()
) -> Found:
    """Return the objects of all files, boxes as they are written; classes in natural order.

    A file belongs to the image of its own name beside it or in a folder of images, or else to the
    one that it states. XML of other kinds is passed over.

    Args:
        documents: XML files.
        index: the images.
        lists: key and bytes of the lists of the splits, `ImageSets/Main/train.txt`.

    Raises:
        SourceError: two files belong to one image, or none to any.

    """
    pairing, table = Pairing(index), ObjectTable(len(index.keys))
    read: list[str] = []
    missing: list[str] = []
    unreadable: list[str] = []
    findings: list[str] = []
    for key, content in _parsed(documents):
        read.append(key)
        image = _image(pairing, key, content)
        if image is None and isinstance(content, str):
            unreadable.append(f"{key} {content}")
        elif image is None:
            missing.append(key)
        else:
            pairing.claim(image, key)
            _add(table, image, key, content)
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
        how=f"Pascal VOC, XML files: {len(pairing.documents):,}; boxes as written",
        documents=tuple(read),
        without_image=tuple(missing),
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


def _add(table: ObjectTable, image: int, key: str, content: VocFile | str) -> None:
    if isinstance(content, str):
        table.fault(image, f"{key} {content}")
        return
    table.list_image(image, content.size)
    for name, box in content.objects:
        if box is None:
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
