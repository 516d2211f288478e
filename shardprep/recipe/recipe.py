"""The recipe: what to build, from the flags of the command line and the keys of `shardprep.toml`.

Where both say something, the flag wins, and what contradicts it in the file gives way; an error
names the one that it came from. The file may be a stranger's: no value of it is a traceback.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
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
from shardprep.recipe.checks import check, consistent, flag_of, unknown_key, unusable
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

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardprep.recipe.checks import Place

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
"""Name of an option → its type."""

_DEFAULTS = {one.name: one.default for one in fields(BuildOptions)}


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The options of a recipe that are rules, parsed; each value keeps its text."""

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
"""Option → function that parses its rule."""


@dataclass(frozen=True, kw_only=True)
class Recipe(BuildOptions):
    """The options of a build, checked, with their rules; `make_recipe` returns them.

    The recorded recipe has the texts of the rules. Code reads `rules` instead.
    """

    rules: Rules = field(repr=False, compare=False)

    @property
    def source_limits(self) -> SourceLimits:
        """Limits of what the source may ask for."""
        return self._part(SourceLimits)

    @property
    def image_spec(self) -> ImageSpec:
        """Specification of every stored image, without boxes or masks where that is open."""
        if self.fit == "auto":
            return self.settled(annotated=False).image_spec
        return self._part(ImageSpec)

    @property
    def is_annotated(self) -> bool:
        """Whether boxes or masks are asked for."""
        return self.rules.boxes.is_given or self.rules.masks.is_given

    @property
    def finds_near(self) -> bool:
        """Whether near copies are searched for, in the pixels, before anything else is decided."""
        return self.rules.group.is_near or self.dedup == "near"

    @property
    def may_be_annotated(self) -> bool:
        """Whether boxes or masks are stored if the source surely has some."""
        return self.labels == "auto" and not self.boxes and not self.masks

    @property
    def named_files(self) -> list[str]:
        """The files that the recipe names; each is in the source or on disk."""
        rules = self.rules
        files = [one.file for one in rules.join]
        files += [file for file in (self.class_map, self.exclude_list) if file]
        files += [*rules.labels.table.files, *rules.split.files]
        files += [*rules.boxes.files, *rules.masks.files]
        if self.mask_values and "=" not in self.mask_values:
            files.append(self.mask_values)
        return files

    def with_rules(self, **texts: str) -> Recipe:
        """Return this recipe with other rules, such as `boxes="voc"`; only these are parsed."""
        rules = {key: _PARSERS[key](text) for key, text in texts.items()}
        options: dict[str, Any] = {**texts, "rules": replace(self.rules, **rules)}
        return replace(self, **options)

    def settled(self, *, annotated: bool) -> Recipe:
        """Return this recipe with the fit of images with boxes or masks, or of images alone.

        A fit that was asked for stays.
        """
        fit: Fit = "pad" if annotated else "crop"
        return replace(self, fit=fit) if self.fit == "auto" else self

    def _part(self, kind: type[_Part]) -> _Part:
        """Return the options that are the fields of a dataclass."""
        return kind(**{one.name: getattr(self, one.name) for one in fields(kind)})

    @property
    def dataset_name(self) -> str:
        """The name asked for, or one made from the source: "Dogs-vs-Cats.zip" → dogs_vs_cats."""
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
        """Return the options that shape the bytes, with values as JSON has them."""
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
    """Return the recipe of keys and flags.

    Args:
        keys: options as a file gives them.
        where: name of that file in errors.
        flags: options of the command line, which win; an error calls them as they are written
            there.

    Raises:
        RecipeError: a key is unknown, malformed or contradicts another; all of them are named.

    """
    flags = flags or {}

    def place(key: str) -> tuple[str, str]:
        return (flag_of(key), "") if key in flags else (where, f"{key}: ")

    return _checked(consistent(keys, flags, place), place)


def stored_recipe(options: Mapping[str, Any]) -> Recipe:
    """Return the recipe of stored options, such as those of a fingerprint.

    Raises:
        RecipeError: one is unknown or malformed, as those of another version may be.

    """
    return _checked(options, lambda key: (key, ""))


def _read(key: str, value: object) -> Any:
    """Return the value of an option as it is stored."""
    option, kind = BUILD_OPTIONS[key], _TYPES[key]
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if any("\0" in text for text in texts_in(value)):
        raise ValueError("holds a null character")
    try:
        is_switch = isinstance(value, bool)
        if (is_switch and bool not in kinds) or (kind is bool and not is_switch):
            raise ValueError
        found = option.read(value) if option.read else value
        if found is None and type(None) in kinds:
            return None
        if kinds[0] in (int, float):
            found = read_number(found, kinds[0], option.least, option.most)
        elif kind == tuple[str, ...]:
            found = read_texts(found)
        elif found not in _choices(kind, found):
            raise ValueError
    except ValueError as error:
        raise ValueError(f"{value_shown(value)} is not {_wanted(key)}") from error
    check(key, found, value)
    return found


def _choices(kind: object, found: object) -> tuple[object, ...]:
    """Return the values that a type allows; `found` alone is one of those it does not list."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    if bool in get_args(kind) and not isinstance(found, bool):
        return get_args(get_args(kind)[1])
    return (found,) if kind is not str or isinstance(found, str) else ()


def _wanted(key: str) -> str:
    """Return in words what the values of an option are."""
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
    """Return the recipe of keys, each of which is read and checked."""
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
    """Return the folders or addresses that a build writes, which are never part of its source."""
    out = recipe.out.rstrip("/") if is_url(recipe.out) else str(Path(recipe.out))
    final = f"{out}/{recipe.dataset_name}/{recipe.version}"
    return out, final, final + INCOMPLETE_SUFFIX, f"{final}.old"
