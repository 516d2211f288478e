"""Splits that the source gives: by folder, column, list or table."""

from __future__ import annotations

import fnmatch
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from shardprep.catalog.patterns import ANY_FOLDER, Pattern, globs_match
from shardprep.dataset.documents import NAME
from shardprep.errors import RecipeError, SourceError, shown, some_of
from shardprep.source.dictionary_column import Coded
from shardprep.source.names import composed, without_archive_suffix
from shardprep.source.string_column import Texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardprep.catalog.tables.metadata_files import Documents
    from shardprep.catalog.tables.row_matching import KeyIndex, TableMatch

_OF = r"([-_ ]?(set|data|images?|imgs?))?[-_]?v?\d*"
_SPLITS = {
    "train": re.compile(rf"train(ing)?{_OF}", re.IGNORECASE),
    "validation": re.compile(rf"(val(id(ation)?)?|dev){_OF}", re.IGNORECASE),
    "test": re.compile(rf"(test(ing)?|public_?test){_OF}", re.IGNORECASE),
}
_TABLE_NAME = re.compile(
    r"(^|[_\-. ])(train|val|valid|validation|test)([_\-. ]|\d|$)", re.IGNORECASE
)
_MOST_SHOWN = 8
"""Number of folders or cells in an error."""
_SLACK = 1e-6
"""Rounding error that a sum of ratios may have."""
_MOST_CHARACTERS = 160
"""Characters of a key in an error."""


@dataclass(frozen=True, slots=True)
class SplitRule:
    """One `--split` value; without it, folders give the splits."""

    kind: Literal["ratio", "column", "list", "roots", "tables"]
    ratios: Mapping[str, float]
    """For kind "ratio": split → share; the shares add up to 1, train has what the others leave."""
    column: str = ""
    """For kind "column": the name of the column."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Cell → split of a column; split → file of a list; split → glob of roots."""


def parse_split_rule(text: str) -> SplitRule:
    """Return the rule that a `--split` value asks for.

    Raises:
        RecipeError: it is none of the forms, or its ratios are not ratios.

    """
    kind, colon, rest = text.partition(":")
    if not colon and text != "tables":
        return SplitRule("ratio", _ratios(text))
    if kind == "tables":
        return SplitRule("tables", {})
    if kind not in ("column", "list", "roots"):
        hint = "column:NAME, list:train=FILE,…, roots:train=GLOB,… or tables"
        what = f"{text!r} is not one of the ways to split"
        raise RecipeError("--split", what, f"use train=0.8,test=0.2, {hint}")
    column = ""
    if kind == "column":
        column, _, rest = rest.partition(":")
        if not column:
            raise RecipeError("--split", "column: names no column", "use column:NAME")
    places = parse_pairs(rest, "--split") if rest or kind != "column" else {}
    for split in places.values() if kind == "column" else places:
        _check_name(split)
    return SplitRule(kind, {}, column, places)  # type: ignore[arg-type]


def is_cut(split: str, ratios: Mapping[str, float]) -> bool:
    """Return whether ratios cut a split that the source gives; others stay whole.

    Train is always cut: it holds the images to which the source gives no split.
    """
    return split == "train" or split in ratios


def given_split(folders: Iterable[str]) -> str | None:
    """Return the split that the first telling name among the folders gives, None where none does.

    Folders of a key run from the root down; an inner archive counts as a folder.
    """
    for folder in folders:
        name = without_archive_suffix(folder)
        for split, pattern in _SPLITS.items():
            if pattern.fullmatch(name):
                return split
    return None


def folder_splits(keys: Iterable[str]) -> Coded[str | None]:
    """Return the split that the folders of each key give, None where they give none."""
    return Texts.of(keys).folders.map(lambda folder: given_split(folder.split("/")))


def given_splits(
    index: KeyIndex, rule: SplitRule | None, match: TableMatch | None, documents: Documents
) -> Coded[str | None]:
    """Return the split that folders give each key, or the rule; None: it is left out."""
    if rule is not None and rule.kind == "roots":
        return Coded.of(_root_splits(index.keys, rule))
    if rule is not None and rule.kind == "list":
        return Coded.of(_listed_splits(index, rule, documents))
    by_folder = folder_splits(index.keys).filled("train")
    if rule is None or rule.kind == "ratio":
        return by_folder
    if match is None:
        hint = "use --labels csv:FILE or --join FILE"
        raise SourceError(f"--split {rule.kind}", "needs a label table, and there is none", hint)
    if rule.kind == "tables":
        tables = match.table.parts_of_rows().map(lambda name: document_split(name) or "train")
        return Coded.of(
            folder if row < 0 else tables[row]
            for row, folder in zip(match.row_of.tolist(), by_folder, strict=True)
        )
    cells = match.cells(rule.column)
    known = {*cells.firsts().values()}
    if unused := rule.places.keys() - known:
        there = some_of(_natural(known - {""}), _MOST_SHOWN)
        what = f"no image has {', '.join(_natural(unused))} in column {rule.column!r}"
        raise SourceError("--split column", what, f"its cells are {there}")
    given = cells.map(lambda cell: _column_split(cell, rule) if cell else None)
    return Coded.of(own or folder for own, folder in zip(given, by_folder, strict=True))


def _root_splits(keys: Sequence[str], rule: SplitRule) -> list[str | None]:
    """Return the split whose glob each key lies below, None where there is none; case matters."""
    splits: list[str | None] = [None] * len(keys)
    for split, glob in rule.places.items():
        left = [i for i, known in enumerate(splits) if known is None]
        text = f"{ANY_FOLDER}{fnmatch.translate(composed(glob).rstrip('/') + '/*')}"
        pattern = Pattern(text, "--split", glob, is_whole=True)
        for i, fits in zip(
            left, globs_match([composed(keys[i]) for i in left], pattern), strict=True
        ):
            splits[i] = split if fits else None
        if split not in splits:
            folders = _natural({folder for key in keys for folder in key.split("/")[:-1]})
            hint = f"folders are {some_of(folders, _MOST_SHOWN) or 'none'}; case matters"
            what = f"{split}={glob} has no image below it, or none that an earlier split leaves"
            raise SourceError("--split roots", what, hint)
    return splits


def _listed_splits(index: KeyIndex, rule: SplitRule, documents: Documents) -> list[str | None]:
    """Return the split on whose list each key is, None where it is on none."""
    splits: list[str | None] = [None] * len(index.keys)
    for split, file in rule.places.items():
        ids = documents.ids(file)
        for text in ids:
            found = index.find_one(text, file)
            if found is None:
                continue
            if (other := splits[found]) not in (None, split):
                what = f"{index.keys[found]} is in two splits, {other} and {split}"
                raise SourceError(file, what)
            splits[found] = split
        if split not in splits:
            line = f", such as {shown(ids[0], _MOST_CHARACTERS)}" if ids else ": it is empty"
            hint = f"a key looks like {shown(index.keys[0], _MOST_CHARACTERS)}"
            raise SourceError(file, f"names no image of the source{line}", hint)
    return splits


def document_split(name: str) -> str | None:
    """Return the split that the name of a document gives: "train_labels.csv" → train."""
    match = _TABLE_NAME.search(name.rpartition("/")[2].rpartition(".")[0])
    return given_split([match[2]]) if match else None


def _column_split(cell: str, rule: SplitRule) -> str:
    """Return the split that a cell of the split column means."""
    if cell in rule.places:
        return rule.places[cell]
    split = given_split([cell])
    if split is None or rule.places:
        what = f"column {rule.column!r} has a cell {cell!r}, which names no split"
        raise RecipeError(
            "--split", what, f"say what it means: column:{rule.column}:{cell}=train,…"
        )
    return split


def natural_order(name: str) -> tuple[tuple[tuple[int, int, str], ...], str]:
    """Return a sort key under which 2 stands before 10 and case matters last."""
    parts = re.split("([0-9]+)", name)
    folded = [
        (0, *_by_value(part)) if part[0] in "0123456789" else (1, 0, part.casefold())
        for part in parts
        if part
    ]
    return tuple(folded), name


def _natural(names: Iterable[str]) -> list[str]:
    """Return the names in natural order."""
    return sorted(names, key=natural_order)


def _by_value(digits: str) -> tuple[int, str]:
    """Return what sorts as the number does, however many digits it has."""
    stripped = digits.lstrip("0")
    return len(stripped), stripped


def _ratios(text: str) -> dict[str, float]:
    """Return the shares of splits; those that add up to less than 1 leave the rest to train."""
    ratios: dict[str, float] = {}
    for part in text.split(","):
        name, sign, number = (piece.strip() for piece in part.partition("="))
        try:
            ratio = float(number)
        except ValueError:
            ratio = math.nan
        if not sign or math.isnan(ratio):
            hint = "as in train=0.8,validation=0.1,test=0.1"
            raise RecipeError("--split", f"{part.strip()!r} is not NAME=RATIO", hint)
        _check_name(name)
        if name in ratios:
            raise RecipeError("--split", f"{name!r} is named twice")
        if not 0 < ratio <= 1:
            raise RecipeError("--split", f"{name}={ratio:g}: must be above 0 and at most 1")
        ratios[name] = ratio
    total = sum(ratios.values())
    if total < 1 - _SLACK and "train" not in ratios:
        return {"train": round(1 - total, 9), **ratios}
    if abs(total - 1) > _SLACK:
        hint = "they must add up to 1, or leave train out, which takes the rest"
        raise RecipeError("--split", f"the ratios add up to {total:g}", hint)
    return ratios


def parse_pairs(text: str, option: str) -> dict[str, str]:
    """Return what "a=b,c=d" says; `option` is what an error calls it."""
    pairs = {}
    for part in text.split(","):
        left, sign, right = (piece.strip() for piece in part.partition("="))
        if not (left and sign and right):
            raise RecipeError(option, f"{part.strip()!r} is not A=B")
        pairs[left] = right
    return pairs


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        hint = "use train, validation, test"
        raise RecipeError("--split", f"{name!r} is no name for a split", hint)
