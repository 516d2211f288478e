"""Splits that the source gives: by folder, column, list or table."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from shardprep.dataset.grammar import NAME
from shardprep.errors import RecipeError
from shardprep.source.names import without_archive_suffix

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_OF = r"([-_ ]?(set|data|images?|imgs?))?[-_]?v?\d*"
_SPLITS = {
    "train": re.compile(rf"train(ing)?{_OF}", re.IGNORECASE),
    "validation": re.compile(rf"(val(id(ation)?)?|dev){_OF}", re.IGNORECASE),
    "test": re.compile(rf"(test(ing)?|public_?test){_OF}", re.IGNORECASE),
}
_TABLE_NAME = re.compile(
    r"(^|[_\-. ])(train|val|valid|validation|test)([_\-. ]|\d|$)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class SplitRule:
    """One `--split` value; without it, folders give the splits."""

    kind: Literal["ratio", "column", "list", "roots", "tables"]
    ratios: Mapping[str, float]
    """For kind "ratio": split → share; the shares add up to 1."""
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
    if kind == "column":
        column, _, values = rest.partition(":")
        if not column:
            raise RecipeError("--split", "column: names no column", "use column:NAME")
        places = parse_pairs(values, "--split") if values else {}
        for split in places.values():
            _check_name(split)
        return SplitRule("column", {}, column, places)
    if kind in ("list", "roots"):
        places = parse_pairs(rest, "--split")
        for split in places:
            _check_name(split)
        return SplitRule(kind, {}, places=places)  # type: ignore[arg-type]
    raise RecipeError(
        "--split",
        f"{text!r} is not one of the ways to split",
        "use train=0.8,test=0.2, column:NAME, list:train=FILE,…, roots:train=GLOB,… or tables",
    )


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


def folder_splits(keys: Iterable[str]) -> list[str | None]:
    """Return the split that the folders of each key give, None where they give none."""
    folders = [key.rpartition("/")[0] for key in keys]
    split_of = {folder: given_split(folder.split("/")) for folder in set(folders)}
    return [split_of[folder] for folder in folders]


def table_split(name: str) -> str:
    """Return the split that the name of a label table gives: "train_labels.csv" → train."""
    stem = name.rpartition("/")[2].rpartition(".")[0]
    match = _TABLE_NAME.search(stem)
    return (given_split([match[2]]) if match else None) or "train"


def column_split(cell: str, rule: SplitRule) -> str:
    """Return the split that a cell of the split column means."""
    if cell in rule.places:
        return rule.places[cell]
    split = given_split([cell])
    if split is None or rule.places:
        raise RecipeError(
            "--split",
            f"column {rule.column!r} has a cell {cell!r}, which names no split",
            f"say what it means: column:{rule.column}:{cell}=train,…",
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


def _by_value(digits: str) -> tuple[int, str]:
    """Return what sorts as the number does, however many digits it has."""
    stripped = digits.lstrip("0")
    return len(stripped), stripped


def _ratios(text: str) -> dict[str, float]:
    ratios: dict[str, float] = {}
    for part in text.split(","):
        name, sign, number = (piece.strip() for piece in part.partition("="))
        try:
            ratio = float(number)
        except ValueError:
            ratio = math.nan
        if not sign or math.isnan(ratio):
            raise RecipeError(
                "--split",
                f"{part.strip()!r} is not NAME=RATIO",
                "as in train=0.8,validation=0.1,test=0.1",
            )
        _check_name(name)
        if name in ratios:
            raise RecipeError("--split", f"{name!r} is named twice")
        if not 0 < ratio <= 1:
            raise RecipeError("--split", f"{name}={ratio:g}: must be above 0 and at most 1")
        ratios[name] = ratio
    total = sum(ratios.values())
    if abs(total - 1) > 1e-6:
        raise RecipeError("--split", f"the ratios add up to {total:g}", "they must add up to 1")
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
        raise RecipeError(
            "--split", f"{name!r} is no name for a split", "use train, validation, test"
        )
