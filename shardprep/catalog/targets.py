"""Targets from cells: a class index, several class indices, a number or a text. Pure.

A target is the value that a model learns to predict; None for an unlabelled image.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from shardprep.catalog.splits import natural_order
from shardprep.catalog.table import decoded
from shardprep.dataset.example import is_beyond_float32
from shardprep.errors import SourceError, some_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from shardprep.dataset.schema import TargetKind

Cell = str | tuple[str, ...]
"""The label of an image: one name, or the names of the columns that are set."""
Target = int | tuple[int, ...] | float | str | None

_SEPARATORS = ("|", ",", ";", " ")
_NUM_BINS = 10
_MANY_VALUES = 20
_MOST_NAMES = 10
"""Number of class names in an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpec:
    """The kind of targets that is asked for."""

    kind: TargetKind | Literal["auto"] = "auto"
    """"auto" tells it from the cells."""
    separator: str = ""
    """Between the class names of one cell; "" for the one that fits, of kind "multilabel"."""
    classes: Sequence[str] = ()
    """Class names in the wished order; empty for those found, in natural order."""
    class_map: Mapping[str, str] = field(default_factory=dict)
    """New names for classes, which keep their order; one not named keeps its own."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The target of each image, and the kind of all."""

    kind: TargetKind
    values: list[Target]
    names: tuple[str, ...]
    """Class names; targets of classes are indices into them."""
    unmapped: tuple[str, ...] = ()
    """Old names of the class map that no class has."""

    def strata(self) -> list[tuple[int, ...]]:
        """Return the strata that a split spreads evenly: classes, or ten bins of a number."""
        order = sorted(value for value in self.values if isinstance(value, float))
        bounds = [order[len(order) * i // _NUM_BINS] for i in range(1, _NUM_BINS) if order]

        def strata(value: Target) -> tuple[int, ...]:
            if isinstance(value, float):
                return (bisect_right(bounds, value),)
            if isinstance(value, int):
                return (value,)
            return value if isinstance(value, tuple) else ()

        return [strata(value) for value in self.values]


def make_targets(
    keys: Sequence[str],
    cells: Sequence[Cell | None],
    spec: TargetSpec,
    all_cells: Iterable[Cell] = (),
) -> Targets:
    """Return the targets that the cells of the images mean.

    `all_cells` are further cells of the table, whose classes count though no image has them.

    Raises:
        SourceError: a cell is not of the kind asked for, or the class map fits no class.

    """
    found = [cell for cell in cells if cell is not None]
    kind, separator = spec.kind, spec.separator
    if kind == "auto":
        kind, separator = _guess(found, separator)
    if spec.class_map and (not found or kind not in ("class", "multilabel")):
        what = f"targets are of kind {kind}" if found else "no labels are found"
        raise SourceError("--class-map", f"there are no classes to rename: {what}", "leave it out")
    if not found or kind == "none":
        return Targets("none", [None] * len(cells), ())
    if kind == "text":
        return Targets(kind, [None if cell is None else _text(cell) for cell in cells], ())
    if kind == "regression":
        pairs = zip(keys, cells, strict=True)
        return Targets(kind, [None if c is None else _number(key, c) for key, c in pairs], ())
    if kind == "multilabel" and not separator:
        texts = [cell for cell in found if isinstance(cell, str)]
        separator = _separator(set(texts)) or _commonest_separator(texts)
    split = [
        None if cell is None else _several(key, cell, kind, separator)
        for key, cell in zip(keys, cells, strict=True)
    ]
    extra = [name for cell in all_cells for name in _several("", cell, kind, separator)]
    raw = {name for several in split if several for name in several}
    names, unmapped = _names(raw.union(extra), spec.class_map)
    if spec.classes:
        _check_known(keys, split, names, spec.classes)
        ordered = tuple(spec.classes)
    else:
        ordered = tuple(dict.fromkeys(names.values()))
    place = {name: i for i, name in enumerate(ordered)}
    number = {raw: place[name] for raw, name in names.items() if name in place}
    if kind == "multilabel":
        sets = [None if s is None else tuple(sorted({number[n] for n in s})) for s in split]
        return Targets(kind, list(sets), ordered, unmapped)
    single = [number[several[0]] if several else None for several in split]
    return Targets(kind, list(single), ordered, unmapped)


def parse_class_map(data: bytes, name: str) -> dict[str, str]:
    """Return the names in a JSON object, a JSON list (by position) or a CSV of two columns."""
    text = decoded(data)
    try:
        document = json.loads(text)
    except json.JSONDecodeError:
        rows = [row for row in csv.reader(io.StringIO(text)) if len(row) >= 2]
        if not rows:
            raise SourceError(name, "is neither JSON nor a CSV of two columns") from None
        return {row[0].strip(): row[1].strip() for row in rows}
    if isinstance(document, list):
        return {str(i): str(value) for i, value in enumerate(document)}
    if isinstance(document, dict) and not any(
        isinstance(v, dict | list) for v in document.values()
    ):
        return {str(key): str(value) for key, value in document.items()}
    raise SourceError(name, "is no JSON object of names", 'write {"0": "cat", "1": "dog"}')


def _guess(found: Sequence[Cell], separator: str) -> tuple[TargetKind, str]:
    """Return the kind of target that the cells are of, and the separator of several classes."""
    if not found:
        return "none", ""
    texts = {cell for cell in found if isinstance(cell, str)}
    separator = separator or _separator(texts)
    if separator or any(isinstance(cell, tuple) for cell in found):
        return "multilabel", separator
    numbers = [_as_number(text) for text in texts]
    fractions = any(number is not None and number != int(number) for number in numbers)
    is_number = len(texts) > _MANY_VALUES and None not in numbers and fractions
    return "regression" if is_number else "class", ""


def _separator(texts: Collection[str]) -> str:
    """Return the separator of class names: each name of a cell is in other cells too."""
    for separator in _SEPARATORS:
        split = [{part.strip() for part in text.split(separator)} - {""} for text in texts]
        if not any(len(parts) > 1 for parts in split):
            continue
        uses = Counter(part for parts in split for part in parts)
        several = {part for parts in split if len(parts) > 1 for part in parts}
        if all(uses[part] > 1 for part in several) and len(uses) < len(texts):
            return separator
    return ""


def _commonest_separator(texts: Iterable[str]) -> str:
    """Return the separator that most cells contain; a space if none does."""
    counts = Counter(separator for text in texts for separator in _SEPARATORS if separator in text)
    return max(_SEPARATORS, key=lambda separator: counts[separator]) if counts else " "


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else " ".join(cell)


def _number(key: str, cell: Cell) -> float:
    number, target = _as_number(_text(cell)), f"its target {_text(cell)!r}"
    if number is None:
        hint = "name what stands for nothing with --null, or use --target class"
        raise SourceError(key, f"{target} is not a number", hint)
    if is_beyond_float32(number):
        hint = "name it with --null, or use --target text"
        raise SourceError(key, f"{target} is a number that float32 cannot hold", hint)
    return number


def _as_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _several(key: str, cell: Cell, kind: TargetKind, separator: str) -> tuple[str, ...]:
    if isinstance(cell, tuple):
        if kind == "class" and len(cell) != 1:
            what = f"has {len(cell)} classes set ({', '.join(cell) or 'none'}), not one"
            raise SourceError(key, what, "use --target multilabel")
        return cell
    if kind == "class":
        return (cell,)
    return tuple(part.strip() for part in cell.split(separator) if part.strip())


def class_names(raw: Collection[str]) -> dict[str, str]:
    """Return the name of every class by its raw name, in natural order: "1.0" is the class "1"."""
    whole = {name: re.sub(r"\.0+$", "", name) for name in raw}
    if not all(re.fullmatch(r"-?\d+", name) for name in whole.values()):
        whole = {name: name for name in raw}
    return {name: whole[name] for name in sorted(raw, key=lambda name: natural_order(whole[name]))}


def _names(
    raw: Collection[str], renamed: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the name of every raw class, in class order, and the names renamed that none has.

    Whatever they are renamed to, classes keep the order of their old names: their indices stay
    those of the source. "1.0" is the class "1".
    """
    whole = class_names(raw)
    ordered = list(whole)
    there = {*raw, *whole.values()}
    unmapped = tuple(name for name in renamed if name not in there)
    if renamed and len(unmapped) == len(renamed):
        classes = some_of(list(dict.fromkeys(whole[name] for name in ordered)), _MOST_NAMES)
        what = f"none of its {len(renamed):,} names is that of a class, such as {unmapped[0]!r}"
        raise SourceError("--class-map", what, f"classes are {classes}")
    names = {name: renamed.get(name, renamed.get(whole[name], whole[name])) for name in ordered}
    return names, unmapped


def _check_known(
    keys: Sequence[str],
    split: Sequence[tuple[str, ...] | None],
    names: Mapping[str, str],
    classes: Sequence[str],
) -> None:
    counts = Counter(names[raw] for several in split if several for raw in several)
    for key, several in zip(keys, split, strict=True):
        for raw in several or ():
            if (name := names[raw]) not in classes:
                what = f"label {name!r} ({counts[name]:,} images) is not among --classes"
                raise SourceError(key, what, f"known are {some_of(classes, _MOST_NAMES)}")
