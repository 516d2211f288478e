"""YOLO: a text file for each image, a line for each object, coordinates relative to the sides."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from shardprep.catalog.names import natural_order, stem
from shardprep.catalog.objects.formats.annotated_source import (
    AnnotatedSource,
    Sign,
    by_sample,
    named_as_images,
    no_documents,
    read_each,
)
from shardprep.catalog.objects.formats.box_cells import is_number
from shardprep.catalog.objects.formats.pairing import Pairing
from shardprep.catalog.objects.formats.yolo_names import (
    NameFile,
    PoseForm,
    members_below,
    name_files,
    stated_names,
    yaml_splits,
)
from shardprep.catalog.objects.object_table import MALFORMED, Found, ObjectTable
from shardprep.errors import OptionName, counted, shown
from shardprep.image.annotation_types import Outline, Polygons
from shardprep.recipe.object_rules import BoxColumns, FormatRule
from shardprep.storage.text_file import decoded

_NO_LABELS = frozenset(
    ("classes", "train", "val", "valid", "test", "readme", "requirements", "labels")
)
"""Stems of text files without labels, unless an image has that name."""
_MOST_SHOWN = 60
_MOST_LIKE_POSES = 0.5
"""Share of objects that may be poses instead of polygons, above which a finding says so."""
_EDGE = 1e-6
_MOST_REACH = 2.0
"""Right and lower end of a box, in shares of the sides, above which they are other units."""
_CORNERS = 4
_MOST_NUMBERS = 32
"""Maximum number of classes that a note lists."""


def read(rule: FormatRule, source: AnnotatedSource) -> Found:
    """Return the objects of all label files; an image without a label file has no object.

    Classes are in the order of the names file, or else numbers. For errors see `Format`.
    """
    argument = next(iter(rule.files), "")
    names = stated_names(source, argument, rule.option)
    members = named_as_images(source, ".txt")
    named = {member.key for member in members}
    if argument and names and "/" in names.key:  # prefer label files below its folder
        members = members_below(members, names.key) or members
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
        texts = read_each(source.documents.members(".txt"))
        stray = next((text.key for text in texts if is_yolo(text.data)), "")
        raise no_documents(source, rule.flag, ".txt", stray)
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
    splits = yaml_splits(names, source, findings) if names else []
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


def _pose_of(names: NameFile | None, *, is_wanted: bool) -> tuple[PoseForm, list[str]]:
    fault = names.pose_fault if names else None
    if fault is not None and is_wanted:
        raise fault
    findings = [] if fault is None else [f"{fault.where}: {fault.what}, which is not used"]
    return (names.pose if names else None) or PoseForm(is_wanted=is_wanted), findings


def recognise(source: AnnotatedSource) -> list[Sign]:
    """Return the `Sign` of YOLO, or of each names file if their classes differ, or []."""
    files = name_files(source)
    options: dict[str, NameFile | None] = {"yolo": next(iter(files), None)}
    if any(one.names != files[0].names for one in files[1:]):
        options = {f"yolo:{one.key}": one for one in files}
    signs: list[Sign] = []
    for option, names in options.items():
        members = named_as_images(source, ".txt")
        if names and len(options) > 1:
            members = members_below(members, names.key)
        pose, is_sound = (names.pose, names.pose_fault is None) if names else (None, True)
        shape = pose or _ANY_POSE
        is_one = functools.partial(is_yolo, shape=shape)
        title = f"YOLO, classes of {names.key}" if names else "YOLO, classes without names"
        found, texts = by_sample(source, members, is_one, option, title)
        objects = [one for data in texts for one in _read_lines(data, shape).objects]
        has_outlines = 2 * sum(map(_is_outline, objects)) > len(objects)
        has_points = pose is not None and is_sound
        signs += [replace(one, has_points=has_points, has_outlines=has_outlines) for one in found]
    return signs


def _is_outline(one: _Object) -> bool:
    """Return whether an object is a polygon of over four corners that cannot be a pose."""
    outline = None if one.may_be_pose else one.outline
    return isinstance(outline, Polygons) and len(outline.rings[0]) > _CORNERS


_ANY_POSE = PoseForm(is_wanted=False)


def fault_of(data: bytes) -> str:
    """Return why a text is not YOLO, as "is not YOLO: line 3 is …", or "" if it is."""
    return _read_lines(data, _ANY_POSE, most=_MOST_REACH).fault


def is_yolo(data: bytes, shape: PoseForm = _ANY_POSE) -> bool:
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


def _read_lines(data: bytes, shape: PoseForm, most: float = math.inf) -> _Lines:
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
    odd = next((word for word in words if not is_number(word)), None)
    if odd is None:
        return str(error)
    what = f"{shown(odd, _MOST_SHOWN)!r} is not a number"
    return what + ", blanks separate numbers" * ("," in odd)


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


def _object(words: Sequence[str], shape: PoseForm) -> _Object:
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
