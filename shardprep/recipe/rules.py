"""The rules of images, labels, rows, splits, groups, joins and stacks, parsed with the recipe."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from shardprep.dataset.documents import NAME
from shardprep.errors import OptionError, OptionName, shown

RuleKind = Literal["auto", "folder", "prefix", "regex", "csv", "column", "none"]
TABLE_SUFFIXES = (".csv", ".tsv")
WHOLE_NAME, TEXT = "key", "text"
"""Columns of the table that a pattern of text files gives: path up to the last field, and text."""
SLICE = r"(?P<start>-?\d{0,9})(?P<colon>:)?(?P<stop>-?\d{0,9})"
_SLACK = 1e-6
_LAYOUT = re.compile(
    r"[1-9]\d{0,5}x[1-9]\d{0,5}|(?!.*(.).*\1)N|(?=.*H)(?=.*W)(?!.*([^T]).*\2)[NTHWC]+"
)
"""Matches a layout: WIDTHxHEIGHT of flat images, N for flat squares, or a letter for each axis."""


class ArrayRule(NamedTuple):
    """The parts of `FILE:COLUMN:LAYOUT`."""

    file: str
    """Glob for the whole key of a file, or for its end after a slash."""
    column: str = ""
    """Column of the images; "" if the file has only one such column."""
    layout: str = ""
    """Axes such as NHWC or THW, or WIDTHxHEIGHT of flat images; "" to detect the axes."""


class CsvRule(NamedTuple):
    """The parts of `csv:FILE,FILE…:ID:LABEL`."""

    files: tuple[str, ...]
    id_column: str = ""
    """A column, or a path template of several columns; "" to detect the column."""
    label_columns: tuple[str, ...] = ()
    """Columns of labels; ("*",) for all columns except the id, () to detect them."""
    pivot: str = ""
    """The column with the name of each row's target; "" if a row has all targets of an image."""
    target: str = "auto"
    """Value of `--target`."""


_NO_TABLE = CsvRule(())
_USUAL = {
    "training": "train", "val": "validation", "valid": "validation", "dev": "validation",
    "testing": "test",
}  # fmt: skip
"""Other word for a split → its usual name, as for folders and cells of tables."""
_STACK = OptionName("stack")


@dataclass(frozen=True, slots=True)
class LabelRule:
    """The parsed value of `--labels`."""

    kind: RuleKind
    text: str = ""
    depth: int = 1
    """For kind "folder": the level of the folder above the image; 1 directly contains the image."""
    pattern: str = ""
    table: CsvRule = _NO_TABLE
    """For kind "column", a rule without files: its columns are in a file of arrays."""


@dataclass(frozen=True, slots=True)
class SplitRule:
    """The parsed value of `--split`; kind "folders" is the default."""

    kind: Literal["folders", "ratio", "column", "list", "roots", "tables"]
    text: str = ""
    ratios: Mapping[str, float] = field(default_factory=dict)
    """For kind "ratio": split → share. The shares add up to 1."""
    column: str = ""
    places: Mapping[str, str] = field(default_factory=dict)
    """For kind "column", cell → split; for "roots", glob → split."""
    lists: Sequence[tuple[str, str]] = ()
    """For kind "list", pairs of file and split; a JSON file may have lists of several splits."""
    notes: Sequence[str] = ()
    """Remarks on usual names of splits, such as validation for val, and on an empty train."""

    @property
    def files(self) -> tuple[str, ...]:
        """Files that list the images of splits, for kind "list"; "*" is not a file."""
        return tuple(dict.fromkeys(file for file, _ in self.lists if file != "*"))


@dataclass(frozen=True, slots=True)
class GroupRule:
    """The parsed value of `--group`."""

    kind: Literal["none", "column", "folder", "regex"]
    text: str = ""
    """The rule without "near,"."""
    is_near: bool = False
    depth: int = 1
    pattern: str = ""


class JoinRule(NamedTuple):
    """One parsed value of `--join`."""

    file: str
    key: str = ""
    """The common column of both tables; "" to detect it."""


@dataclass(frozen=True, slots=True)
class StackRule:
    """The parsed value of `--stack`; `text` is "" for single images."""

    text: str = ""
    pattern: str = ""
    """Regular expression of whole keys, with a group `key` (key of the sample) and `channel`."""
    channels: tuple[str, ...] = ()
    """Names of the channels, one file for each; () if the files are a series."""
    names: tuple[str, ...] = ()
    """Names in braces, in order; `field_NAME` is the group of the pattern for a name."""


def parse_array_rule(text: str) -> ArrayRule:
    """Return the rule of an `--images` value; OptionError if it is invalid."""
    file, _, rest = text.partition(":")
    column, _, layout = rest.partition(":")
    if not file:
        what = f"{shown(text)!r} names no file"
        raise OptionError(OptionName("images"), what, "use FILE, FILE:COLUMN or FILE:COLUMN:LAYOUT")
    if layout and not _LAYOUT.fullmatch(layout):
        hint = "use one letter of NTHWC for each axis, or WIDTHxHEIGHT for rows of pixels"
        raise OptionError(OptionName("images"), f"{shown(layout)!r} is not a layout", hint)
    return ArrayRule(file, column, layout)


def parse_label_rule(text: str) -> LabelRule:
    """Return the rule of a `--labels` value; OptionError if it is invalid."""
    option = OptionName("labels")
    kind, _, argument = text.partition(":")
    match kind:
        case "auto" | "prefix" | "none" if not argument:
            return LabelRule(kind, text)
        case "folder":
            return LabelRule("folder", text, depth=_depth(argument, option))
        case "csv" if argument:
            return LabelRule("csv", text, table=_csv_rule(argument))
        case "csv":
            raise OptionError(option, "'csv' names no file", "use csv:FILE or csv:FILE:ID:LABEL")
        case "column" if argument:
            names = tuple(name.strip() for name in argument.split(","))
            return LabelRule("column", text, table=CsvRule((), "", names))
        case "column":
            raise OptionError(option, "'column' names no column", "use column:NAME")
        case "text" if argument:
            names = parse_stack_rule(argument, option).names
            # Files next to their images have the same path; others have only the name in common.
            is_beside = not _BRACES.sub("", argument.rpartition("/")[0]).strip("/*")
            table = CsvRule((argument,), WHOLE_NAME if is_beside else names[-1], (TEXT,))
            return LabelRule("csv", text, table=table)
        case "regex":
            _check_regex(argument, "label", option)
            return LabelRule("regex", text, pattern=argument)
    if kind in get_args(RuleKind):
        raise OptionError(option, f"{kind} does not take {argument!r}", f"use {kind} alone")
    hint = "use auto, folder, folder:N, prefix, regex:PATTERN, csv:FILE[:ID:LABEL], column:NAME, "
    hint += "text:PATTERN or none"
    raise OptionError(option, f"{shown(text)!r} is not a rule for labels", hint)


def parse_rows_rule(text: str) -> CsvRule:
    """Return the rule of a `--rows` value; OptionError if it is invalid."""
    kind, _, argument = text.partition(":")
    rule = _csv_rule(argument)
    if text and not (kind == "csv" and argument.count(":") > 1 and all(rule[:3])):
        hint = "use csv:FILE:ID:COLUMN,COLUMN…"
        raise OptionError(OptionName("rows"), f"{shown(text)!r} does not name columns", hint)
    return rule if text else _NO_TABLE


def parse_table_rule(text: str, option: OptionName) -> CsvRule:
    """Return the rule of `csv:FILE[:ID[:COLUMN,…]]`; OptionError if it is invalid."""
    kind, _, argument = text.partition(":")
    if text and not (kind == "csv" and argument):
        raise OptionError(option, f"{shown(text)!r} names no table", "use csv:FILE:ID:COLUMN")
    return _csv_rule(argument) if text else _NO_TABLE


def parse_split_rule(text: str) -> SplitRule:
    """Return the rule of a `--split` value; OptionError if it is invalid."""
    option = OptionName("split")
    kind, colon, rest = text.partition(":")
    if not text:
        return SplitRule("folders")
    if not colon and text != "tables":
        names = (part.partition("=")[0].strip() for part in text.split(","))
        ratios, notes = _ratios(text, option), _renamed(names)
        if "train" not in ratios:
            notes = [*notes, f"the ratios {text} leave no image in train"]
        return SplitRule("ratio", text, ratios, notes=notes)
    if kind == "tables":
        return SplitRule("tables", text)
    if kind not in ("column", "list", "roots"):
        hint = "column:NAME, list:train=FILE,…, roots:train=GLOB,… or tables"
        what = f"{shown(text)!r} is not a rule for splits"
        raise OptionError(option, what, f"use train=0.8,test=0.2, {hint}")
    column = ""
    if kind == "column":
        column, _, rest = rest.partition(":")
        if not column:
            raise OptionError(option, f"{text!r} names no column", "use column:NAME")
    if kind == "list":
        given = [*_pairs(rest, option, is_flipped=True)]
        _unique((one for one in given if not one[0].lower().endswith(".json")), option)
        lists = [(file, _split_name(split, option)) for file, split in given]
        return SplitRule("list", text, lists=lists, notes=_renamed(split for _, split in given))
    is_flipped = kind != "column"
    pairs = parse_pairs(rest, option, is_flipped=is_flipped) if rest or is_flipped else {}
    places = {key: _split_name(split, option) for key, split in pairs.items()}
    notes = _renamed(pairs.values())
    return SplitRule(kind, text, {}, column, places, notes=notes)  # type: ignore[arg-type]


def parse_group_rule(text: str) -> GroupRule:
    """Return the rule of a `--group` value, "near", RULE or "near,RULE"; OptionError if invalid."""
    option = OptionName("group")
    is_near = text.partition(",")[0] == "near"
    rule = text.removeprefix("near").removeprefix(",") if is_near else text
    kind, _, argument = rule.partition(":")
    if kind == "regex" and argument:
        if not _check_regex(argument, "", option).groups:
            what = f"regex:{shown(argument)} has no group"
            raise OptionError(option, what, r"write regex:^(\d+)_")
        return GroupRule("regex", rule, is_near, pattern=argument)
    if kind == "folder":
        return GroupRule("folder", rule, is_near, depth=_depth(argument, option))
    return GroupRule("column" if rule else "none", rule, is_near)


def parse_join_rule(text: str) -> JoinRule:
    """Return the rule of a `--join` value, `FILE[:KEY]`; the path may contain a colon."""
    file, colon, key = text.rpartition(":")
    has_key = colon and not key.lower().endswith(TABLE_SUFFIXES)
    return JoinRule(file, key) if has_key else JoinRule(text)


_BRACES = re.compile(r"\{(?P<inner>[^{}/]*)\}")
_WILDCARDS = re.compile(r"\*\*/|\*\*|\*|\?")
_WILD = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def parse_stack_rule(text: str, option: OptionName = _STACK) -> StackRule:
    """Return the rule of a `--stack` value, such as `{id}/*.png` or `{id}_{red,green}.png`.

    A name in braces matches text without slashes. Names with commas are the channels. The files of
    a sample have the same path up to the end of the last name; this part is the sample's key.
    OptionError, which names `option`, if the pattern is invalid.
    """
    if not text:
        return StackRule()
    wrong = f"{shown(text)!r}"
    names: list[str] = []
    channels: tuple[str, ...] = ()
    pattern, key, at = "", "", 0
    for match in _BRACES.finditer(text):
        pattern += wildcard_pattern(text[at : match.start()])
        at = match.end()
        inner = match["inner"]
        if "," in inner:
            if channels:
                raise OptionError(option, f"{wrong} lists channels twice", "list them once")
            channels = tuple(name.strip() for name in inner.split(","))
            if "" in channels or len({name.lower() for name in channels}) < len(channels):
                hint = "give each channel a name of its own"
                raise OptionError(option, f"{wrong} has a channel twice or without a name", hint)
            pattern += f"(?P<channel>{'|'.join(map(re.escape, channels))})"
            continue
        if not inner.isidentifier():
            what = f"{wrong} has {{{inner}}}, which is not a name"
            raise OptionError(option, what, "use letters, as in {id}")
        if inner in names:
            pattern += f"(?P=field_{inner})"
        else:
            names.append(inner)
            pattern += f"(?P<field_{inner}>[^/]+)"
            key = pattern
    pattern += wildcard_pattern(text[at:])
    hint = "use a pattern such as train/{id}/slice_*.jpg or {id}_{red,green,blue}.png"
    hint = hint if option == _STACK else "add a name in braces, as in {stem}.txt"
    if not key:
        raise OptionError(option, f"{wrong} does not say which files belong together", hint)
    is_before = "<channel>" in key
    if is_before or _BRACES.sub("", text).strip("{}") != _BRACES.sub("", text):
        what = f"has channels before {{{names[-1]}}}" if is_before else "is not a pattern of stacks"
        hint = _items_hint(text, channels) if is_before and option == _STACK else hint
        raise OptionError(option, f"{wrong} {what}", hint)
    whole = f"(?i)(?P<key>(?:.*/)?{key}){pattern.removeprefix(key)}"
    return StackRule(text, whole, channels, tuple(names))


def _items_hint(text: str, channels: Sequence[str]) -> str:
    """Return how to give stacks as a table of items, with the rows of a sample `a`."""
    rows = [_BRACES.sub(lambda one: "{}" if "," in one["inner"] else "a", text)]
    paths = [rows[0].replace("*", "a").replace("{}", name) for name in channels[:2]]
    table = " / ".join(f"{path},a,{i}" for i, path in enumerate(paths))
    flag = OptionName("items", "stacks.csv")
    how = f"give {flag} instead of {_STACK}, a table such as image,sample,order / {table}"
    return f"folders cannot be channels: {how}"


def wildcard_pattern(text: str) -> str:
    """Return a regular expression for a text with the wildcards `*`, `**`, `**/` and `?`."""
    pattern, at = "", 0
    for match in _WILDCARDS.finditer(text):
        pattern += re.escape(text[at : match.start()]) + _WILD[match.group()]
        at = match.end()
    return pattern + re.escape(text[at:])


def parse_pairs(text: str, option: OptionName, *, is_flipped: bool = False) -> dict[str, str]:
    """Return {"a": "b", "c": "d"} for "a=b,c=d", or for "b=a,d=c" if `is_flipped`.

    OptionError if a part is not A=B, or if a key occurs twice.
    """
    return _unique(_pairs(text, option, is_flipped=is_flipped), option)


def _pairs(text: str, option: OptionName, *, is_flipped: bool) -> Iterator[tuple[str, str]]:
    for part in text.split(","):
        left, sign, right = (piece.strip() for piece in part.partition("="))
        if not (left and sign and right):
            raise OptionError(option, f"{part.strip()!r} is not A=B", "write pairs as in A=B,C=D")
        yield (right, left) if is_flipped else (left, right)


def _unique(several: Iterable[tuple[str, str]], option: OptionName) -> dict[str, str]:
    pairs = dict[str, str]()
    for left, right in several:
        if left in pairs:
            what = f"{shown(left)!r} is both {shown(pairs[left])} and {shown(right)}"
            raise OptionError(option, what, "give each name one value")
        pairs[left] = right
    return pairs


def letters_of(match: re.Match[str]) -> slice:
    """Return the slice of a match of `SLICE`: [0] is the first letter, [:-4] all but the last 4."""
    start = int(match["start"]) if match["start"] else None
    if match["colon"]:
        return slice(start, int(match["stop"]) if match["stop"] else None)
    return slice(None) if start is None else slice(start, (start + 1) or None)


def checked_expression(
    pattern: str, where: str, option: OptionName, hint: str = ""
) -> re.Pattern[str]:
    """Return the compiled pattern; OptionError, which names it as `where`, if it is invalid."""
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise OptionError(option, f"{where} is not valid ({error})", hint) from error


def _check_regex(pattern: str, group: str, option: OptionName) -> re.Pattern[str]:
    where = f"regex:{shown(pattern)}"
    compiled = checked_expression(pattern, where, option, "correct the regular expression")
    if group and group not in compiled.groupindex:
        raise OptionError(option, f"{where} has no group named {group}", f"write (?P<{group}>…)")
    return compiled


def _depth(argument: str, option: OptionName) -> int:
    if not re.fullmatch("([1-9][0-9]{0,3})?", argument):
        what = f"folder:{shown(argument)} is not folder:N"
        raise OptionError(option, what, "N is a whole number from 1 to 9999")
    return int(argument or 1)


def _csv_rule(argument: str) -> CsvRule:
    files, *columns = argument.rsplit(":", 2) if argument.count(":") >= 2 else (argument,)
    id_column, labels = columns or ("", "")
    names = tuple(name.strip() for name in labels.split(",") if name)
    return CsvRule(tuple(files.split(",")), id_column, names)


def _ratios(text: str, option: OptionName) -> dict[str, float]:
    """Return split → share; "train" gets the remaining share if `text` does not name it."""
    ratios: dict[str, float] = {}
    for part in text.split(","):
        name, sign, number = (piece.strip() for piece in part.partition("="))
        try:
            ratio = float(number)
        except ValueError:
            ratio = math.nan
        if not sign or math.isnan(ratio):
            hint = "write ratios as in train=0.8,validation=0.1,test=0.1"
            raise OptionError(option, f"{part.strip()!r} is not NAME=RATIO", hint)
        name = _split_name(name, option)
        if name in ratios:
            raise OptionError(option, f"{name!r} is named twice", "name each split once")
        if not 0 < ratio <= 1:
            hint = "write a share such as 0.1"
            raise OptionError(option, f"{name}={ratio:g} must be above 0 and at most 1", hint)
        ratios[name] = ratio
    total = sum(ratios.values())
    if total < 1 - _SLACK and "train" not in ratios:
        return {"train": round(1 - total, 9), **ratios}
    if abs(total - 1) > _SLACK:
        hint = "give ratios that add up to 1, or up to less without train, which takes the rest"
        raise OptionError(option, f"the ratios add up to {total:g}", hint)
    return ratios


def _split_name(name: str, option: OptionName) -> str:
    if not NAME.fullmatch(name):
        what = f"{name!r} is not a name for a split"
        raise OptionError(option, what, "use lower-case letters, digits and _, a letter first")
    return _USUAL.get(name, name)


def _renamed(splits: Iterable[str]) -> list[str]:
    names = dict.fromkeys(one for one in splits if one in _USUAL)
    option = OptionName("split")
    return [f"{option}: {one} is stored as the split {_USUAL[one]}" for one in names]
