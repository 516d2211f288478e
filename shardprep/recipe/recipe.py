"""The recipe: the checked options of a build, from flags and from the keys of `shardprep.toml`.

A flag overrides the same key of the file, and removes keys that contradict it. An error names the
flag or the file that the option came from. The file may come from an untrusted source: every
invalid value gives an error, never a traceback.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import UnionType
from typing import (
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from shardprep.dataset.documents import MAX_NAME
from shardprep.dataset.folder import INCOMPLETE_SUFFIX
from shardprep.dataset.schema import TargetKind
from shardprep.errors import OptionError
from shardprep.image.annotation_types import Frame, RunOrder
from shardprep.image.spec import DepthRange, Fit, Format, ImageSpec, Truncated, Window
from shardprep.recipe.checks import Place, check, consistent, flag_of, unknown_key, unusable
from shardprep.recipe.object_rules import FormatRule, MaskRule, parse_box_rule, parse_mask_rule
from shardprep.recipe.options import BUILD_OPTIONS, BuildOptions
from shardprep.recipe.rules import (
    GroupRule,
    JoinRule,
    LabelRule,
    SplitRule,
    parse_group_rule,
    parse_join_rule,
    parse_label_rule,
    parse_split_rule,
)
from shardprep.recipe.values import read_number, read_texts, texts_in, value_shown
from shardprep.source.limits import SourceLimits
from shardprep.source.names import without_archive_suffix
from shardprep.storage.url import is_url

_Part = TypeVar("_Part", ImageSpec, SourceLimits)
_TYPES = get_type_hints(
    BuildOptions,
    localns={
        "DepthRange": DepthRange,
        "Fit": Fit,
        "Format": Format,
        "Frame": Frame,
        "RunOrder": RunOrder,
        "Truncated": Truncated,
        "TargetKind": TargetKind,
        "Window": Window,
    },
)

_DEFAULTS = {option.name: option.default for option in fields(BuildOptions)}


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The parsed rules of a recipe. Each rule keeps its text."""

    labels: LabelRule
    split: SplitRule
    group: GroupRule
    boxes: FormatRule
    masks: MaskRule
    join: tuple[JoinRule, ...]


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "labels": parse_label_rule,
    "split": parse_split_rule,
    "group": parse_group_rule,
    "boxes": parse_box_rule,
    "masks": parse_mask_rule,
    "join": lambda texts: tuple(map(parse_join_rule, texts)),
}


@dataclass(frozen=True, kw_only=True)
class Recipe(BuildOptions):
    """The checked options of a build, and their parsed rules; see `make_recipe`.

    The options contain the texts of the rules, which the manifest records. Code uses `rules`.
    """

    rules: Rules = field(repr=False, compare=False)

    @property
    def source_limits(self) -> SourceLimits:
        return self._part(SourceLimits)

    @property
    def image_spec(self) -> ImageSpec:
        """Specification of the stored images; with fit "auto", the one without boxes or masks."""
        if self.fit == "auto":
            return self.settled(annotated=False).image_spec
        return self._part(ImageSpec)

    @property
    def is_annotated(self) -> bool:
        """Whether the options ask for boxes or masks."""
        return self.rules.boxes.is_given or self.rules.masks.is_given

    @property
    def finds_near(self) -> bool:
        """Whether a pass over the pixels searches for near copies before the build."""
        return self.rules.group.is_near or self.dedup == "near"

    @property
    def may_be_annotated(self) -> bool:
        """Whether boxes or masks are stored if they are detected in the source."""
        return self.labels == "auto" and not self.boxes and not self.masks

    @property
    def named_files(self) -> list[str]:
        """The files that the options name. Each is in the source or on disk."""
        rules = self.rules
        files = [rule.file for rule in rules.join]
        files += [file for file in (self.class_map, self.exclude_list) if file]
        files += [*rules.labels.table.files, *rules.split.files]
        files += [*rules.boxes.files, *rules.masks.files]
        if self.mask_values and "=" not in self.mask_values:
            files.append(self.mask_values)
        return files

    def with_rules(self, **texts: str) -> Recipe:
        """Return a copy with other rules, such as `boxes="voc"`."""
        rules = {key: _PARSERS[key](text) for key, text in texts.items()}
        options: dict[str, Any] = {**texts, "rules": replace(self.rules, **rules)}
        return replace(self, **options)

    def settled(self, *, annotated: bool) -> Recipe:
        """Return a copy whose fit "auto" is replaced: "pad" if `annotated`, otherwise "crop"."""
        fit: Fit = "pad" if annotated else "crop"
        return replace(self, fit=fit) if self.fit == "auto" else self

    def _part(self, kind: type[_Part]) -> _Part:
        return kind(**{part.name: getattr(self, part.name) for part in fields(kind)})

    @property
    def dataset_name(self) -> str:
        """`name`, or a name made from the source: "Dogs-vs-Cats.zip" gives "dogs_vs_cats"."""
        if self.name:
            return self.name
        source = self.source.rstrip("/")
        if source.startswith(("kaggle:", "https://")):
            source = re.sub(r"(/versions)?/\d+$", "", source)  # a version is not a name
        stem = source.rpartition("/")[2].rpartition(":")[2]
        if stem in ("", ".", ".."):
            stem = Path(self.source).resolve().name
        while (shorter := without_archive_suffix(stem)) != stem:
            stem = shorter
        name = re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_")
        name = name if name[:1].isalpha() else f"dataset_{name}"
        return name[:MAX_NAME].rstrip("_")

    def fingerprint_options(self) -> dict[str, Any]:
        """Return the options that can change the shards, with values of JSON types."""
        values = {key: getattr(self, key) for key in BUILD_OPTIONS}
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in values.items()
            if BUILD_OPTIONS[key].shapes_bytes
            and not (BUILD_OPTIONS[key].is_newer and value == _DEFAULTS[key])
        }


def make_recipe(
    keys: Mapping[str, Any], where: str, flags: Mapping[str, Any] | None = None
) -> Recipe:
    """Return the recipe of the keys of a file and of flags.

    Args:
        keys: options of the file.
        where: name of the file in errors.
        flags: options of the command line, which override the keys.

    Raises:
        RecipeError: an option is unknown, malformed or contradicts another. The error names all of
            them.

    """
    flags = flags or {}

    def place(key: str) -> tuple[str, str]:
        return (flag_of(key), "") if key in flags else (where, f"{key}: ")

    return _checked(consistent(keys, flags, place), place)


def stored_recipe(options: Mapping[str, Any]) -> Recipe:
    """Return the recipe of recorded options, for example from a fingerprint.

    Raises:
        RecipeError: an option is unknown or malformed, for example because another version of
            shardprep recorded it.

    """
    return _checked(options, lambda key: (key, ""))


def _read(key: str, value: object) -> Any:
    """Return the converted and checked value of an option, or raise ValueError."""
    option, kind = BUILD_OPTIONS[key], _TYPES[key]
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if any("\0" in text for text in texts_in(value)):
        raise ValueError("contains a null character")
    try:
        is_switch = isinstance(value, bool)
        if (is_switch and bool not in kinds) or (kind is bool and not is_switch):
            raise ValueError
        result = option.read(value) if option.read else value
        if result is None and type(None) in kinds:
            return None
        if kinds[0] in (int, float):
            result = read_number(result, kinds[0], option.least, option.most)
        elif kind == tuple[str, ...]:
            result = read_texts(result)
        elif result not in _choices(kind, result):
            raise ValueError
    except ValueError as error:
        raise ValueError(f"{value_shown(value)} is not {_wanted(key)}") from error
    check(key, result, value)
    return result


def _choices(kind: object, value: object) -> tuple[object, ...]:
    """Return the values that a type lists; for a type without a list, (value,) if it fits."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    if bool in get_args(kind) and not isinstance(value, bool):
        return get_args(get_args(kind)[1])
    return (value,) if kind is not str or isinstance(value, str) else ()


def _wanted(key: str) -> str:
    """Return a description of the values that an option takes."""
    option, kind = BUILD_OPTIONS[key], _TYPES[key]
    if option.wanted:
        return option.wanted
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    words = {bool: "true or false", str: "a text", tuple[str, ...]: "a text or a list of texts"}
    if kind in words:
        return words[kind]
    return option.numbers(kind)


def _checked(keys: Mapping[str, Any], place: Place) -> Recipe:
    """Return the recipe of options, or raise one error for all problems."""
    values: dict[str, Any] = {}
    rules: dict[str, Any] = {}
    problems: list[tuple[str, str]] = []
    for key in [key for key in BUILD_OPTIONS if key in keys]:
        try:
            values[key] = _read(key, keys[key])
        except ValueError as error:
            problems.append((key, str(error)))
    problems += [unknown_key(key) for key in keys if key not in BUILD_OPTIONS]
    if "source" not in keys:
        problems.append(("source", "is needed"))
    if problems:
        raise unusable(problems, place)
    for key, parse in _PARSERS.items():
        try:
            rules[key] = parse(values.get(key, _DEFAULTS[key]))
        except OptionError as error:
            file, _ = place(key)
            if file not in (key, flag_of(key)):
                error.blame(file)
            raise
    return Recipe(**values, rules=Rules(**rules))


def outputs(recipe: Recipe) -> tuple[str, ...]:
    """Return the folders or addresses that a build writes. They are excluded from its source."""
    out = recipe.out.rstrip("/") if is_url(recipe.out) else str(Path(recipe.out))
    final = f"{out}/{recipe.dataset_name}/{recipe.version}"
    return out, final, final + INCOMPLETE_SUFFIX, f"{final}.old"
