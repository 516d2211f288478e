"""The forms of `--masks` as text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from shardprep.catalog.objects.formats.box_table import parse_box_rule
from shardprep.catalog.objects.formats.rle_table import parse_run_rule
from shardprep.catalog.objects.known_formats import box_files
from shardprep.catalog.patterns import Pattern
from shardprep.catalog.tables.row_matching import SLICE, cut
from shardprep.errors import RecipeError, shown
from shardprep.source.names import composed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardprep.catalog.tables.metadata_files import Documents
    from shardprep.recipe.recipe import Recipe

OUTLINED = ("coco", "yolo", "labelme", "via", "cvat")
"""Formats of boxes that may have outlines."""
_FIELDS = {"stem": "[^/]+", "name": "[^/]+", "id": "[^/]+", "dir": ".*", "class": "[^/]+"}
"""Name of a field of a pattern → what it stands for, as a regular expression."""
NAMES = ("name", "stem", "id")
"""Fields that name one image."""
_PARTS = re.compile(r"\{((?:[^{}]|\{[^{}]*\})*)\}(/?)|(\*\*/?)|(\*)")
_FIELD = re.compile(rf"(?P<name>\w*)(?:\[{SLICE}\]|:(?P<expression>.+))?", re.DOTALL)
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


class Field(NamedTuple):
    """A field of a pattern: `{stem}`, `{stem[:-12]}` or `{stem:(.+)_left}`."""

    name: str
    text: str
    """The field as written, without braces."""
    slice: re.Match[str] | None = None
    """Match of `SLICE` for the letters that are meant; None for all of them."""
    expression: str = ""
    """Expression whose first group, or else whole match, is meant; "" for the whole name."""

    @property
    def is_part(self) -> bool:
        """Whether a part of a name is meant."""
        return self.slice is not None or bool(self.expression)

    @property
    def group(self) -> str:
        """What the field stands for in the key of a mask, as a regular expression."""
        if self.expression and not re.compile(self.expression).groups:
            return f"(?:{self.expression})"
        return _FIELDS[self.name]

    def parts(self, names: Sequence[str], pattern: str) -> list[str | None]:
        """Return the part of each name that is meant, None where the expression is not in it."""
        if self.slice is not None:
            return [cut(name, self.slice) for name in names]
        if not self.expression:
            return list(names)
        group = min(1, re.compile(self.expression).groups)
        text = f"(?is){composed(self.expression)}"
        return Pattern(text, "--masks", pattern, group=group).search(names)


def check_pattern(pattern: str) -> None:
    """Raise a RecipeError unless a pattern names the image of a mask."""
    fields = fields_of(pattern)
    names = [field.name for field in fields]
    if not {"dir", *NAMES}.intersection(names):
        what = f"{shown(pattern, _MOST_SHOWN)!r} does not say which image a mask belongs to"
        raise RecipeError("--masks", what, PATTERN_HINT)
    whole = [field.text if field.name in NAMES else field.name for field in fields]
    if len(set(whole)) < len(whole):
        raise RecipeError("--masks", f"{shown(pattern, _MOST_SHOWN)!r} has a field twice")


def fields_of(pattern: str) -> list[Field]:
    """Return the fields of a pattern in their order; RecipeError for one that is unknown."""
    texts = [match[1] for match in _PARTS.finditer(pattern) if match[1] is not None]
    return [_field(text, pattern) for text in texts]


def _field(text: str, pattern: str) -> Field:
    match = _FIELD.fullmatch(text)
    where = f"{shown(pattern, _MOST_SHOWN)!r} has a field {{{shown(text, _MOST_SHOWN)}}}"
    if match is None or match["name"] not in _FIELDS:
        names = ", ".join(map("{{{}}}".format, _FIELDS))
        hint = f"fields are {names}; {{stem[:-4]}} and {{stem:(.+)_rgb}} are parts of a name"
        raise RecipeError("--masks", where, hint)
    name, expression = match["name"], match["expression"] or ""
    is_sliced = text != name and not expression
    if (is_sliced and name not in NAMES) or (expression and name == "dir"):
        what = f"{where}, of which no part can be taken"
        raise RecipeError("--masks", what, "take parts of {stem}, {name} or {id}")
    try:
        re.compile(f"(?is){expression}")  # as it is searched: flags of its own come too late
    except (re.error, OverflowError, RecursionError) as error:
        hint = "write a regular expression, as in {stem:(.+)_rgb}"
        raise RecipeError(
            "--masks", f"{where}, whose expression is broken ({error})", hint
        ) from None
    return Field(name, text, match if is_sliced else None, expression)


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


def regular_expression(pattern: str) -> tuple[str, dict[str, Field]]:
    """Return what a pattern means for the whole of a key, and its fields by names of groups.

    The group of a field has its name; of several fields of a name, the others have a number too.
    """
    text, at, fields = "", 0, dict[str, Field]()
    several = iter(fields_of(pattern))
    for match in _PARTS.finditer(pattern):
        text += re.escape(pattern[at : match.start()])
        at = match.end()
        if match[1] is None:
            text += {"**": ".*", "**/": "(?:.*/)?"}.get(match[0], "[^/]*")
            continue
        field = next(several)
        group = field.name if field.name not in fields else f"{field.name}{len(fields)}"
        fields[group] = field
        if field.name == "dir" and match[2]:
            text += "(?:(?P<dir>.*)/)?"  # an image may lie in no folder
        else:
            text += f"(?P<{group}>{field.group}){match[2]}"
    text += re.escape(pattern[at:])
    start = "" if pattern.startswith("{dir}") else "(?:.*/)?"
    return f"(?is){start}{text}", fields
