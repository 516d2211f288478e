"""Pascal VOC: an XML file for each image, and lists of the splits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from xml.parsers import expat

from shardprep.catalog.annotations.found import Found
from shardprep.catalog.annotations.object_table import MALFORMED, ObjectTable
from shardprep.catalog.annotations.pairing import Pairing, stem
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
_ROOT = ("annotation",)
_OBJECT = ("annotation", "object")
_BOX = ("annotation", "object", "bndbox")
_MOST_DEPTH = 100
"""Depth of elements in a file; an annotation has 4 or 5."""
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
    parser = _Parser()
    try:
        return parser.parse(data)
    except expat.ExpatError as error:
        raise VocError(f"is damaged XML ({error})") from error
    except (LookupError, ValueError, UnicodeError) as error:
        if isinstance(error, NotVocError | VocError):
            raise
        raise VocError(f"is XML that cannot be read ({error})") from error


class _Parser:
    """A walk over one file; only direct children count, not parts of an object."""

    def __init__(self) -> None:
        self._file = VocFile()
        self._path: list[str] = []
        self._text: list[str] = []
        self._num_characters = 0
        self._name = ""
        self._size: dict[str, str] = {}
        self._box: dict[str, str] = {}

    def parse(self, data: bytes) -> VocFile:
        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = _refuse_dtd
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.Parse(data, True)  # noqa: FBT003 - of the library
        height, width = _number(self._size.get("height")), _number(self._size.get("width"))
        if 1 <= height < math.inf and 1 <= width < math.inf:
            self._file.size = int(height), int(width)
        return self._file

    def _start(self, name: str, _: object) -> None:
        if not self._path and name != "annotation":
            raise NotVocError(f"its root is {name[:_MOST_TEXT]!r}")
        self._path.append(name)
        if len(self._path) > _MOST_DEPTH:
            raise VocError(f"is nested more than {_MOST_DEPTH} elements deep")
        self._text.clear()
        self._num_characters = 0
        if tuple(self._path) == _OBJECT:
            self._name, self._box = "", {}

    def _characters(self, text: str) -> None:
        self._num_characters += len(text)
        if self._num_characters <= _MOST_TEXT:
            self._text.append(text)

    def _end(self, name: str) -> None:
        self._path.pop()
        if len(self._path) > 3:
            return
        within, text = tuple(self._path), "".join(self._text).strip()
        if within == _BOX:
            self._box[name] = text
        elif within == _OBJECT and name == "name":
            self._name = text
        elif within == _ROOT and name == "object":
            self._file.objects.append((self._name, self._sides()))
        elif within == _ROOT and name == "filename":
            self._file.filename = text
        elif within == ("annotation", "size"):
            self._size[name] = text
        self._text.clear()

    def _sides(self) -> tuple[float, ...] | None:
        try:
            return tuple(float(self._box[side]) for side in _SIDES)
        except (KeyError, ValueError):
            return None


def _refuse_dtd(*_: object) -> None:
    raise VocError("has a document type definition (DTD), which no annotation needs")


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
