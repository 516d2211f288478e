"""YOLO: a text file for each image, a line an object, all numbers shares of the image's sides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shardprep.catalog.names import natural_order, stem
from shardprep.catalog.objects.formats.bounded_read import Text, read_each
from shardprep.catalog.objects.formats.pairing import Pairing
from shardprep.catalog.objects.object_table import MALFORMED, ObjectTable
from shardprep.catalog.objects.parsed import Found
from shardprep.catalog.tables.row_matching import KeyIndex
from shardprep.errors import SourceError, counted, shown
from shardprep.image.annotation_types import Outline, Polygons
from shardprep.recipe.object_rules import BoxColumns
from shardprep.source.members import Member
from shardprep.storage.text_file import decoded

NAME_FILES = ("data.yaml", "data.yml", "obj.names", "classes.txt", "_darknet.labels")
"""Names of the files that name the classes, the surest first; others end in `NAME_SUFFIXES`."""
NAME_SUFFIXES = (".yaml", ".yml", ".names", "classes.txt", "_darknet.labels")
NO_LABELS = frozenset(
    ("classes", "train", "val", "valid", "test", "readme", "requirements", "labels")
)
"""Stems of text files that are no label files where no image is called so."""
_MOST_NAME_BYTES = 1 << 20
_MOST_DEPTH = 64
"""Depth of YAML; its loader in C, which calls itself, crashes the process at some ten thousand."""
_ID = re.compile(r"\d{1,9}", re.ASCII)
"""A number of a class."""
_MOST_SHOWN = 60
"""Characters of a line in an error."""
_NO_SHAPE = (None, "", "~", "null")
"""Texts of YAML for no value of `kpt_shape`."""
_YAML_SPLITS = {"train": "train", "val": "validation", "test": "test"}


class NameFile:
    """The classes, and the images of each split, as a file of names says them."""

    def __init__(self, key: str, data: bytes, fields: Sequence[str] = ("names",)) -> None:
        """Take its key and bytes, and the fields of YAML that may hold the names.

        Raises:
            SourceError: it is damaged, or names no classes.

        """
        self.key = key
        self.splits: dict[str, list[str]] = {}
        """Split → paths of folders or lists."""
        self.num_keypoints = 0
        """Numbers after the box in a line of a pose; 0 where the file names no keypoints."""
        if len(data) > _MOST_NAME_BYTES:
            raise SourceError(key, "is larger than 1 MiB: it names no classes")
        if key.lower().endswith((".yaml", ".yml")):
            self.names = self._of_yaml(decoded(data), fields)
        else:
            lines = (line.strip() for line in decoded(data).splitlines())
            self.names = dict(enumerate(name for name in lines if name))
        if not self.names:
            raise SourceError(key, "names no classes", "name another file: --boxes yolo:FILE")

    def _of_yaml(self, text: str, fields: Sequence[str]) -> dict[int, str]:
        """Return the classes by id, in the order of the ids, as a field lists or maps them.

        All values are texts, whatever their tags: a class may be called yes, 010, 1:30 or null. So
        nothing is converted, and no merge key (<<) copies anything.
        """
        import yaml  # type: ignore[import-untyped] # noqa: PLC0415 - most sources never need it

        loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
        try:
            self._check_depth(yaml.parse(text, loader))
            document = yaml.load(text, loader)  # noqa: S506 - a loader of texts alone
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            line = getattr(getattr(error, "problem_mark", None), "line", None)
            place = "" if line is None else f" at line {line + 1:,}"
            raise SourceError(self.key, f"is damaged YAML{place}") from error
        parts = document if isinstance(document, dict) else {}
        names = next((parts[one] for one in fields if one in parts), None)
        pairs = enumerate(names) if isinstance(names, list) else ()
        found: dict[int, str] = {}
        for number, name in names.items() if isinstance(names, dict) else pairs:
            if not _ID.fullmatch(str(number)) or not isinstance(name, str) or not name.strip():
                what = f"has no list of 'names' but {shown(str(number), _MOST_SHOWN)!r} in it"
                raise SourceError(self.key, what, "write names: [cat, dog]")
            if found.setdefault(int(number), name.strip()) != name.strip():
                raise SourceError(self.key, f"has two names of class {int(number)}")
        if parts.get("kpt_shape") not in _NO_SHAPE:
            self.num_keypoints = self._keypoints(parts["kpt_shape"])
        for key, split in _YAML_SPLITS.items():
            paths = parts.get(key)
            several = paths if isinstance(paths, list) else [paths]
            self.splits[split] = [path for path in several if isinstance(path, str) and path]
        return dict(sorted(found.items()))

    def _keypoints(self, shape: Any) -> int:
        """Return how many numbers the keypoints of an object have, by `kpt_shape`."""
        try:
            number, size = (int(part) for part in shape)
        except (TypeError, ValueError):
            number, size = 0, 0
        if number < 1 or size not in (2, 3):
            what = f"has kpt_shape {shown(str(shape), _MOST_SHOWN)}"
            raise SourceError(self.key, what, "write the number of keypoints and 2 or 3: [17, 3]")
        return number * size

    def _check_depth(self, events: Iterable[Any]) -> None:
        """Raise a SourceError for YAML so deep that its loader would crash."""
        import yaml  # noqa: PLC0415 - see above

        depth = 0
        for event in events:
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _MOST_DEPTH:
                raise SourceError(self.key, f"is damaged YAML, nested more than {_MOST_DEPTH} deep")


def is_yolo(data: bytes, num_keypoints: int = 0) -> bool:
    """Return whether every line of a text is an object: a box, a pose or a polygon.

    An empty text says nothing. `num_keypoints` is that of the file of names.
    """
    lines = [line for line in decoded(data).splitlines() if line.strip()]
    try:
        shapes = [_object(line.split(), num_keypoints) for line in lines]
    except ValueError:
        return False
    return bool(shapes) and all(one.box[2] <= 2.0 and one.box[3] <= 2.0 for one in shapes)


def read_yolo(
    documents: Iterable[Text],
    index: KeyIndex,
    names: NameFile | None = None,
    *,
    strays: Sequence[Member] = (),
    lists: Mapping[str, Sequence[str]] | None = None,
    outlines: bool = False,
) -> Found:
    """Return the objects of all files; an image without a file has none.

    Classes are in the order of the file of names; without one, they are their numbers.

    Args:
        documents: text files that are named as images.
        index: the images.
        names: the file that names the classes.
        strays: other text files; those beside the documents are of images that lack.
        lists: lines of the lists of images that the file of names refers to, by their path in it.
        outlines: keep polygons beside boxes.

    Raises:
        SourceError: two files belong to one image, or none to any.

    """
    pairing, table = Pairing(index), ObjectTable(len(index.keys))
    table.is_relative = True
    keys = pairing.documents
    missing: dict[str, int] = {}
    num_keypoints = names.num_keypoints if names else 0
    num_poses = 0
    for key, data, fault in documents:
        image = pairing.find(stem(key), key)
        if image is None:
            missing[key] = _read_lines(data, num_keypoints).number
            continue
        pairing.claim(image, key, "name the class names beside the right one: --boxes yolo:FILE")
        table.list_image(image)
        read = _read_lines(data, num_keypoints)
        num_poses += read.num_poses
        if reason := fault or _add(table, image, read, outlines=outlines):
            table.fault(image, f"{key} {reason}")
    if not keys:
        raise SourceError("--boxes yolo", "no text file of the source is named as an image")
    folders = {key.rpartition("/")[0] for key in keys.values()}
    beside = [one for one in strays if one.key.rpartition("/")[0] in folders]
    labels = [one for one in beside if stem(one.key).lower() not in NO_LABELS]
    missing |= {
        text.key: _read_lines(text.data, num_keypoints).number for text in read_each(labels)
    }
    findings: list[str] = []
    if num_poses:
        findings.append(
            f"keypoints of {counted(num_poses, 'object')} are not stored, their boxes are"
        )
    if names is None:
        findings.append("classes of YOLO have no names: no data.yaml, obj.names or classes.txt")
        numbers = sorted(table.classes, key=natural_order)
        of_number = {number: number for number in numbers}
    else:
        of_number = {str(number): name for number, name in names.names.items()}
    ordered = tuple(dict.fromkeys(of_number.values()))
    place = {name: i for i, name in enumerate(ordered)}
    splits = yaml_splits(names, lists or {}, index, findings) if names else []
    source = f", classes of {names.key}" if names else ""
    return Found(
        annotations=table.annotations({num: place[name] for num, name in of_number.items()}),
        names=ordered,
        how=f"YOLO, {counted(len(keys), 'text file')}{source}",
        documents=(*keys.values(), *((names.key,) if names else ())),
        without_image=missing,
        splits=splits if any(splits) else None,
        notation=BoxColumns(("x", "y", "width", "height"), "center"),
        is_complete=True,
        findings=findings,
    )


class _Object(NamedTuple):
    """One line."""

    class_id: int
    box: tuple[float, ...]
    """x, y of the first corner, x, y of the second."""
    outline: Outline = None
    has_keypoints: bool = False


class _Lines(NamedTuple):
    """The lines of one file."""

    objects: list[_Object]
    num_poses: int
    """Objects among them whose keypoints are left out."""
    num_bad: int
    """Lines that are no object."""
    fault: str
    """The first of these, "" without any."""

    @property
    def number(self) -> int:
        """Number of objects, bad ones included; 0 for a text of another kind."""
        return len(self.objects) + self.num_bad if self.objects else 0


def _read_lines(data: bytes, num_keypoints: int) -> _Lines:
    objects: list[_Object] = []
    fault, num_bad = "", 0
    for number, line in enumerate(decoded(data).splitlines(), 1):
        words = line.split()
        if not words:
            continue
        try:
            objects.append(_object(words, num_keypoints))
        except (ValueError, OverflowError):
            num_bad += 1
            what = f"is no YOLO: line {number:,} is {shown(line.strip(), _MOST_SHOWN)!r}"
            fault = fault or what
    num_poses = [one.has_keypoints for one in objects].count(True)
    return _Lines(objects, num_poses, num_bad, fault)


def _add(table: ObjectTable, image: int, lines: _Lines, *, outlines: bool) -> str:
    """Add the objects of an image; return why none of its lines can be read, "" if one can."""
    for class_id, box, outline, _ in lines.objects:
        number = table.number_of(str(class_id))
        table.add(image, box, number, outline=outline if outlines else None)
    if lines.num_bad and lines.objects:
        table.drop(image, MALFORMED, lines.num_bad)
    return "" if lines.objects else lines.fault


def _object(words: Sequence[str], num_keypoints: int) -> _Object:
    """Return the object of a line, by the number of its values.

    A box is `class x y w h [confidence]`, a pose a box and its keypoints, a polygon
    `class x1 y1 …`. Four corners are a polygon, too: an oriented box.

    Args:
        words: the values as text.
        num_keypoints: values after the box of a pose; then there are no polygons. With 0, a line
            is a pose where its keypoints have flags, which are 0, 1 or 2.

    Raises:
        ValueError, OverflowError: the line fits none of these.

    """
    numbers = [float(word) for word in words]
    class_id = int(numbers[0])
    if class_id != numbers[0] or class_id < 0:
        raise ValueError("the class is no index")
    num_more = len(numbers) - 5
    has_keypoints = False
    if num_more > 1:
        has_keypoints = num_more == num_keypoints if num_keypoints else _have_flags(numbers)
    if num_more == 0 or has_keypoints or (num_more == 1 and 0 <= numbers[5] <= 1):
        x, y, width, height = numbers[1:5]
        box = x - width / 2, y - height / 2, x + width / 2, y + height / 2
        return _Object(class_id, box, None, has_keypoints)
    if num_keypoints or num_more < 2 or num_more % 2:
        raise ValueError("neither a box nor a pose nor a polygon")
    ring = np.array(numbers[1:]).reshape(-1, 2)
    low, high = ring.min(0).tolist(), ring.max(0).tolist()
    return _Object(class_id, (*low, *high), Polygons((ring,)))


def _have_flags(numbers: Sequence[float]) -> bool:
    """Return whether a line is a box and keypoints of x, y and a flag, and cannot be a polygon.

    The flags of an odd number of keypoints leave an odd number of coordinates. Otherwise a flag of
    2 lies outside the image, and four coordinates in the places of flags are never all 0 or 1.
    """
    flags = numbers[7::3]
    if len(numbers) < 8 or (len(numbers) - 5) % 3 or not {0.0, 1.0, 2.0}.issuperset(flags):
        return False
    has_size = numbers[3] > 0 and numbers[4] > 0
    return has_size and (len(flags) % 2 == 1 or 2 in flags or (len(flags) >= 4 and any(flags)))


def yaml_splits(
    names: NameFile, lists: Mapping[str, Sequence[str]], index: KeyIndex, findings: list[str]
) -> list[str | None]:
    """Return the split whose folder or list, in data.yaml, each image is of; None for none."""
    splits: list[str | None] = [None] * len(index.keys)
    folders = {key.rpartition("/")[0] for key in index.keys}
    pairing = Pairing(index)
    num_twice = 0
    for split, paths in names.splits.items():
        of_split: set[int] = set()
        for path in paths:
            if path in lists:
                found = (pairing.find(line, names.key) for line in lists[path])
                of_split.update(i for i in found if i is not None)
                continue
            wanted = "/" + "/".join(n for n in path.split("/") if n not in ("", ".", "..")) + "/"
            inside = {folder for folder in folders if wanted in f"/{folder}/"}
            of_split.update(i for i, k in enumerate(index.keys) if k.rpartition("/")[0] in inside)
        for i in of_split:
            num_twice += splits[i] not in (None, split)
            splits[i] = splits[i] or split
    if num_twice:
        findings.append(f"{names.key} gives {num_twice:,} images two splits; the first counts")
    return splits
