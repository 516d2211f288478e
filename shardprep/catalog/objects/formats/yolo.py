"""YOLO: a text file for each image, a line for each object, coordinates relative to the sides."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from shardprep.catalog.names import natural_order, stem
from shardprep.catalog.objects.formats.annotated_source import (
    AnnotatedSource,
    Sign,
    by_sample,
    named_as_images,
    read_each,
    sampled,
)
from shardprep.catalog.objects.formats.pairing import Pairing
from shardprep.catalog.objects.object_table import MALFORMED, Found, ObjectTable
from shardprep.dataset.schema import MOST_POINTS
from shardprep.errors import OptionName, SourceError, counted, shown, some_of
from shardprep.image.annotation_types import Outline, Polygons, Skeleton
from shardprep.recipe.object_rules import BoxColumns, FormatRule
from shardprep.source.members import Member
from shardprep.storage.text_file import decoded

_YOLO = OptionName("boxes", "yolo")
_NAME_FILES = ("data.yaml", "data.yml", "obj.names", "classes.txt", "_darknet.labels")
_NAME_SUFFIXES = (".yaml", ".yml", ".names", "classes.txt", "_darknet.labels")
_NO_LABELS = frozenset(
    ("classes", "train", "val", "valid", "test", "readme", "requirements", "labels")
)
"""Stems of text files without labels, unless an image has that name."""
_MOST_NAME_BYTES = 1 << 20
_MOST_DEPTH = 64
"""Maximum depth of YAML; its C loader crashes the process at a depth of about ten thousand."""
_ID = re.compile(r"\d{1,9}", re.ASCII)
_MOST_SHOWN = 60
_MOST_LIKE_POSES = 0.5
"""Share of objects that may be poses instead of polygons, above which a finding says so."""
_EDGE = 1e-6
_MOST_REACH = 2.0
"""Right and lower end of a box, in shares of the sides, above which they are other units."""
_CORNERS = 4
_MOST_NUMBERS = 32
"""Maximum number of classes that a note lists."""
_NO_SHAPE = (None, "", "~", "null")
"""Values of `kpt_shape` in YAML that mean "not set"."""
_YAML_SPLITS = {"train": "train", "val": "validation", "test": "test"}


def read(rule: FormatRule, source: AnnotatedSource) -> Found:
    """Return the objects of all label files; an image without a label file has no object.

    Classes are in the order of the names file, or else numbers. For errors see `Format`.
    """
    argument = next(iter(rule.files), "")
    names = _names(source, argument)
    members = named_as_images(source, ".txt")
    named = {member.key for member in members}
    if argument and names and "/" in names.key:  # prefer label files below its folder
        members = _below(members, names.key) or members
    pairing = Pairing(source.index)
    table = ObjectTable(len(source.index.keys), outlines=source.outlines)
    table.is_relative = True
    shape, findings = _pose_of(names, is_wanted=source.keypoints)
    num_poses = num_likely = 0
    for key, data, fault in read_each(members):
        image = pairing.find(stem(key), key)
        lines = _read_lines(data, shape)
        if image is None:
            table.missing[key] = lines.number
            continue
        pairing.claim(image, key)
        table.list_image(image)
        num_poses += sum(bool(one.keypoints) for one in lines.objects)
        num_likely += sum(one.may_be_pose for one in lines.objects)
        if reason := fault or _add(table, image, lines, key, keypoints=source.keypoints):
            table.fault(image, f"{key} {reason}")
    keys = pairing.documents.values()
    if not keys:
        what = "no text file of the source is named like an image"
        raise SourceError(_YOLO, what, "rename the files: a.txt has the boxes of a.jpg")
    folders = {key.rpartition("/")[0] for key in keys}
    strays = [
        one
        for one in source.documents.members(".txt")
        if one.key not in named
        and one.key.rpartition("/")[0] in folders
        and stem(one.key).lower() not in _NO_LABELS
    ]
    for text in read_each(strays):
        table.missing[text.key] = _read_lines(text.data, shape).number
    if num_poses and not source.keypoints:
        what = f"keypoints of {counted(num_poses, 'object')} are not stored, their boxes are"
        findings.append(f"{what}; {OptionName('points', 'yolo')} stores both")
    if num_likely > _MOST_LIKE_POSES * len(table):
        findings.append(
            f"{counted(num_likely, 'line')} may be poses without flags, and are read as polygons; "
            f"{OptionName('points', 'yolo')} reads them as poses"
        )
    if names is None:
        findings.append("classes of YOLO have no names: no data.yaml, obj.names or classes.txt")
        of_number = {number: number for number in sorted(table.classes, key=natural_order)}
        findings += _renumbered([*map(int, of_number)])
    else:
        findings += names.findings
        of_number = {str(number): name for number, name in names.names.items()}
    ordered = tuple(dict.fromkeys(of_number.values()))
    place = {name: i for i, name in enumerate(ordered)}
    splits = _yaml_splits(names, source, findings) if names else []
    classes = f", classes of {names.key}" if names else ""
    return table.found(
        f"YOLO, {counted(len(keys), 'text file')}{classes}",
        (*keys, *((names.key,) if names else ())),
        (ordered, {number: place[name] for number, name in of_number.items()}),
        skeletons=dict.fromkeys(of_number, shape.skeleton) if source.keypoints else None,
        splits=splits if any(splits) else None,
        are_listed=any(splits),
        notation=BoxColumns(("x", "y", "width", "height"), "center"),
        is_complete=True,
        findings=findings,
    )


def _renumbered(numbers: Sequence[int]) -> list[str]:
    """Return a note if some numbers of classes without names are stored as other numbers."""
    moved = next((f"class {one} is stored as {i}" for i, one in enumerate(numbers) if one != i), "")
    if not moved:
        return []
    every = ",".join(map(str, range(min(numbers[-1], _MOST_NUMBERS) + 1)))
    hint = f"; {OptionName('classes', every)} keeps the numbers"
    what = f"numbers that no object has are left out: {moved}"
    return [what + hint * (numbers[-1] <= _MOST_NUMBERS)]


def _pose_of(names: NameFile | None, *, is_wanted: bool) -> tuple[_Pose, list[str]]:
    fault = names.pose_fault if names else None
    if fault is not None and is_wanted:
        raise fault
    findings = [] if fault is None else [f"{fault.where}: {fault.what}, which is not used"]
    return (names.pose if names else None) or _Pose(is_wanted=is_wanted), findings


def recognise(source: AnnotatedSource) -> list[Sign]:
    """Return the `Sign` of YOLO, or of each names file if their classes differ, or []."""
    files = _name_files(source)
    options: dict[str, NameFile | None] = {"yolo": next(iter(files), None)}
    if any(one.names != files[0].names for one in files[1:]):
        options = {f"yolo:{one.key}": one for one in files}
    signs: list[Sign] = []
    for option, names in options.items():
        members = named_as_images(source, ".txt")
        if names and len(options) > 1:
            members = _below(members, names.key)
        pose, is_sound = (names.pose, names.pose_fault is None) if names else (None, True)
        shape = pose or _ANY_POSE
        is_one = functools.partial(is_yolo, shape=shape)
        title = f"YOLO, classes of {names.key}" if names else "YOLO, classes without names"
        found = by_sample(source, members, is_one, option, title)
        texts = read_each(sampled(members) if found else ())
        objects = [one for text in texts for one in _read_lines(text.data, shape).objects]
        has_outlines = 2 * sum(map(_is_outline, objects)) > len(objects)
        has_points = pose is not None and is_sound
        signs += [replace(one, has_points=has_points, has_outlines=has_outlines) for one in found]
    return signs


def _is_outline(one: _Object) -> bool:
    """Return whether an object is a polygon of over four corners that cannot be a pose."""
    outline = None if one.may_be_pose else one.outline
    return isinstance(outline, Polygons) and len(outline.rings[0]) > _CORNERS


def _names(source: AnnotatedSource, argument: str) -> NameFile | None:
    if argument:
        return NameFile(*source.documents.find(argument))
    files = _name_files(source, is_strict=True)
    if any(one.names != files[0].names for one in files[1:]):
        both = some_of([one.key for one in files], 3)
        what = f"several files name the classes in different ways: {both}"
        raise SourceError(_YOLO, what, f"name one: {OptionName('boxes', f'yolo:{files[0].key}')}")
    return next(iter(files), None)


def _name_files(source: AnnotatedSource, *, is_strict: bool = False) -> list[NameFile]:
    """Return the files that name classes, in order of precedence.

    Files without label files below their folder are left out, unless all files lack them. With
    `is_strict`, a damaged file with a usual name is an error.
    """
    found = []
    for member in source.documents.members(*_NAME_SUFFIXES):
        try:
            found.append(NameFile(member.key, source.documents.find(member.key)[1]))
        except SourceError:
            if is_strict and member.key.rpartition("/")[2].lower() in _NAME_FILES:
                raise
    texts = named_as_images(source, ".txt")
    found = [one for one in found if _below(texts, one.key)] or found
    ranks = {name: rank for rank, name in enumerate(_NAME_FILES)}
    return sorted(
        found, key=lambda one: (ranks.get(one.key.rpartition("/")[2].lower(), len(ranks)), one.key)
    )


def _below(members: Sequence[Member], document: str) -> list[Member]:
    folder = f"/{document.rpartition('/')[0]}/".replace("//", "/")
    return [member for member in members if f"/{member.key}".startswith(folder)]


class NameFile:
    """Content of a names file: class names by id, and the paths of each split."""

    def __init__(self, key: str, data: bytes, fields: Sequence[str] = ("names",)) -> None:
        """Parse a file. In YAML, classes are under one of `fields`. SourceError if damaged."""
        self.key = key
        self.splits: dict[str, list[str]] = {}
        self.findings: list[str] = []
        self.pose: _Pose | None = None
        """Form of the keypoints of a line; None if `kpt_shape` is not set or not valid."""
        self.pose_fault: SourceError | None = None
        """Reason why keypoints cannot be read, though boxes can; or None."""
        if len(data) > _MOST_NAME_BYTES:
            raise SourceError(key, "has more than 1 MiB", "name a file with class names")
        if key.lower().endswith((".yaml", ".yml")):
            self.names = self._of_yaml(decoded(data), fields)
        else:
            lines = (line.strip() for line in decoded(data).splitlines())
            self.names = dict(enumerate(name for name in lines if name))
        if not self.names:
            raise SourceError(key, "names no classes", "name a file with class names")

    def _of_yaml(self, text: str, fields: Sequence[str]) -> dict[int, str]:
        """Return id → class name. YAML values stay texts, such as `yes`, `010` and `null`."""
        import yaml  # type: ignore[import-untyped] # noqa: PLC0415 - most sources never need it

        loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
        try:
            self._check_depth(yaml.parse(text, loader))
            document = yaml.load(text, loader)  # noqa: S506 - it creates only texts
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            line = getattr(getattr(error, "problem_mark", None), "line", None)
            place = "" if line is None else f" at line {line + 1:,}"
            raise SourceError(self.key, f"is damaged YAML{place}", "correct the file") from error
        parts = document if isinstance(document, dict) else {}
        names = next((parts[one] for one in fields if one in parts), None)
        pairs = enumerate(names) if isinstance(names, list) else ()
        found: dict[int, str] = {}
        for number, name in names.items() if isinstance(names, dict) else pairs:
            if not _ID.fullmatch(str(number)) or not isinstance(name, str) or not name.strip():
                what = f"has an invalid entry {shown(str(number), _MOST_SHOWN)!r} in 'names'"
                raise SourceError(self.key, what, "write names: [cat, dog]")
            if found.setdefault(int(number), name.strip()) != name.strip():
                raise SourceError(
                    self.key, f"has two names for class {int(number)}", "remove one name"
                )
        stated = str(parts.get("nc", ""))
        if _ID.fullmatch(stated) and int(stated) != len(found):
            self.findings.append(f"{self.key}: nc is {stated}, but names has {len(found):,}")
        if parts.get("kpt_shape") not in _NO_SHAPE:
            try:
                self.pose = self._pose(parts)
            except SourceError as error:
                self.pose_fault = error
        for key, split in _YAML_SPLITS.items():
            paths = parts.get(key)
            several = paths if isinstance(paths, list) else [paths]
            self.splits[split] = [path for path in several if isinstance(path, str) and path]
        return dict(sorted(found.items()))

    def _pose(self, parts: dict[str, Any]) -> _Pose:
        shape = parts["kpt_shape"]
        try:
            number, size = (int(part) for part in shape)
        except (TypeError, ValueError):
            number, size = 0, 0
        if not 1 <= number <= MOST_POINTS or size not in (2, 3):
            what = f"has kpt_shape {shown(str(shape), _MOST_SHOWN)}"
            raise SourceError(self.key, what, "write the number of keypoints and 2 or 3: [17, 3]")
        named = parts.get("kpt_names")
        several = list(named.values()) if isinstance(named, dict) else [named]
        names = next((tuple(map(str, one)) for one in several if isinstance(one, list)), ())
        if len({*names}) != number:
            names = tuple(map(str, range(number)))
        mirrored = parts.get("flip_idx") or ()
        if mirrored and sorted(mirrored, key=str) != sorted(map(str, range(number)), key=str):
            what = f"has flip_idx {shown(str(mirrored), _MOST_SHOWN)}"
            hint = f"write the numbers 0 to {number - 1}, each once"
            self.pose_fault, mirrored = SourceError(self.key, what, hint), ()
        return _Pose(number, size, Skeleton(names, (), tuple(map(int, mirrored))))

    def _check_depth(self, events: Iterable[Any]) -> None:
        import yaml  # noqa: PLC0415 - see above

        depth = 0
        for event in events:
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _MOST_DEPTH:
                raise SourceError(self.key, "is YAML that is nested too deeply", "correct the file")


class _Pose(NamedTuple):
    """Form of the keypoints in a line."""

    number: int = 0
    """Number of keypoints; 0 if unknown."""
    size: int = 3
    """Values of a keypoint: 2 for x and y, 3 for x, y and flag."""
    skeleton: Skeleton = Skeleton()
    is_wanted: bool = True
    """Whether a line that fits a pose and a polygon is a pose; matters if `number` is unknown."""

    def fits(self, numbers: Sequence[float]) -> bool:
        """Return whether the numbers of a line are a box and keypoints of this form."""
        num_values = len(numbers) - 5
        if self.number:
            return num_values == self.number * self.size
        if num_values < 2:
            return False
        has_flags = num_values % 3 == 0 and {0.0, 1.0, 2.0}.issuperset(numbers[7::3])
        if self.is_wanted:
            return has_flags or num_values % 2 == 0
        return has_flags and _have_flags(numbers)

    def keypoints(self, numbers: Sequence[float]) -> list[float]:
        """Return x, y, flag of each keypoint; a missing flag is 2, or 0 if x or y is negative."""
        size = self.size
        if not self.number and not {0.0, 1.0, 2.0}.issuperset(numbers[2::3]):
            size = 2
        if len(numbers) % size:
            raise ValueError("not the values of keypoints")
        points = [numbers[i : i + size] for i in range(0, len(numbers), size)]
        if size == 3:
            return [one for point in points for one in point]
        return [one for x, y in points for one in (x, y, 2.0 if min(x, y) >= 0 else 0.0)]


_ANY_POSE = _Pose(is_wanted=False)


def fault_of(data: bytes) -> str:
    """Return why a text is not YOLO, as "is not YOLO: line 3 is …", or "" if it is."""
    return _read_lines(data, _ANY_POSE, most=_MOST_REACH).fault


def is_yolo(data: bytes, shape: _Pose = _ANY_POSE) -> bool:
    """Return whether a text has lines, and each line is a box, a pose or a polygon."""
    lines = _read_lines(data, shape, most=_MOST_REACH)
    return bool(lines.objects) and not lines.num_bad


class _Object(NamedTuple):
    class_id: int
    box: tuple[float, ...]
    outline: Outline = None
    keypoints: Sequence[float] = ()
    may_be_pose: bool = False
    """Whether the polygon can also be a box with keypoints without flags."""


class _Lines(NamedTuple):
    objects: list[_Object]
    num_bad: int
    fault: str
    """Description of the first malformed line, or ""."""

    @property
    def number(self) -> int:
        """Number of objects and malformed lines; 0 without an object: the text may not be YOLO."""
        return len(self.objects) + self.num_bad if self.objects else 0


def _read_lines(data: bytes, shape: _Pose, most: float = math.inf) -> _Lines:
    """Return the objects of a text. A line whose box has a side above `most` is malformed."""
    objects: list[_Object] = []
    fault, num_bad = "", 0
    for number, line in enumerate(decoded(data).splitlines(), 1):
        words = line.split()
        if not words:
            continue
        try:
            one = _object(words, shape)
            if max(one.box[2:]) > most:
                raise ValueError("pixels, not shares of the sides")
            objects.append(one)
        except (ValueError, OverflowError) as error:
            num_bad += 1
            begin = f"is not YOLO: line {number:,} is {shown(line.strip(), _MOST_SHOWN)!r}"
            fault = fault or f"{begin}: {_reason(words, error)}"
    return _Lines(objects, num_bad, fault)


def _reason(words: Sequence[str], error: Exception) -> str:
    """Return why a line is malformed."""
    for word in words:
        try:
            float(word)
        except ValueError:
            what = shown(word, _MOST_SHOWN)
            return f"{what!r} is no number" + (", blanks separate numbers" * ("," in word))
    return str(error)


def _add(table: ObjectTable, image: int, lines: _Lines, key: str, *, keypoints: bool) -> str:
    num_bad = lines.num_bad
    for class_id, box, outline, points, _ in lines.objects:
        number = table.number_of(str(class_id))
        try:
            table.add(image, box, number, outline=outline, keypoints=points if keypoints else ())
        except ValueError:
            num_bad += 1
    if num_bad and lines.objects:
        table.drop(image, MALFORMED, num_bad)
        if lines.fault:
            table.examples.setdefault(MALFORMED, f"{key} {lines.fault}")
    return "" if lines.objects else lines.fault


def _object(words: Sequence[str], shape: _Pose) -> _Object:
    """Return the object of a line; ValueError or OverflowError if it is malformed.

    A box is `class x y w h [confidence]`, a pose a box and its keypoints, a polygon
    `class x1 y1 …`. Four corners, an oriented box, are a polygon, too.
    If the form of poses is known, polygons are impossible. Otherwise, a line is a pose if its
    keypoints have flags, which are 0, 1 or 2, or if poses are wanted.
    """
    numbers = [float(word) for word in words]
    class_id = int(numbers[0])
    if class_id != numbers[0] or class_id < 0:
        raise ValueError("the class is not a whole number from 0")
    num_more = len(numbers) - 5
    has_keypoints = num_more > 1 and shape.fits(numbers)
    if num_more == 0 or has_keypoints or (num_more == 1 and 0 <= numbers[5] <= 1):
        x, y, width, height = numbers[1:5]
        box = x - width / 2, y - height / 2, x + width / 2, y + height / 2
        keypoints = shape.keypoints(numbers[5:]) if has_keypoints else ()
        return _Object(class_id, box, None, keypoints)
    if shape.number or num_more < 2 or num_more % 2:
        raise ValueError("neither a box nor a pose nor a polygon")
    ring = np.array(numbers[1:]).reshape(-1, 2)
    low, high = ring.min(0).tolist(), ring.max(0).tolist()
    reach = np.abs(ring[2:] - ring[0]) <= ring[1] / 2 + _EDGE
    return _Object(class_id, (*low, *high), Polygons((ring,)), (), bool(reach.all()))


def _have_flags(numbers: Sequence[float]) -> bool:
    """Return whether a line is a box and keypoints x, y, flag, and cannot be a polygon.

    With an odd number of keypoints, the number of values is odd, unlike in a polygon. In a polygon,
    the values at the places of flags are never 2, and four or more are not all 0 or 1.
    """
    flags = numbers[7::3]
    if len(numbers) < 8 or (len(numbers) - 5) % 3 or not {0.0, 1.0, 2.0}.issuperset(flags):
        return False
    has_size = numbers[3] > 0 and numbers[4] > 0
    return has_size and (len(flags) % 2 == 1 or 2 in flags or (len(flags) >= 4 and any(flags)))


def _yaml_splits(names: NameFile, source: AnnotatedSource, findings: list[str]) -> list[str | None]:
    keys = source.index.keys
    splits: list[str | None] = [None] * len(keys)
    folders = {key.rpartition("/")[0] for key in keys}
    pairing = Pairing(source.index)
    lists = [member.key for member in source.documents.members(".txt")]
    num_twice = 0
    for split, paths in names.splits.items():
        of_split: set[int] = set()
        for path in paths:
            name = "/".join(part for part in path.split("/") if part not in ("", ".", ".."))
            beside = f"{names.key.rpartition('/')[0]}/{name}".lstrip("/")
            listed = [key for key in lists if f"/{key}".endswith(f"/{name}")]
            listed = [key for key in listed if key == beside] or listed
            if len(listed) > 1:
                what = f"names the list {path!r}, but the source has {some_of(listed)}"
                raise SourceError(names.key, what, "remove one of these, or write a whole path")
            if path.lower().endswith(".txt") and not listed:
                findings.append(f"{names.key} names the list {path!r}, which the source lacks")
            if path.lower().endswith(".txt") and listed:
                lines = source.documents.ids(listed[0])
                found = (pairing.find_listed(line, names.key, split) for line in lines)
                of_split.update(i for i in found if i is not None)
                continue
            inside = {folder for folder in folders if f"/{name}/" in f"/{folder}/"}
            of_split.update(i for i, key in enumerate(keys) if key.rpartition("/")[0] in inside)
        for i in of_split:
            num_twice += splits[i] not in (None, split)
            splits[i] = splits[i] or split
    if num_twice:
        findings.append(
            f"{names.key} gives {counted(num_twice, 'image')} two splits; the first counts"
        )
    return splits
