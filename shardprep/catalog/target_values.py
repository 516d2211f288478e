"""Targets of all images, and targets of several values from columns: vectors, classes or texts."""

from __future__ import annotations

import math
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from shardprep.dataset.example import is_beyond_float32, vanishes_in_float32
from shardprep.dataset.schema import (
    CLASS_PREFIX,
    TARGETS,
    TEXTS,
    UNLABELLED,
    Feature,
    Schema,
    TargetKind,
    Value,
)
from shardprep.errors import OptionName, SourceError, counted, some_of
from shardprep.source.string_column import Coded

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

OF_COLUMNS = ("vector", "soft", "classes")
"""Kinds of targets that consist of several columns."""
_NULL = OptionName("null")
DECIMAL_COMMA = re.compile(r"-?\d+,\d+")
_SEPARATORS = (";", ",", "|", " ")
_SLACK = 1e-3
"""Maximum difference from 1 of the sum of probabilities."""
_MOSTLY = 0.5
"""Share of numbers in a column above which its other values are faults."""
_MOST_TEXTS = 1_000
_NUM_BINS = 10


@dataclass(frozen=True, slots=True)
class TargetValues:
    """The target of an image with several values; a field that does not apply is ()."""

    numbers: tuple[float | None, ...] = ()
    """The numbers of the vector; None if missing."""
    classes: tuple[int, ...] = ()
    """Class index for each feature `label/NAME`; −1 if missing."""
    texts: tuple[str, ...] = ()

    def features(self, schema: Schema) -> dict[str, Value]:
        """Return feature → values; missing values if the image is unlabelled."""
        values: dict[str, Value] = {TEXTS: tuple(text.encode() for text in self.texts)}
        if TARGETS in schema.features:
            numbers = self.numbers or (None,) * len(schema.features[TARGETS].labels)
            values[TARGETS] = array("f", (math.nan if one is None else one for one in numbers))
        names = schema.class_features
        return values | dict(zip(names, self.classes or (UNLABELLED,) * len(names), strict=True))


@dataclass(frozen=True, slots=True)
class ValueColumns(Sequence[TargetValues]):
    """The targets of labelled images as arrays; indexing creates a `TargetValues`."""

    numbers: Floats
    """float64[images, numbers]; NaN if missing."""
    classes: Ints
    """int64[images, classes]; −1 if missing."""

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, at: int) -> TargetValues: ...
    @overload
    def __getitem__(self, at: slice) -> ValueColumns: ...
    def __getitem__(self, at: int | slice) -> TargetValues | ValueColumns:
        if isinstance(at, slice):
            return ValueColumns(self.numbers[at], self.classes[at])
        numbers = (None if math.isnan(one) else one for one in self.numbers[at].tolist())
        return TargetValues(tuple(numbers), tuple(self.classes[at].tolist()))


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets of all images, and their kind."""

    kind: TargetKind
    values: Coded[Any]
    names: tuple[str, ...] = ()
    """Class names in label order: class index i means `names[i]`."""
    unmapped: tuple[str, ...] = ()
    features: Mapping[str, Feature] = field(default_factory=dict)
    """Name → feature of each value, if a target has several values."""
    findings: tuple[str, ...] = ()

    def strata(self) -> Coded[tuple[int, ...]]:
        """Return the strata of each image: its classes, or one of ten bins of its number, or ().

        Soft labels have the stratum of their most probable class; vectors and texts have none.
        """
        bounds: list[float] = []
        if self.kind == "regression":
            numbers = np.array(self.values.values, np.float64)
            order = np.sort(numbers[self.values.codes[self.values.are_there]])
            bounds = [float(order[len(order) * i // _NUM_BINS]) for i in range(1, _NUM_BINS)]

        first = np.cumsum([0, *(len(one.labels) for _, one in sorted(self.features.items()))])

        def strata(value: object) -> tuple[int, ...]:
            if isinstance(value, TargetValues):
                if self.kind == "soft":
                    return (int(np.argmax(np.array(value.numbers, np.float64))),)
                numbered = enumerate(value.classes)
                return tuple(one + int(first[i]) for i, one in numbered if one != UNLABELLED)
            if isinstance(value, float):
                return (bisect_right(bounds, value),)
            if isinstance(value, int):
                return (value,)
            return value if isinstance(value, tuple) else ()

        return self.values.map(strata).filled(())


def text_targets(keys: Sequence[str], cells: Coded[str | tuple[str, ...] | None]) -> Targets:
    """Return the texts of each image as its target; SourceError for more than 1,000 texts."""
    most = 0
    for row, cell in cells.firsts().items():
        number = len(cell) if isinstance(cell, tuple) else 1
        if number > _MOST_TEXTS:
            what = f"has {number:,} texts, but an image may have at most {_MOST_TEXTS:,}"
            raise SourceError(keys[row], what, "name another column of ids")
        most = max(most, number)
    texts = cells.map(lambda one: TargetValues(texts=(one,) if isinstance(one, str) else one or ()))
    doc = "UTF-8; none if the image has no text."
    feature = Feature(kind="texts", dtype="bytes", shape=(max(most, 1),), doc=doc)
    return Targets("texts", texts, features={TEXTS: feature})


def column_targets(
    keys: Sequence[str],
    columns: Mapping[str, Coded[str | None]],
    kind: str,
    separator: str,
    class_names: Callable[[Collection[str]], dict[str, str]],
) -> Targets:
    """Return the targets in the columns of a label table; None is an empty cell.

    With kind "auto", columns of numbers become a vector or, if rows add up to 1, soft labels; other
    columns become classes. Cells with equally many numbers, split by `separator` ("" to detect it),
    give a target for each number. `class_names` returns raw name → class name, in class order.
    SourceError for a cell that does not fit the kind.
    """
    numbers: dict[str, Floats] = {}
    words: dict[str, Coded[str | None]] = {}
    for title, cells in columns.items():
        if kind != "classes" and (found := _vectors(keys, title, cells, separator)):
            numbers |= found
        elif kind in ("vector", "soft") or (kind == "auto" and _is_numeric(keys, title, cells)):
            numbers[title] = _numbers(keys, title, cells)
        else:
            words[title] = cells
    matrix = np.stack([*numbers.values()], axis=1) if numbers else np.empty((len(keys), 0))
    made: TargetKind = "classes" if words else "vector"
    remarks: list[str] = []
    if kind == "soft" or (kind == "auto" and not words and _are_shares(matrix)):
        made = "soft"
        remarks += _soften(keys, list(numbers), matrix, is_asked=kind == "soft")
    elif kind == "auto" and numbers and np.all((matrix == np.floor(matrix)) | np.isnan(matrix)):
        remarks.append(
            f"{some_of(list(numbers))}: only whole numbers, stored as numbers; "
            f"{OptionName('target', 'classes')} stores class numbers, "
            f"{OptionName('target', 'soft')} stores shares of votes"
        )
    if made != "soft":  # a share may become 0, another number may not
        for row, column in np.argwhere((matrix != 0) & (matrix.astype(np.float32) == 0))[:1]:
            what = f"{matrix[row, column]:g} in column {[*numbers][column]!r}"
            raise _not_float32(keys[row], f"{what} is a number", "write 0, ")
    features: dict[str, Feature] = {}
    if numbers:
        doc = "Probabilities" if made == "soft" else "Numbers"
        features[TARGETS] = Feature(
            kind="vector", dtype="float32", labels=tuple(numbers), soft=made == "soft",
            doc=f"{doc} in the order of 'labels'; NaN if missing.",
        )  # fmt: skip
    indices: dict[str, Ints] = {}
    for title, cells in words.items():
        name = CLASS_PREFIX + title.removeprefix(CLASS_PREFIX)
        known = class_names({*filter(None, cells.values)})
        place = {one: i for i, one in enumerate(dict.fromkeys(known.values()))}
        places = [place[known[cell]] if cell else UNLABELLED for cell in cells.values]
        indices[name] = np.array([*places, UNLABELLED], np.int64)[cells.codes]
        doc = "Class index; -1 if missing."
        features[name] = Feature(kind="label", dtype="int64", labels=tuple(place), doc=doc)
    classes = [indices[name] for name in sorted(indices)]
    index = np.stack(classes, axis=1) if classes else np.empty((len(keys), 0), np.int64)
    is_there = np.asarray(np.hstack([~np.isnan(matrix), index >= 0]).any(axis=1))
    remarks += _missing(is_there, numbers, indices)
    codes = np.where(is_there, np.cumsum(is_there) - 1, -1)
    values = Coded(codes, ValueColumns(matrix[is_there], index[is_there]))
    return Targets(made, values, features=features, findings=tuple(remarks))


def _is_numeric(keys: Sequence[str], title: str, cells: Coded[str | None]) -> bool:
    """Return whether all cells are numbers; SourceError if most cells, but not all, are numbers."""
    firsts = {row: cell for row, cell in cells.firsts().items() if cell}
    others = {row: cell for row, cell in firsts.items() if as_number(cell) is None}
    if others and len(others) < _MOSTLY * len(firsts):
        row, cell = next(iter(others.items()))
        raise _not_number(keys[row], f"{cell!r} in column {title!r}", "classes")
    return not others and bool(firsts)


def _vectors(
    keys: Sequence[str], title: str, cells: Coded[str | None], separator: str
) -> dict[str, Floats]:
    """Return a column title[0], title[1] … for each number in cells such as "0.5;0;1"; or {}.

    SourceError for a number that is too large for float32.
    """
    texts = {i: cell.strip("[]() ") for i, cell in enumerate(cells.values) if cell}
    if not texts or as_number(next(iter(texts.values()))) is not None:
        return {}
    for between in (separator,) if separator else _SEPARATORS:
        parts = {i: text.split(between.strip() or None) for i, text in texts.items()}
        length = len(next(iter(parts.values())))
        if length < 2 or any(len(own) != length for own in parts.values()):
            continue
        matrix = np.full((len(cells.values) + 1, length), np.nan)
        try:
            for i, own in parts.items():
                matrix[i] = [float(one) or _zero(one) for one in own]
        except ValueError:
            continue
        is_large = np.asarray(np.isinf(matrix.astype(np.float32)).any(axis=1))
        if not is_large.any():
            return {f"{title}[{i}]": matrix[:, i][cells.codes] for i in range(length)}
        for row, cell in cells.firsts().items():
            if is_large[cells.codes[row]] and cell and "inf" not in cell.lower():
                raise _not_float32(keys[row], f"{cell!r} in column {title!r} has a number")
    return {}


def _numbers(keys: Sequence[str], title: str, cells: Coded[str | None]) -> Floats:
    values = np.full(len(cells.values) + 1, np.nan)
    for row, cell in cells.firsts().items():
        if cell:
            number = checked_number(keys[row], f"{cell!r} in column {title!r}", cell)
            values[cells.codes[row]] = number or _zero(cell)
    return values[cells.codes]


def _zero(text: str) -> float:
    """Return 0.0, or the smallest float64 if float64 makes 0 of another number, as of 1e-400."""
    return math.ulp(0.0) if vanishes_in_float32(text) else 0.0


def _are_shares(matrix: Floats) -> bool:
    rows = matrix[~np.isnan(matrix).all(axis=1)]
    sums = rows.sum(axis=1)  # NaN if a cell is missing, which fails the comparison
    is_share = bool((rows >= 0).all() and (np.abs(sums - 1) <= _SLACK).all())
    return matrix.shape[1] > 1 and len(rows) > 0 and is_share


def _soften(
    keys: Sequence[str], names: Sequence[str], matrix: Floats, *, is_asked: bool
) -> list[str]:
    """Divide each row by its sum, in place, and return remarks on the rows.

    Rows that are incomplete or only zeros become NaN. SourceError for a negative number.
    """
    remarks = []
    if (wrong := np.argwhere(matrix < 0)).size:
        row, column = wrong[0].tolist()
        what = f"column {names[column]!r} has {matrix[row, column]:g}, but votes must be 0 or more"
        raise SourceError(keys[row], what, f"use {OptionName('target', 'vector')}")
    sums = matrix.sum(axis=1)
    is_sum = sums > 0
    lacking = int((~is_sum & ~np.isnan(matrix).all(axis=1)).sum())
    if lacking:
        remarks.append(f"{counted(lacking, 'image')} with a missing vote or only zeros: unlabelled")
    if (np.abs(sums[is_sum] - 1) > _SLACK).any():
        remarks.append(f"soft labels: the {len(names)} columns are divided by their sum")
    elif not is_asked:
        what = f"soft labels: the {len(names)} columns sum to 1"
        remarks.append(f"{what}; {OptionName('target', 'vector')} stores them as plain numbers")
    matrix[~is_sum] = np.nan
    matrix[is_sum] /= sums[is_sum, np.newaxis]
    return remarks


def _missing(
    is_there: NDArray[np.bool_], numbers: Mapping[str, Floats], classes: Mapping[str, Ints]
) -> Iterator[str]:
    lacks = {name: np.isnan(one) for name, one in numbers.items()}
    lacks |= {name.removeprefix(CLASS_PREFIX): one < 0 for name, one in classes.items()}
    counts = {name: int((one & is_there).sum()) for name, one in lacks.items()}
    if some := [f"{count:,} without {name}" for name, count in counts.items() if count]:
        yield f"labelled images with a missing value: {some_of(some)}"


def as_number(text: str) -> float | None:
    """Return the finite number in a text, or None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def checked_number(key: str, what: str, text: str) -> float:
    """Return the number in a cell.

    SourceError, which begins with `what`, if it is not a number or is too large for float32.
    """
    number = as_number(text)
    if number is None:
        if DECIMAL_COMMA.fullmatch(text):
            hint = f"write {text.replace(',', '.')}"
            raise SourceError(key, f"{what} has a decimal comma", hint)
        raise _not_number(key, what, "class")
    if is_beyond_float32(number):
        raise _not_float32(key, f"{what} is a number")
    return number


def number_to_store(key: str, what: str, text: str) -> float:
    """Return `checked_number`, with the same error if float32 makes 0 of another number."""
    number = checked_number(key, what, text)
    if vanishes_in_float32(text):
        raise _not_float32(key, f"{what} is a number", "write 0, ")
    return number


def _not_float32(key: str, what: str, way: str = "") -> SourceError:
    hint = f"name this cell with {_NULL}, or use {OptionName('target', 'text')}"
    return SourceError(key, f"{what} that float32 cannot hold", way + hint)


def _not_number(key: str, what: str, kind: str) -> SourceError:
    flag = OptionName("target", kind)
    hint = f"list the text in {_NULL} if it means a missing value, or use {flag}"
    return SourceError(key, f"{what} is not a number", hint)
