"""The forms of `--masks` as text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from shardprep.catalog.annotations.box_table import parse_box_rule
from shardprep.catalog.annotations.formats import box_files
from shardprep.catalog.annotations.run_table import parse_run_rule
from shardprep.errors import RecipeError, shown

if TYPE_CHECKING:
    from shardprep.catalog.documents import Documents
    from shardprep.recipe.recipe import Recipe

OUTLINED = ("coco", "yolo", "labelme", "via")
"""Formats of boxes that may have outlines."""
_FIELDS = {"stem": "[^/]+", "name": "[^/]+", "id": "[^/]+", "dir": ".*", "class": "[^/]+"}
"""Name of a field of a pattern → what it stands for, as a regular expression."""
NAMES = ("name", "stem", "id")
"""Fields that name one image."""
_PARTS = re.compile(r"\{([^{}]*)\}(/?)|(\*\*/?)|(\*)")
PATTERN_HINT = "a pattern is such as masks/{stem}_mask.png, {dir}annot/{name} or {id}/masks/*.png"
_MOST_SHOWN = 80
"""Characters of a value in an error."""


class MaskRule(NamedTuple):
    """One `--masks` value: its kind, and what it names."""

    kind: Literal["none", "auto", "rle", "format", "pattern"]
    argument: str = ""

    @property
    def is_given(self) -> bool:
        """Whether masks are stored."""
        return self.kind != "none"


def parse_masks_rule(text: str) -> MaskRule:
    """Return the rule that a `--masks` value asks for; "" is none."""
    kind, _, argument = text.partition(":")
    if text in ("", "none"):
        return MaskRule("none")
    if text == "auto":
        return MaskRule("auto")
    if kind == "rle":
        parse_run_rule(argument)
        return MaskRule("rle", argument)
    if kind in OUTLINED:
        return MaskRule("format", argument)
    if "{" not in text:
        what = f"{shown(text, _MOST_SHOWN)!r} is neither a pattern nor a form of masks"
        hint = (
            "use a pattern such as masks/{stem}_mask.png, rle:FILE:ID:RLE[:LABEL], "
            f"{', '.join(OUTLINED)}, auto or none"
        )
        raise RecipeError("--masks", what, hint)
    check_pattern(text)
    return MaskRule("pattern", text)


def check_pattern(pattern: str) -> None:
    """Raise a RecipeError unless a pattern names the image of a mask."""
    fields = [match[1] for match in _PARTS.finditer(pattern) if match[1] is not None]
    if unknown := [name for name in fields if name not in _FIELDS]:
        what = f"{shown(pattern, _MOST_SHOWN)!r} has a field {{{unknown[0]}}}"
        raise RecipeError("--masks", what, f"fields are {', '.join(map('{{{}}}'.format, _FIELDS))}")
    if not {"dir", *NAMES}.intersection(fields):
        what = f"{shown(pattern, _MOST_SHOWN)!r} does not say which image a mask belongs to"
        raise RecipeError("--masks", what, PATTERN_HINT)
    if len(set(fields)) < len(fields):
        raise RecipeError("--masks", f"{shown(pattern, _MOST_SHOWN)!r} has a field twice")


def annotation_files(recipe: Recipe) -> list[str]:
    """Return the files that `--boxes`, `--masks` and `--mask-values` name.

    They may lie in the source or on disk.

    Raises:
        RecipeError: an option is malformed.

    """
    files: list[str] = []
    if recipe.boxes not in ("", "auto", "none"):
        files += box_files(recipe.boxes)
    rule = parse_masks_rule(recipe.masks)
    if rule.kind == "rle":
        files += parse_run_rule(rule.argument).files
    elif rule.kind == "format":
        files += box_files(recipe.masks)
    if recipe.mask_values and "=" not in recipe.mask_values:
        files.append(recipe.mask_values)
    return files


def check_columns(recipe: Recipe, documents: Documents) -> None:
    """Check the columns that `--boxes csv:` and `--masks rle:` name, if the source has the tables.

    Raises:
        RecipeError: an option is malformed.
        SourceError: a table cannot be read, or lacks a column.

    """
    kind, _, argument = recipe.boxes.partition(":")
    if kind == "csv":
        boxes = parse_box_rule(argument)
        names = boxes.boxes.names if boxes.boxes else ()
        documents.check_table(boxes.files, boxes.id_column, (*names, boxes.label_column))
    rule = parse_masks_rule(recipe.masks)
    if rule.kind == "rle":
        runs = parse_run_rule(rule.argument)
        documents.check_table(runs.files, runs.id_column, (runs.run_column, runs.label_column))


def regular_expression(pattern: str) -> tuple[str, list[str]]:
    """Return what a pattern means for the whole of a key, and the names of its groups."""
    text, at, fields = "", 0, []
    for match in _PARTS.finditer(pattern):
        text += re.escape(pattern[at : match.start()])
        at = match.end()
        name = match[1]
        if match[3] or match[4]:
            text += {"**": ".*", "**/": "(?:.*/)?"}.get(match[0], "[^/]*")
        elif name == "dir" and match[2]:
            text += "(?:(?P<dir>.*)/)?"  # an image may lie in no folder
        else:
            text += f"(?P<{name}>{_FIELDS[name]}){match[2]}"
        fields += [name] if name else []
    text += re.escape(pattern[at:])
    start = "" if pattern.startswith("{dir}") else "(?:.*/)?"
    return f"(?is){start}{text}", fields
