"""The recipe: the checked options of a build, from flags and from the keys of `shardprep.toml`.

A flag overrides the same key of the file, and removes keys that contradict it. An error names the
flag or the file that the option came from. The file may come from an untrusted source: an invalid
value must raise a RecipeError and nothing else.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from shardprep.dataset import schema
from shardprep.dataset.documents import MAX_NAME, NAME, VERSION
from shardprep.dataset.folder import INCOMPLETE_SUFFIX
from shardprep.dataset.schema import MAX_SIDE
from shardprep.errors import OptionError, OptionName, RecipeError, nearest_name, printable, shown
from shardprep.image import annotation_types, spec
from shardprep.image.spec import Fit, ImageSpec
from shardprep.recipe.object_rules import (
    FormatRule,
    MaskPattern,
    MaskRule,
    PointRule,
    parse_box_rule,
    parse_mask_pattern,
    parse_mask_rule,
    parse_point_rule,
)
from shardprep.recipe.options import BUILD_DEFAULTS, BUILD_OPTIONS, RUN_OPTIONS, BuildOptions
from shardprep.recipe.rules import (
    ArrayRule,
    CsvRule,
    GroupRule,
    JoinRule,
    LabelRule,
    SplitRule,
    StackRule,
    parse_array_rule,
    parse_group_rule,
    parse_join_rule,
    parse_label_rule,
    parse_rows_rule,
    parse_split_rule,
    parse_stack_rule,
    parse_table_rule,
)
from shardprep.recipe.values import read_number, read_texts, texts_in, value_shown
from shardprep.source.kaggle.ref import is_ref
from shardprep.source.limits import SourceLimits
from shardprep.source.names import without_archive_suffix
from shardprep.storage.cache import without_cache
from shardprep.storage.url import is_url, parse_place, shown_url

_Part = TypeVar("_Part", ImageSpec, SourceLimits)
_TYPES = get_type_hints(
    BuildOptions, localns={**vars(schema), **vars(annotation_types), **vars(spec)}
)


def _is_encoding(name: str) -> bool:
    try:
        codecs.lookup(name or "utf-8")
    except (LookupError, ValueError):
        return False
    return True


_NAMES = ("source", "out", "name", "version")
_FILES = (
    "items", "labels", "relabel", "rows", "join", "class_map", "exclude_list", "split", "schema",
    "boxes", "masks", "points", "mask_values",
)  # fmt: skip
"""Options that may name a file. The file must not be in object storage."""
_VALID: dict[str, tuple[Callable[[Any], object], str]] = {
    "name": (
        lambda name: not name or NAME.fullmatch(name),
        f"must be at most {MAX_NAME} lower-case letters, digits and _, a letter first",
    ),
    "version": (VERSION.fullmatch, "must be three numbers, such as 1.0.0"),
    "size": (
        lambda size: size is None or all(1 <= side <= MAX_SIDE for side in size),
        f"must have sides of 1 to {MAX_SIDE:,} pixels",
    ),
    "overlap": (bool, "is not a number of pixels, such as 64, or 0 for tiles that do not overlap"),
    "depth": (lambda depth: depth in (8, 16), "must be 8 or 16"),
    "max_aspect": (
        lambda ratio: not 0 < ratio < 1,
        "is below 1, the ratio of a square; give 1 or more, or 0 for no limit",
    ),
    "classes": (
        lambda names: "" not in names and len(set(names)) == len(names),
        "must be names, each of them once",
    ),
    "group": (lambda rule: rule != "near,", "names no rule: give near, or near,RULE"),
    "zip_encoding": (_is_encoding, "is not an encoding that Python knows, such as cp932 or gbk"),
}
"""Option → test of its value, and the problem if the test fails."""


_MAX_KEY = 60
_MAX_WHAT = 180
_MAX_PROBLEMS = 240
"""Maximum number of characters of a key, of one problem, and of all problems in an error."""

Place = Callable[[str], tuple[str | OptionName, str]]
"""Maps a key to the flag or file that its error names, and to a prefix of the message."""
_MAX_TEXT = 4096
"""Maximum number of characters of a path, an address or a name (PATH_MAX of Linux)."""
_SCHEME = re.compile(r"(^|[:,=])[A-Za-z][A-Za-z0-9+.-]+://")
_ONE_SIZE = "use the fit crop, pad or stretch, or the format png"
_CONTRADICTIONS: tuple[tuple[str, str, Callable[[Any, Any], bool], str, str], ...] = (
    (
        "fit", "size", lambda fit, size: size == "none" and fit != "none",
        "{} needs a size other than none", "give a size, or leave the fit out",
    ),
    (
        "size", "fit", lambda size, fit: fit == "none" and size != "none",
        "{} contradicts the fit none", "leave out the size or the fit",
    ),
    (
        "format", "fit", lambda form, fit: form == "raw" and fit in ("none", "within"),
        "raw needs one size for all images, but the fit {other} keeps different sizes", _ONE_SIZE,
    ),
    (
        "format", "size", lambda form, size: form == "raw" and size == "none",
        "raw images need one size, not the size {other}", "give a size, or the format png",
    ),
    (
        "quality", "format", lambda _, form: form in ("png", "raw"),
        "has no effect with the format {other!r}", "leave the quality out",
    ),
    *(
        (
            key, other, lambda rule, value: bool(value) and rule not in ("", "none", None),
            f"is not supported {noun}", "leave out {key} or {other}",
        )
        for other, noun in (("stack", "for stacks"), ("target_image", "with target images"))
        for key in ("points", "boxes", "masks", "target_image", "tile")
        if key != other and (key, other) != ("masks", "stack")
    ),
    (
        "depth", "format", lambda depth, form: depth in (16, "16") and form != "png",
        "16 bits are stored as PNG, not as {other}", "leave the format out",
    ),
)  # fmt: skip
"""Two options, a test that is True if their values contradict each other, the problem, a hint."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The parsed rules of a recipe."""

    labels: LabelRule
    relabel: CsvRule
    rows: CsvRule
    split: SplitRule
    group: GroupRule
    boxes: FormatRule
    masks: MaskRule
    points: PointRule
    target_image: MaskPattern | None
    join: tuple[JoinRule, ...]
    stack: StackRule
    images: tuple[ArrayRule, ...]


_TARGET = OptionName("target_image")
_PARSERS: dict[str, Callable[[Any], Any]] = {
    "labels": parse_label_rule,
    "relabel": lambda text: parse_table_rule(text, OptionName("relabel")),
    "rows": parse_rows_rule,
    "split": parse_split_rule,
    "group": parse_group_rule,
    "boxes": parse_box_rule,
    "masks": parse_mask_rule,
    "points": parse_point_rule,
    "target_image": lambda text: parse_mask_pattern(text, _TARGET) if text else None,
    "join": lambda texts: tuple(map(parse_join_rule, texts)),
    "stack": parse_stack_rule,
    "images": lambda texts: tuple(map(parse_array_rule, texts)),
}


@dataclass(frozen=True, kw_only=True)
class Recipe(BuildOptions):
    """The checked options of a build; `make_recipe` creates it.

    Fields such as `labels` are texts, for the manifest; code uses the parsed `rules` instead.
    """

    rules: Rules = field(repr=False, compare=False)

    @property
    def source_limits(self) -> SourceLimits:
        return self._part(SourceLimits)

    @property
    def image_spec(self) -> ImageSpec:
        """Specification of the stored images; fit "auto" counts as "crop"."""
        if self.fit == "auto":
            return self.settled(annotated=False).image_spec
        stored = self._part(ImageSpec)
        return replace(stored, depth=8) if self.target_image else stored

    @property
    def target_spec(self) -> ImageSpec | None:
        """Specification of the stored target images, which are PNG; None without target images."""
        if not self.target_image:
            return None
        return replace(self.image_spec, format="png", depth=self.depth)

    @property
    def label_rule(self) -> LabelRule:
        """The parsed rule of `labels`, with the options `pivot` and `target`."""
        rule = self.rules.labels
        return replace(rule, table=rule.table._replace(pivot=self.pivot, target=self.target))

    @property
    def is_annotated(self) -> bool:
        rules = self.rules
        return rules.boxes.is_given or rules.masks.is_given or rules.points.is_given

    @property
    def finds_near(self) -> bool:
        """Whether the build first decodes all images to find near copies."""
        return self.rules.group.is_near or self.dedup == "near"

    @property
    def may_be_annotated(self) -> bool:
        """Whether annotations may be detected: no option states labels, annotations or stacks."""
        is_stated = self.boxes or self.masks or self.points or self.stack or self.target_image
        return self.labels == "auto" and not is_stated

    @property
    def named_files(self) -> list[str]:
        """Files that options name, in the source or on disk."""
        rules = self.rules
        files = [rule.file for rule in rules.join]
        files += filter(None, (self.items, self.class_map, self.exclude_list))
        files += [*rules.labels.table.files, *rules.rows.files, *rules.split.files]
        files += [*rules.relabel.files, *rules.boxes.files, *rules.masks.files, *rules.points.files]
        if self.mask_values and "=" not in self.mask_values:
            files.append(self.mask_values)
        return files

    def with_rules(self, **texts: Any) -> Recipe:
        """Return a copy with options such as `boxes="voc"`; OptionError if a rule is invalid."""
        rules = {key: _PARSERS[key](text) for key, text in texts.items() if key in _PARSERS}
        options: dict[str, Any] = {**texts, "rules": replace(self.rules, **rules)}
        return replace(self, **options)

    def settled(self, *, annotated: bool) -> Recipe:
        """Return a copy with fit "auto" replaced: "pad" if `annotated`, otherwise "crop"."""
        fit: Fit = "pad" if annotated else "crop"
        return replace(self, fit=fit) if self.fit == "auto" else self

    def _part(self, kind: type[_Part]) -> _Part:
        return kind(**{part.name: getattr(self, part.name) for part in fields(kind)})

    @property
    def dataset_name(self) -> str:
        """`name`, or a name from the source: "dogs_vs_cats" for "Dogs-vs-Cats.zip"."""
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
        """Return the options that can change the shards, as JSON values."""
        values = {key: getattr(self, key) for key in BUILD_OPTIONS}
        return {
            key: list(value) if isinstance(value, tuple) else without_cache(value)
            for key, value in values.items()
            if BUILD_OPTIONS[key].shapes_bytes
            and not (BUILD_OPTIONS[key].is_newer and value == BUILD_DEFAULTS[key])
        }


def make_recipe(
    keys: Mapping[str, Any], where: str, flags: Mapping[str, Any] | None = None
) -> Recipe:
    """Return the recipe from the keys of a file and from flags, which override them.

    RecipeError names the flag, or the file `where` for a key of the file.
    """
    flags = flags or {}

    def place(key: str) -> tuple[str | OptionName, str]:
        return (_option(key), "") if key in flags else (where, f"{key}: ")

    return _checked(_consistent(keys, flags, place), place)


def stored_recipe(options: Mapping[str, Any]) -> Recipe:
    """Return the recipe recorded in a dataset; RecipeError if this version rejects an option."""
    return _checked(options, lambda key: (key, ""))


def _read(key: str, value: object) -> Any:
    option, kind = BUILD_OPTIONS[key], _TYPES[key]
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if any("\0" in text for text in texts_in(value)):
        raise ValueError("must not contain a null character")
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
    _check(key, result, value)
    return result


def _choices(kind: object, value: object) -> tuple[object, ...]:
    """Return the values of a Literal type; for other types (value,), or () if a text is needed."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    if bool in get_args(kind) and not isinstance(value, bool):
        return get_args(get_args(kind)[1])
    return (value,) if kind is not str or isinstance(value, str) else ()


def _wanted(key: str) -> str:
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
    values: dict[str, Any] = {}
    rules: dict[str, Any] = {}
    problems: list[tuple[str, str]] = []
    for key in [key for key in BUILD_OPTIONS if key in keys]:
        try:
            values[key] = _read(key, keys[key])
        except ValueError as error:
            if key != "size" or keys[key] is not keys.get("tile"):  # the tile implies its size
                problems.append((key, str(error)))
    problems += [_unknown_key(key) for key in keys if key not in BUILD_OPTIONS]
    if "source" not in keys:
        problems.append(("source", "is needed"))
    if problems:
        raise _unusable(problems, place)
    tile, overlap = values.get("tile") or (1, 1), values.get("overlap", (0, 0))
    if not all(shared < side for shared, side in zip(overlap, tile, strict=True)):
        what = f"{value_shown(keys['overlap'])} must be smaller than {OptionName('tile')}"
        raise _unusable([("overlap", what)], place)
    for key, parse in _PARSERS.items():
        try:
            rules[key] = parse(values.get(key, BUILD_DEFAULTS[key]))
        except OptionError as error:
            where, _ = place(key)
            if isinstance(where, str) and where != key:
                error.blame(where)
            raise
    return Recipe(**values, rules=Rules(**rules))


def _consistent(keys: Mapping[str, Any], flags: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """Return the options of a file, overridden by flags, with size and fit made consistent.

    An option of the file that contradicts a flag is left out. Other contradictions are errors.
    """
    options = {**keys, **flags}
    if options.get("fit") == "auto":
        del options["fit"]
    if "size" in options and options["size"] is None:
        options["size"] = "none"
    for key, other, contradict, what, hint in _CONTRADICTIONS:
        if key == "depth" and options.get("target_image"):  # the images keep their format
            continue
        if not (key in options and other in options and contradict(options[key], options[other])):
            continue
        from_file = [name for name in (key, other) if name not in flags]
        if len(from_file) != 1:
            where, before = place(key)
            problem = what.format(value_shown(options[key]), other=options[other])
            names = {"key": OptionName(key), "other": OptionName(other)}
            raise RecipeError(where, before + problem, hint.format(**names))
        del options[from_file[0]]
    sizes = {"size", "fit"} & options.keys()
    if flags.get("format") == "keep" and keys.get("format") != "keep" and not sizes & flags.keys():
        sizes = set()  # size and fit of the file were meant for its own format
    if "none" in (options.get("size"), options.get("fit")) or (
        options.get("format") == "keep" and not sizes
    ):
        options.update(size="none", fit="none")
    options |= _implied(options)
    rules = ("boxes", "masks", "points")
    annotations = [options[key] for key in rules if options.get(key, "") != ""]
    is_stated = options.get("labels", "auto") != "auto" or bool(options.get("target_image"))
    if "fit" not in options and (annotations or is_stated):
        options["fit"] = "crop" if all(rule == "none" for rule in annotations) else "pad"
    return options


def _implied(options: Mapping[str, Any]) -> dict[str, Any]:
    implied: dict[str, Any] = {}
    tile, size, fit = (options.get(key) for key in ("tile", "size", "fit"))
    if tile not in (None, "none") and "none" not in (size, fit):
        implied |= {"size": size or tile, "fit": fit or "pad"}
    if options.get("depth") in (16, "16") and not options.get("target_image"):
        implied["format"] = "png"
    if str(options.get("labels")).startswith("text:"):
        implied["target"] = options.get("target", "text")
    points = options.get("points", "")
    if isinstance(points, str) and points.startswith(("coco", "yolo")) and not options.get("boxes"):
        implied["boxes"] = points  # the objects that have the keypoints
    return implied


def _check(key: str, value: Any, given: object) -> None:
    """Raise ValueError, which quotes `given`, if a converted value cannot be used."""
    if isinstance(value, str) and key in _NAMES and len(value) > _MAX_TEXT:
        raise ValueError(f"must have at most {_MAX_TEXT:,} characters")
    is_valid, what = _VALID.get("size" if key == "tile" else key, (None, ""))
    if is_valid and not is_valid(value):
        raise ValueError(f"{value_shown(given)} {what}")
    if key == "out" or (key == "source" and not is_ref(value)):
        try:
            parse_place(value)
        except RecipeError as error:
            raise ValueError(str(error)) from None
    for text in texts_in(value) if key in _FILES else ():
        if _SCHEME.search(text) and not text.startswith("regex:"):
            raise ValueError(f"{shown_url(text)}: a table must be in the source or on this machine")


def _unusable(problems: Sequence[tuple[str, str]], place: Place) -> RecipeError:
    """Return one error for all (key, message) pairs; pairs beyond the length limit are counted."""
    problems = [(key, shown(printable(what), _MAX_WHAT)) for key, what in problems]
    (first, message), *others = dict.fromkeys(problems)
    where, before = place(first)
    what, last = before + message, where
    for number, (key, message) in enumerate(others):
        here, before = place(key)
        more = f"; {before}{message}" if here == last else f"; {here}: {before}{message}"
        if len(what) + len(more) > _MAX_PROBLEMS:
            what += f"; and {len(others) - number:,} more"
            break
        what, last = what + more, here
    return RecipeError(where, what)


def _option(key: str) -> OptionName:
    return OptionName("SOURCE" if key == "source" else key)


def _unknown_key(key: str) -> tuple[str, str]:
    name = shown(printable(key), _MAX_KEY)
    if key in RUN_OPTIONS:
        return name, f"is for one run: give {_option(key)} on the command line"
    near = nearest_name(key, sorted(BUILD_OPTIONS))
    hint = f"is {near} meant?" if near else "shardprep build --help-all lists the options"
    return name, f"unknown key; {hint}"


def outputs(recipe: Recipe) -> tuple[str, ...]:
    """Return the folders or addresses that a build writes, which are excluded from its source."""
    out = recipe.out.rstrip("/") if is_url(recipe.out) else str(Path(recipe.out))
    final = f"{out}/{recipe.dataset_name}/{recipe.version}"
    return out, final, final + INCOMPLETE_SUFFIX, f"{final}.old"
