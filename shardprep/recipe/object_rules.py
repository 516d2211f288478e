"""The rules of `--boxes`, `--masks` and `--points`, parsed when the recipe is made."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from shardprep.errors import OptionError, OptionName, shown
from shardprep.recipe.options import BOX_FORMATS, OUTLINE_FORMATS
from shardprep.recipe.rules import SLICE, checked_expression, letters_of, wildcard_pattern
from shardprep.source.names import composed

BoxForm = Literal["xyxy", "xywh", "center", "yxyx"]
"""Four numbers of a box: corners (`xyxy`, `yxyx`), corner and size (`xywh`), or center and size."""
_FORM_NAMES: dict[BoxForm, tuple[str, ...]] = {
    "xyxy": (
        "xmin ymin xmax ymax", "x1 y1 x2 y2 x3 y3 x4 y4", "x0 y0 x1 y1 x2 y2 x3 y3",
        "x1 y1 x2 y2", "x0 y0 x1 y1", "left top right bottom",
        "xtl ytl xbr ybr", "minx miny maxx maxy", "x y x2 y2", "x y xmax ymax",
        "startx starty endx endy", "xstart ystart xend yend",
        "topleftx toplefty bottomrightx bottomrighty",
        "upperleftcornerx upperleftcornery lowerrightcornerx lowerrightcornery",
    ),
    "xywh": (
        "x y w h", "x y width height", "xmin ymin w h", "xmin ymin width height",
        "left top width height", "left top w h", "x1 y1 w h", "x1 y1 width height",
        "x y dx dy",
    ),
    "center": (
        "xcenter ycenter width height", "xcenter ycenter w h", "centerx centery width height",
        "cx cy w h", "cx cy width height", "xc yc w h",
    ),
    "yxyx": (),
}  # fmt: skip
"""Form → usual names of its columns, in lower case, without punctuation or a prefix like "bbox"."""
NUM_CORNERS = 8
"""Number of columns of a box that is given by x and y of four corners."""
_BOX_WORD = re.compile(r"^(bbox|bndbox|box|bb|roi|rect|region)(?=.)")
_PATH_END = re.compile("[^./]*$")
_FORM = re.compile(r"(?P<form>\w+)\((?P<columns>.*)\)", re.DOTALL)
_COLON = re.compile(r":(?![^{}]*\})")
"""A colon between columns, not inside a template such as {id[0:2]}."""
_FIELDS = dict.fromkeys(("stem", "name", "id", "folder", "class"), "[^/]+") | {"dir": ".*"}
"""Field of a mask pattern → regular expression of its value."""
PATHS = "paths:"
"""Prefix of a rule for masks or target images whose paths are in a column of the items."""
_NOTHING = "(?!)"
NAME_FIELDS = ("name", "stem", "id", "folder")
_PARTS = re.compile(r"\{((?:[^{}]|\{[^{}]*\})*)\}(/?)")
_FIELD = re.compile(rf"(?P<name>\w*)(?:\[{SLICE}\]|:(?P<expression>.+))?", re.DOTALL)
PATTERN_HINTS = {
    "masks": "use a pattern such as masks/{stem}_mask.png, {dir}annot/{name} or {id}/masks/*.png",
    "target_image": "use a pattern such as GT/{name}, {dir}/{stem}_gt.png or {folder}/gt.png",
}
"""Option of a pattern → hint with patterns that it can have."""
_MASKS = OptionName("masks")


class BoxColumns(NamedTuple):
    """The columns or keys of the four numbers of a box, or of four corners."""

    names: tuple[str, ...]
    """Four names in the order x, y, x or width, y or height; one name if a cell holds all four.

    Eight names are x and y of four corners in turn.
    """
    form: BoxForm | None = None
    """Meaning of the four numbers; None to detect it from the boxes."""


class BoxTableRule(NamedTuple):
    """The parts of `csv:FILE,FILE…:ID:BOX:LABEL`, or of `column:BOX:LABEL`, which has no files."""

    files: tuple[str, ...] = ()
    id_column: str = ""
    boxes: BoxColumns | None = None
    """Columns of the box; None to detect them."""
    label_column: str = ""
    """Column of the class; "" if all boxes have one class, or cells of boxes contain labels."""


class RunTableRule(NamedTuple):
    """The parts of `rle:FILE,FILE…:ID:RLE:LABEL`."""

    files: tuple[str, ...] = ()
    id_column: str = ""
    run_column: str = ""
    label_column: str = ""


_NO_BOX_TABLE = BoxTableRule()
_NO_RUN_TABLE = RunTableRule()


@dataclass(frozen=True, slots=True)
class FormatRule:
    """The parsed value of `--boxes`, or of `--masks` for a format whose outlines are drawn."""

    kind: str = "none"
    """A key of `BOX_FORMATS`, "auto" or "none"."""
    text: str = ""
    files: tuple[str, ...] = ()
    """Names of documents or tables; for "yolo", of the file with the class names."""
    table: BoxTableRule = _NO_BOX_TABLE
    option: str = "boxes"
    """The option that has this value."""

    @property
    def is_given(self) -> bool:
        return self.kind != "none"

    @property
    def flag(self) -> OptionName:
        return OptionName(self.option, self.kind)


class PatternField(NamedTuple):
    """A field of a mask pattern: `{stem}`, `{stem[:-12]}` or `{stem:(.+)_left}`."""

    name: str
    text: str
    """The field as written, without braces."""
    letters: slice | None = None
    """Slice of the name that is compared; None for the whole name."""
    expression: str = ""
    """Regular expression; the first group is compared, or the whole match if it has no group."""

    @property
    def is_part(self) -> bool:
        return self.letters is not None or bool(self.expression)

    @property
    def group(self) -> str:
        if self.expression and not re.compile(self.expression).groups:
            return f"(?:{self.expression})"
        return _FIELDS[self.name]


@dataclass(frozen=True, slots=True)
class MaskPattern:
    """A pattern for the names of mask files, such as `masks/{stem}_mask.png`."""

    text: str
    expression: str
    """Regular expression of the whole key of a mask, with a group for each field."""
    fields: dict[str, PatternField] = field(default_factory=dict)
    """Name of a group → its field."""
    option: OptionName = _MASKS

    @property
    def is_target(self) -> bool:
        """Whether the pattern names target images. Several images may have one target."""
        return self.option != _MASKS

    @property
    def column(self) -> str:
        """Column of the items that has the paths of mask files; "" if masks are found by name."""
        return self.text.removeprefix(PATHS) if self.text.startswith(PATHS) else ""


POINT_FORMATS = {
    "coco": "coco[:FILE,…]",
    "yolo": "yolo[:NAMES]",
    "labelme": "labelme",
    "csv": "csv:FILE[:ID[:X,Y[:NAME]]]",
    "column": "column[:X,Y[:NAME]]",
}
"""Name of a format of keypoints → syntax of its `--points` value."""


@dataclass(frozen=True, slots=True)
class PointRule:
    """The parsed value of `--points`."""

    kind: str = "none"
    """A key of `POINT_FORMATS`, "none", or "lists" for the table of `--boxes`."""
    text: str = ""
    files: tuple[str, ...] = ()
    id_column: str = ""
    columns: tuple[str, ...] = ()
    """Columns of x and y in turn; () to find them by their names."""
    name_columns: tuple[str, ...] = ()
    """Columns that hold the name of the keypoint of a row."""

    @property
    def is_given(self) -> bool:
        return self.kind != "none"

    @property
    def needs_boxes(self) -> bool:
        """Whether the format has keypoints only in objects with boxes."""
        return self.kind in ("coco", "yolo", "lists")


_NO_FORMAT = FormatRule()
_NO_PATTERN = MaskPattern("", "")


@dataclass(frozen=True, slots=True)
class MaskRule:
    """The parsed value of `--masks`."""

    kind: Literal["none", "auto", "rle", "format", "pattern"] = "none"
    text: str = ""
    runs: RunTableRule = _NO_RUN_TABLE
    outlines: FormatRule = _NO_FORMAT
    """For kind "format": the documents whose outlines are drawn as masks."""
    pattern: MaskPattern = _NO_PATTERN

    @property
    def is_given(self) -> bool:
        return self.kind != "none"

    @property
    def files(self) -> tuple[str, ...]:
        return self.runs.files + self.outlines.files


def parse_box_rule(text: str, option: str = "boxes") -> FormatRule:
    """Return the rule of a `--boxes` value; OptionError, which names `option`, if invalid."""
    name, _, argument = text.partition(":")
    if text in ("", "none", "auto"):
        return FormatRule(text or "none", text)
    if name not in BOX_FORMATS:
        what = f"{shown(text)!r} is not a format of boxes"
        raise OptionError(OptionName(option), what, f"use {', '.join(BOX_FORMATS.values())}")
    if name in ("csv", "column"):
        table = _box_table_rule(name, argument, option)
        return FormatRule(name, text, table.files, table, option)
    if argument and ":" not in BOX_FORMATS[name]:
        what = f"{name} does not take an argument, but has {argument!r}"
        raise OptionError(OptionName(option), what, f"use {name} alone")
    files = (argument,) if name == "yolo" and argument else _listed(argument)
    return FormatRule(name, text, files, option=option)


def parse_mask_rule(text: str) -> MaskRule:
    """Return the rule of a `--masks` value; OptionError if it is invalid."""
    kind, _, argument = text.partition(":")
    if text in ("", "none", "auto"):
        return MaskRule("auto" if text == "auto" else "none", text)
    if kind == "rle":
        return MaskRule("rle", text, runs=_run_table_rule(argument))
    if kind in OUTLINE_FORMATS:
        return MaskRule("format", text, outlines=parse_box_rule(text, "masks"))
    if "{" not in text and not text.startswith(PATHS):
        what = f"{shown(text)!r} is neither a pattern nor a format of masks"
        hint = (
            "use a pattern such as masks/{stem}_mask.png, rle:FILE:ID:RLE[:LABEL], "
            f"{', '.join(OUTLINE_FORMATS)}, auto or none"
        )
        raise OptionError(_MASKS, what, hint)
    return MaskRule("pattern", text, pattern=parse_mask_pattern(text))


def parse_point_rule(text: str) -> PointRule:
    """Return the rule of a `--points` value; OptionError if it is invalid."""
    kind, _, argument = text.partition(":")
    if text in ("", "none"):
        return PointRule("none", text)
    if kind not in POINT_FORMATS:
        what = f"{shown(text)!r} is not a format of keypoints"
        raise OptionError(OptionName("points"), what, f"use {', '.join(POINT_FORMATS.values())}")
    if kind not in ("csv", "column"):
        return PointRule(kind, text, parse_box_rule(text, "points").files)
    files, *parts = _table_parts(kind, argument)
    has_lists = kind == "column" or "{" in files
    if has_lists and len(parts) > 1 and ("," not in parts[1] or _FORM.fullmatch(parts[1])):
        return PointRule("lists", text, parse_box_rule(text, "points").files)
    id_column, columns, names = (*parts, "", "", "")[:3]
    has_pairs = len(parts) < 2 or columns.count(",") % 2 == 1
    is_known = bool(_listed(files) or kind == "column") and len(parts) <= 3 and has_pairs
    if not is_known or any(_lacks_name(part) for part in parts[1:]):
        example = "x,y:name" if kind == "column" else "points.csv:image:x,y:name"
        hint = f"use {kind}:{example}, with x1,y1,x2,y2 instead of x,y for several keypoints"
        form = re.sub(r"^.*?:|[\[\]]", "", POINT_FORMATS[kind])
        raise OptionError(OptionName("points", kind), f"{argument!r} is not {form}", hint)
    return PointRule(kind, text, _listed(files), id_column, _listed(columns), _listed(names))


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _lacks_name(text: str) -> bool:
    return not all(map(str.strip, text.split(",")))


def _box_table_rule(kind: str, argument: str, option: str) -> BoxTableRule:
    is_file, form = kind == "csv", BOX_FORMATS[kind].partition(":")[2].replace("[:LABEL]", "")
    files, *parts = _table_parts(kind, argument)
    if (is_file and not _listed(files)) or len(parts) not in (0, 2, 3):
        hint = f"use {kind}:{form} or {kind}:{form}:LABEL"
        raise OptionError(OptionName(option, kind), f"{argument!r} is not {form}", hint)
    if not parts:
        return BoxTableRule(_listed(files))
    columns = _box_columns(parts[1], OptionName(option, kind))
    return BoxTableRule(_listed(files), parts[0], columns, "".join(parts[2:]))


def _run_table_rule(argument: str) -> RunTableRule:
    files, *columns = _files_and_columns(argument)
    if not _listed(files) or len(columns) not in (2, 3) or not all(columns):
        what = f"{argument!r} is not FILE:ID:RLE or FILE:ID:RLE:LABEL"
        hint = "use a value such as rle:train.csv:ImageId:EncodedPixels"
        raise OptionError(OptionName("masks", "rle"), what, hint)
    return RunTableRule(tuple(files.split(",")), *columns)


def _table_parts(kind: str, argument: str) -> list[str]:
    """Return [files, id column, columns…] of a rule; the first two are "" for kind "column"."""
    if kind == "csv":
        return _files_and_columns(argument)
    return ["", "", *_COLON.split(argument)] if argument else [""]


def _files_and_columns(argument: str) -> list[str]:
    match = re.match(r"(.*?\.(csv|tsv|txt|json))(:|$)", argument, re.IGNORECASE | re.DOTALL)
    if match is None:
        return _COLON.split(argument)
    files, rest = match[1], argument[match.end() :]
    while more := re.match(r"(,[^:]*?\.(csv|tsv|txt|json))(:|$)", rest, re.IGNORECASE):
        files, rest = files + more[1], rest[more.end() :]
    return [files, *_COLON.split(rest)] if match[3] else [files]


def _box_columns(text: str, option: OptionName) -> BoxColumns:
    """Return one, four or eight columns, as in `xywh(x,y,w,h)`; OptionError if invalid."""
    match = _FORM.fullmatch(text.strip())
    form = match["form"] if match else None
    if match and form not in _FORM_NAMES:
        hint = f"use {', '.join(f'{one}(…)' for one in _FORM_NAMES)}"
        raise OptionError(option, f"{form}(…) is not a form of boxes", hint)
    names = tuple(name.strip() for name in (match["columns"] if match else text).split(","))
    if len(names) not in (1, 4, NUM_CORNERS) or not all(names):
        hint = "name one column, four as in x,y,w,h, or four corners as in x1,y1,x2,y2,x3,y3,x4,y4"
        raise OptionError(option, f"{text!r} is not one column, four or eight", hint)
    if form and len(names) == NUM_CORNERS:
        hint = f"write {','.join(names)}, which are four corners"
        raise OptionError(option, f"{form}(…) takes one column or four", hint)
    named = named_box_columns(names)
    if named is None or len(named.names) < len(names) or form not in (None, named.form):
        return BoxColumns(names, form)  # type: ignore[arg-type]
    return named._replace(names=names) if form else named


def named_box_columns(names: Sequence[str]) -> BoxColumns | None:
    """Return the columns that have usual names of a box and a common parent path, or None."""
    by_start: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name in names:
        end = _PATH_END.search(name)[0]  # type: ignore[index]  # it may be empty
        for start, title in {"": name, name.removesuffix(end): end}.items():
            by_start[start].setdefault(_BOX_WORD.sub("", letters(title)), name)
    every = [(by_plain, form) for by_plain in by_start.values() for form in _FORM_NAMES]
    for by_plain, form in every:
        for variant in _FORM_NAMES[form]:
            wanted = variant.split()
            if all(part in by_plain for part in wanted):
                return BoxColumns(tuple(by_plain[part] for part in wanted), form)
    return None


def letters(name: str) -> str:
    """Return a column name in lower case without punctuation: "Roi.X1" becomes "roix1"."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def parse_mask_pattern(text: str, option: OptionName = _MASKS) -> MaskPattern:
    """Return the parsed pattern; OptionError if its fields are invalid or do not name an image."""
    if text.startswith(PATHS):
        return MaskPattern(text, _NOTHING, {}, option)
    plain = composed(text)
    matches = list(_PARTS.finditer(plain))
    parts = [_field(match[1], text, option) for match in matches]
    names = [part.name for part in parts]
    if not {"dir", *NAME_FIELDS}.intersection(names):
        what = f"{shown(text)!r} does not say which image a file belongs to"
        raise OptionError(option, what, PATTERN_HINTS[option.name])
    whole = [part.text if part.name in NAME_FIELDS else part.name for part in parts]
    if len(set(whole)) < len(whole):
        raise OptionError(option, f"{shown(text)!r} has a field twice", "name each field once")
    expression, at, fields = "", 0, dict[str, PatternField]()
    for match, part in zip(matches, parts, strict=True):
        expression += wildcard_pattern(plain[at : match.start()])
        at = match.end()
        group = part.name if part.name not in fields else f"{part.name}{len(fields)}"
        fields[group] = part
        if part.name == "dir" and match[2]:
            expression += "(?:(?P<dir>.*)/)?"  # the folder is optional
        else:
            expression += f"(?P<{group}>{part.group}){match[2]}"
    expression += wildcard_pattern(plain[at:])
    start = "" if plain.startswith("{dir}") else "(?:.*/)?"
    return MaskPattern(text, f"(?is){start}{expression}", fields, option)


def _field(text: str, pattern: str, option: OptionName) -> PatternField:
    match = _FIELD.fullmatch(text)
    where = f"{shown(pattern)!r} has a field {{{shown(text)}}}"
    if match is None or match["name"] not in _FIELDS:
        names = ", ".join(map("{{{}}}".format, _FIELDS))
        hint = f"use {names}, or a part of a name, as in {{stem[:-4]}} or {{stem:(.+)_rgb}}"
        raise OptionError(option, f"{where}, which is unknown", hint)
    name, expression = match["name"], match["expression"] or ""
    is_sliced = text != name and not expression
    if (is_sliced and name not in NAME_FIELDS) or (expression and name == "dir"):
        what = f"{where}, but only names have parts"
        raise OptionError(option, what, "take parts of {stem}, {name} or {folder}")
    # Compiled inside a group, as in the pattern, where flags in the expression are an error.
    hint = "write a regular expression, as in {stem:(.+)_rgb}"
    checked_expression(f"(?is)(?:{expression})", f"{where}, whose expression", option, hint)
    return PatternField(name, text, letters_of(match) if is_sliced else None, expression)
