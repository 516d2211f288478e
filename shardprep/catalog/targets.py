"""Targets of images from the labels that `labels` finds, and the class names of a recipe.

A target is the value that a model learns to predict: a class index, a tuple of class indices, a
number, a text, or several values. Unlabelled images have the target None.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from shardprep.catalog.names import natural_order
from shardprep.catalog.tables.long_rows import check_widths
from shardprep.catalog.target_values import (
    DECIMAL_COMMA,
    OF_COLUMNS,
    Targets,
    TargetValues,
    as_number,
    column_targets,
    number_to_store,
    text_targets,
)
from shardprep.dataset.schema import CLASS_PREFIX, TARGETS, TargetKind
from shardprep.errors import OptionName, SourceError, counted, nearest_name, some_of, use_one_of
from shardprep.recipe.recipe import Recipe
from shardprep.recipe.rules import parse_pairs
from shardprep.source.string_column import Coded
from shardprep.storage.text_file import CsvRows, decoded, text_lines

Cell = str | tuple[str, ...]
Target = int | tuple[int, ...] | float | str | TargetValues | None

_NO_NAME = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Matches characters that class names cannot have: controls, line ends, lone surrogates."""
_HEADER = re.compile(
    r"((old|new|from|to|source|target|original|raw|mapped|class|label|category|name|id|key|value"
    r"|code)[ _-]?)+", re.IGNORECASE
)  # fmt: skip
"""Matches the first cell in the header of a class map."""
SEPARATORS = ("|", ",", ";", " ")
_MANY_VALUES = 20
_NOTHING = frozenset({"na", "n/a", "#n/a", "nan", "null", "none", "nil", "?", "-", "missing"})
"""Case-folded class names that probably mean an empty cell."""
_MOST_NAMES = 10
_CLASSES, _CLASS_MAP = OptionName("classes"), OptionName("class_map")
_LABELS, _TARGET = OptionName("labels"), OptionName("target")
_SEVERAL = re.compile(
    r"""\[\s*[-+.\d]+[\s,]+[-+.\d].*\]|[\[(]\s*(['"]).*\1[\s,]+['"].*[\])]""", re.DOTALL
)
"""Matches a list of several numbers or texts as Python or NumPy prints it: ['a' 'b']."""
_MAP_HINT = 'write {"0": "cat", "1": "dog"}, or a line OLD,NEW for each name'
_SINGLE = "needs one label for each image, or one list with a number for each class"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpec:
    """The kind of targets and the classes that the recipe states."""

    kind: TargetKind | Literal["auto"] = "auto"
    """Kind of targets; "auto" to detect it from the cells."""
    separator: str = ""
    """Separator of the class names in a cell; "" to detect it."""
    classes: Sequence[str] = ()
    """Class names in label order; () for all names in the cells, in natural order."""
    class_map: Mapping[str, str] = field(default_factory=dict)
    """Old name → new name of a class."""


def make_targets(
    keys: Sequence[str],
    cells: Sequence[Cell | None],
    spec: TargetSpec,
    all_cells: Iterable[Cell] = (),
    columns: Mapping[str, Coded[str | None]] = MappingProxyType({}),
) -> Targets:
    """Return the targets from one cell per image; names in `all_cells` are classes, too.

    `columns` are the cells for targets of several values. SourceError if cells do not fit `spec`.
    """
    cells = _with_lists(cells, spec.kind)
    if columns or spec.kind in (*OF_COLUMNS, "texts"):
        return _several_targets(keys, cells, spec, columns)
    column: Coded[Cell] = Coded.of(cells)  # type: ignore[arg-type] # None is not among its values
    counts = column.counts()
    kind, separator = _kind(counts, spec)
    if spec.class_map and (not counts or kind not in ("class", "multilabel")):
        what = f"targets are of kind {kind}" if counts else "no labels are found"
        what = f"there are no classes to rename: {what}"
        raise SourceError(_CLASS_MAP, what, "leave this option out")
    if not counts or kind == "none":
        return Targets("none", Coded.constant(None, len(cells)), ())
    if kind == "text":
        return Targets(kind, column.map(_text), ())
    first_rows = column.firsts()
    if kind == "regression":
        numbers = [
            number_to_store(keys[row], f"its target {_text(cell)!r}", _text(cell))
            for row, cell in first_rows.items()
        ]
        return Targets(kind, column.mapped(numbers), ())
    split = {
        cell: split_classes(keys[row], cell, kind, separator) for row, cell in first_rows.items()
    }
    others = _with_lists([*all_cells], spec.kind)
    extra = [
        x for cell in others if cell is not None for x in split_classes("", cell, kind, separator)
    ]
    raw = {name for several in split.values() for name in several}
    names, unmapped = _names(raw.union(extra), spec.class_map)
    if spec.classes:
        _check_known(keys, column, split, names, spec.classes)
        ordered = tuple(spec.classes)
    else:
        ordered = tuple(dict.fromkeys(names.values()))
    place = {name: i for i, name in enumerate(ordered)}
    number = {raw: place[name] for raw, name in names.items() if name in place}
    findings = (*_alike(ordered), *_one_number(ordered), *_without_meaning(names, counts))
    if kind == "multilabel":
        sets = column.map(lambda cell: tuple(sorted({number[name] for name in split[cell]})))
        return Targets(kind, sets, ordered, unmapped, findings=findings)
    single = column.map(lambda cell: number[split[cell][0]] if split[cell] else None)
    findings += many_numbers(ordered) if spec.kind == "auto" else ()
    return Targets(kind, single, ordered, unmapped, findings=findings)


def _alike(names: Sequence[str]) -> tuple[str, ...]:
    """Return a note on class names that differ only in case."""
    known = dict[str, str]()
    for name in names:
        if len(name) > 1 and (other := known.setdefault(name.casefold(), name)) != name:
            flag = OptionName("class_map", f"{name}={other}")
            return (f"classes {other!r} and {name!r} differ only in case; {flag} joins them",)
    return ()


def _one_number(names: Sequence[str]) -> tuple[str, ...]:
    """Return a note on a class that is a number among three or more words of several letters."""
    numbers = [one for one in names if as_number(one) is not None]
    words = [one for one in names if len(one) > 1 and one not in numbers]
    if len(numbers) != 1 or not 3 <= len(words) == len(names) - 1:
        return ()
    flags = OptionName("class_map", f"{numbers[0]}={words[0]}"), OptionName("null", numbers[0])
    what = f"class {numbers[0]!r} is a number among names such as {words[0]!r}"
    return (f"{what}; {flags[0]} joins it with one, {flags[1]} makes it empty",)


def _without_meaning(names: Mapping[str, str], counts: Mapping[Cell, int]) -> tuple[str, ...]:
    """Return a note on a class whose name may mean that an image has no label, such as NA."""
    found = [name for name in names if name.casefold() in _NOTHING and name in counts]
    if not found:
        return ()
    images = counted(sum(counts[name] for name in found), "image")
    called, flag = some_of([*map(repr, found)]), OptionName("null", ",".join(found))
    return (f"class {called} of {images}: if it means no label, {flag} makes it empty",)


def many_numbers(names: Sequence[str]) -> tuple[str, ...]:
    """Return a note on classes that may be a target of numbers, such as ages; not on 007."""
    are_codes = any(len(name) > 1 and name.startswith("0") for name in names)
    if len(names) <= _MANY_VALUES or are_codes or not all(map(str.isdigit, names)):
        return ()
    what = f"labels are {len(names):,} classes, which are whole numbers"
    flags = f"{OptionName('target', 'vector')} or {OptionName('target', 'regression')}"
    return (f"{what}; {flags} stores them as numbers",)


def _several_targets(
    keys: Sequence[str],
    cells: Sequence[Cell | None],
    spec: TargetSpec,
    columns: Mapping[str, Coded[str | None]],
) -> Targets:
    if spec.class_map and spec.kind not in ("auto", "classes"):
        raise SourceError(_CLASS_MAP, f"has no effect on {spec.kind} targets", "leave it out")
    unmapped = dict(spec.class_map)

    def names(raw: Collection[str]) -> dict[str, str]:
        there = {*raw, *class_names(raw).values()}
        own = {old: new for old, new in spec.class_map.items() if old in there}
        for old in own:
            unmapped.pop(old, None)
        return _names(raw, own)[0]

    if spec.kind == "texts":
        found = text_targets(keys, Coded.of(cells))
    elif not columns:
        hint = f"name the columns: {OptionName('labels', 'csv:FILE:ID:A,B')}"
        raise SourceError(_TARGET, f"{spec.kind} needs columns of a table", hint)
    else:
        found = column_targets(keys, columns, spec.kind, spec.separator, names)
        _check_one_class(found, columns, spec)
    found = replace(found, unmapped=tuple(unmapped))
    if not found.values.are_there.any():
        return replace(found, kind="none", features={})
    features = dict(found.features)
    if spec.classes:
        numbers = features[TARGETS].labels if TARGETS in features else ()
        titles = {one.rpartition("[")[0] or one for one in numbers}
        if len(titles) != 1 or len(numbers) != len(spec.classes):
            raise SourceError(_CLASSES, _SINGLE, "leave this option out")
        features[TARGETS] = features[TARGETS].model_copy(update={"labels": tuple(spec.classes)})
    return replace(found, features=features)


def _check_one_class(found: Targets, columns: Collection[str], spec: TargetSpec) -> None:
    """Raise a SourceError for several classes in a cell: each of several targets has one class."""
    for name, feature in found.features.items():
        title, texts = name.removeprefix(CLASS_PREFIX), feature.labels if name != TARGETS else ()
        odd = [one for one in texts if listed(one) != one]
        if by := spec.separator:
            odd += [one for one in texts if by in one]
        elif spec.kind == "auto":
            odd += [one for one, _ in filter(None, [unclear_text(texts)])]
            odd += [one for one in texts if "," in one] if find_separator(texts) == "," else []
        if odd:
            what = (
                f"{odd[0]!r} in column {title!r} may be several classes, but several targets have"
            )
            flag = OptionName("columns", ",".join(one for one in columns if one != title))
            alone = f"name {title!r} alone in {OptionName('labels')}"
            hint = f"{alone}, and store the others with {flag}"
            if not by and TARGETS not in found.features:
                hint += f"; or give {OptionName('target', 'classes')} if it is one class"
            raise SourceError(_LABELS, f"{what} one class each", hint)


class Naming(NamedTuple):
    """The class names that the recipe states, and how to read them from cells."""

    class_map: Mapping[str, str] = {}
    classes: tuple[str, ...] = ()
    is_of_labels: bool = False
    """Whether images have labels, so that `classes` may name their classes instead of objects."""
    separator: str | None = None
    """Separator of classes in a cell, "" to detect it; None if a cell is a single class."""

    def of(self, names: Sequence[str]) -> list[str]:
        return [self.class_map.get(name, name) for name in names]

    def wanted(self, called: Sequence[str]) -> tuple[str, ...]:
        """Return `classes`; () if images have labels and `called` has none of these names."""
        return () if self.is_of_labels and not set(self.classes) & set(called) else self.classes

    def ordered(self, called: Sequence[str], where: str) -> tuple[str, ...]:
        """Return `wanted`, or else the names in `called`.

        SourceError if they share no class, or if a class that `called` lacks looks misspelt.
        """
        if not self.wanted(called):
            return tuple(dict.fromkeys(called))
        if called and not set(self.classes) & set(called):
            what = f"none of {some_of(self.classes, _MOST_NAMES)} is a class of the {where}"
            raise SourceError(_CLASSES, what, f"use one of {some_of(called, _MOST_NAMES)}")
        others = [one for one in called if one not in self.classes]
        for name in (one for one in self.classes if one not in called):
            if near := nearest_name(name, others):
                what = f"no class of the {where} is called {name}"
                raise SourceError(_CLASSES, what, f"is {near} meant? use one of {some_of(called)}")
        return self.classes


def naming_of(recipe: Recipe, labels: Coded[Cell | None], read: Callable[[str], bytes]) -> Naming:
    """Return the class names of a recipe; `read` returns the bytes of a file that it names."""
    class_map = class_map_of(recipe.class_map, partial(words_in, labels), read)
    return Naming(class_map, recipe.classes, bool(labels.are_there.any()))


def class_map_of(
    text: str, classes: Callable[[], Collection[str]], read: Callable[[str], bytes]
) -> dict[str, str]:
    """Return old name → new name, from pairs OLD=NEW or from a file that `read` reads.

    A header is left out, unless it is a class. OptionError or SourceError for other texts.
    """
    if "=" in text or not text:
        return parse_pairs(text, _CLASS_MAP) if text else {}
    parsed = _parsed_map(read(text), text)
    first = next(iter(parsed), "")
    if _HEADER.fullmatch(first) and first not in classes():
        del parsed[first]
    return parsed


def words_in(cells: Iterable[Cell | None]) -> set[str]:
    """Return the texts in cells and the parts of them between separators."""
    words: set[str] = set()
    for cell in map(listed, set(cells)):
        for text in (cell,) if isinstance(cell, str) else cell or ():
            words.update((text, *re.split(r"\s*[|,;]\s*|\s+", text)))
    return words


def _parsed_map(data: bytes, name: str) -> dict[str, str]:
    """Return old name → new name from a JSON object, a JSON list, or a CSV with two columns."""
    text = decoded(data)
    try:
        document = json.loads(text)
    except json.JSONDecodeError:
        lines = CsvRows(text_lines(data))
        rows = [row for row in lines if len(row) >= 2]
        if what := lines.fault(0, 1):
            raise SourceError(name, what, "close the quote") from None
        if not rows:
            raise SourceError(name, "is neither JSON nor a CSV of two columns", _MAP_HINT) from None
        check_widths(rows, name)
        return {row[0].strip(): row[1].strip() for row in rows}
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits
        raise SourceError(name, f"is JSON that cannot be read ({error})", _MAP_HINT) from error
    if isinstance(document, list):
        return {str(i): str(value) for i, value in enumerate(document)}
    if isinstance(document, dict) and not any(
        isinstance(v, dict | list) for v in document.values()
    ):
        return {str(key): str(value) for key, value in document.items()}
    raise SourceError(name, "is not a JSON object of names", _MAP_HINT)


def check_names(names: Iterable[str]) -> None:
    """Raise a SourceError for a class name with control characters or lone surrogates."""
    for name in names:
        if match := _NO_NAME.search(name):
            what = f"{name!r} contains {match[0]!r}, which a class name may not have"
            raise SourceError("classes", what, f"correct the source, or use {_CLASS_MAP}")


def _kind(found: Mapping[Any, int], spec: TargetSpec) -> tuple[TargetKind, str]:
    """Return the kind of targets, and the separator if cells have several classes."""
    texts, separator = [cell for cell in found if isinstance(cell, str)], spec.separator
    if spec.kind == "multilabel":
        return spec.kind, separator or _separator_of(found)
    if spec.kind != "auto" or not found:
        return ("none" if spec.kind == "auto" else spec.kind), separator
    if not separator:
        _check_commas(texts)
    separator = separator or find_separator(texts)
    if separator or len(texts) < len(found):
        return "multilabel", separator or _separator_of(found)
    if unclear := unclear_text(texts):
        flags = f"{OptionName('target', 'class')} or {OptionName('separator', unclear[1])}"
        raise SourceError(_LABELS, f"{unclear[0]!r} is one class or several", f"give {flags}")
    numbers = [as_number(text) for text in texts]
    fractions = any(number is not None and number != int(number) for number in numbers)
    is_number = len(texts) - numbers.count(None) > _MANY_VALUES and fractions
    odd = [text for text, number in zip(texts, numbers, strict=True) if number is None]
    if is_number and odd and 2 * sum(map(found.__getitem__, odd)) < sum(found.values()):
        are = counted(sum(map(found.__getitem__, odd)), "label", "is", "are")
        what = f"are numbers, but {are} not, such as {odd[0]!r}"
        hint = f"{OptionName('null', odd[0])} makes it empty, and "
        hint += f"{OptionName('target', 'class')} makes all of them classes"
        raise SourceError(_LABELS, what, hint)
    return "regression" if is_number and not odd else "class", ""


def _check_commas(texts: Collection[str]) -> None:
    found = [text for text in texts if DECIMAL_COMMA.fullmatch(text)]
    if len(found) > _MANY_VALUES and 2 * len(found) > len(texts):
        what = f"{found[0]!r} may be a number with a decimal comma, or several classes"
        flags = f"{OptionName('target', 'multilabel')} or {OptionName('target', 'class')}"
        raise SourceError(_LABELS, what, f"write {found[0].replace(',', '.')}, or give {flags}")


def find_separator(texts: Collection[str]) -> str:
    """Return the separator that splits cells into names that recur in other cells, or ""."""
    for separator in SEPARATORS:
        split = [{part.strip() for part in text.split(separator)} - {""} for text in texts]
        if not any(len(parts) > 1 for parts in split):
            continue
        uses = Counter(part for parts in split for part in parts)
        several = {part for parts in split if len(parts) > 1 for part in parts}
        are_used_again = [uses[part] > 1 for part in several]
        if separator == "|" and any(are_used_again):  # names of classes do not have it
            return separator
        if all(are_used_again) and len(uses) < len(texts):
            return separator
    return ""


def unclear_text(texts: Collection[str]) -> tuple[str, str] | None:
    """Return the first text that may be several classes, and the separator; or None.

    It has `|` or `;`, or is divided by another separator into parts that are all among the texts.
    """
    known = {*texts}
    for text, by in itertools.product(texts, SEPARATORS):
        parts = [*filter(None, map(str.strip, text.split(by)))] if by in text else []
        if len(parts) > 1 and (by in "|;" or known.issuperset(parts)):
            return text, by
    return None


def _separator_of(cells: Mapping[Cell, int]) -> str:
    """Return the separator of texts of several classes, or the most frequent possible separator."""
    texts = {cell: count for cell, count in cells.items() if isinstance(cell, str)}
    counts: Counter[str] = Counter()
    for text, number in texts.items():
        counts.update({one: number for one in SEPARATORS if one in text})
    commonest = max(SEPARATORS, key=lambda separator: counts[separator]) if counts else " "
    return find_separator(texts) or commonest


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else " ".join(cell)


def _with_lists(cells: Sequence[Cell | None], kind: str) -> Sequence[Cell | None]:
    if kind not in ("auto", "multilabel", "texts"):
        return cells
    found = Coded.of(cells).map(listed)
    texts = (one for one in found.counts() if isinstance(one, str) and kind != "texts")
    if several := next(filter(_SEVERAL.fullmatch, texts), ""):
        flag = OptionName("target", "class")
        hint = f'write lists as JSON, such as ["a", "b"], or give {flag}'
        raise SourceError(_LABELS, f"{several!r} is one class or several", hint)
    return found


def listed(cell: Cell | None) -> Cell | None:
    """Return the texts in a cell with a JSON list, as exports write it; otherwise the cell."""
    text = cell[0] if isinstance(cell, tuple) and len(cell) == 1 else cell
    if isinstance(text, str) and text.startswith(('["', "[]")):
        with contextlib.suppress(ValueError, RecursionError):
            texts = json.loads(text)
            if all(isinstance(one, str) for one in texts):
                return tuple(texts)
    return cell


def split_classes(key: str, cell: Cell, kind: TargetKind, separator: str) -> tuple[str, ...]:
    """Return the classes in a cell; SourceError for several if `kind` is "class"."""
    if isinstance(cell, tuple):
        if kind == "class" and len(cell) != 1:
            what = f"has {len(cell)} classes ({', '.join(cell) or 'none'}), not one class"
            raise SourceError(key, what, f"use {OptionName('target', 'multilabel')}")
        return cell
    if kind == "class":
        return (cell,)
    return tuple(part.strip() for part in cell.split(separator) if part.strip())


def class_reader(
    names: Coded[Cell | None], spec: TargetSpec
) -> Callable[[Cell | None], tuple[str, ...]] | None:
    """Return the function that splits a cell into its classes; None if images have one class."""
    kind, separator = _kind(names.map(listed).counts(), spec)
    if kind != "multilabel":
        return None
    return lambda cell: split_classes("", listed(cell) or (), "multilabel", separator)


def class_names(raw: Collection[str]) -> dict[str, str]:
    """Return raw name → class name in natural order; among whole numbers, "1.0" becomes "1"."""
    whole = {name: re.sub(r"\.0+$", "", name) for name in raw}
    if not all(re.fullmatch(r"-?\d+", name) for name in whole.values()):
        whole = {name: name for name in raw}
    return {name: whole[name] for name in sorted(raw, key=lambda name: natural_order(whole[name]))}


def _names(
    raw: Collection[str], renamed: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return raw name → new name, in class order, and the keys of `renamed` that are not names.

    SourceError if no key of `renamed` is a name.
    """
    whole = class_names(raw)
    ordered = list(whole)
    there = {*raw, *whole.values()}
    unmapped = tuple(name for name in renamed if name not in there)
    if renamed and len(unmapped) == len(renamed):
        classes = some_of(list(dict.fromkeys(whole[name] for name in ordered)), _MOST_NAMES)
        what = f"none of its names ({len(renamed):,}) is a class; the first is {unmapped[0]!r}"
        raise SourceError(_CLASS_MAP, what, f"rename classes such as {classes}")
    names = {name: renamed.get(name, renamed.get(whole[name], whole[name])) for name in ordered}
    return names, unmapped


def _check_known(
    keys: Sequence[str],
    column: Coded[Cell],
    split: Mapping[Cell, tuple[str, ...]],
    names: Mapping[str, str],
    classes: Sequence[str],
) -> None:
    for row, cell in column.firsts().items():
        for raw in split[cell]:
            if (name := names[raw]) not in classes:
                number = sum(
                    count * [names[one] for one in split[other]].count(name)
                    for other, count in column.counts().items()
                )
                what = f"label {name!r} ({counted(number, 'image')}) is not among {_CLASSES}"
                raise SourceError(keys[row], what, use_one_of(name, classes, _MOST_NAMES))
