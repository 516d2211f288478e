"""The recipe: what to build. A flag of the command line and a key of `shardprep.toml` are one.

Where both say something, the flag wins; an error names the one that it came from. The file may be
a stranger's: it is of some size, no value of it is more than it says, and none is a traceback.
"""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from shardprep.dataset.folder import INCOMPLETE_SUFFIX
from shardprep.dataset.grammar import MAX_NAME, NAME, VERSION
from shardprep.dataset.schema import MAX_SIDE, TargetKind
from shardprep.errors import RecipeError
from shardprep.recipe.problems import flag_of, unusable, value_shown, wrong_kind
from shardprep.source.kaggle.ref import is_ref
from shardprep.source.limits import DEFAULT_LIMITS, SourceLimits
from shardprep.source.names import without_archive_suffix
from shardprep.storage.url import is_url, parse_place, shown_url

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shardprep.recipe.problems import Place

_MOST_NAME = 4096
"""Characters of a path, an address or a name; Linux allows no longer path."""
_SIZE = re.compile(r"(\d{1,9})\s*[xX\u00d7]\s*(\d{1,9})")
_NUM_BYTES = re.compile(r"(\d{1,19}(?:\.\d{1,19})?)\s*(?:([kKmMgGtT])(i?))?[bB]?")
_COLOUR = re.compile(r"\s*([0-9]{1,3})\s*,\s*([0-9]{1,3})\s*,\s*([0-9]{1,3})\s*")
_MOST_BYTES = 2**63 - 1
_COLOURS = {"white": (255, 255, 255), "black": (0, 0, 0), "grey": (128, 128, 128)}
_SCHEME = re.compile(r"(^|[:,=])[A-Za-z][A-Za-z0-9+.-]+://")
"""Scheme of an address, where a rule names a file."""


def _size(value: object) -> object:
    """Turn "WxH" into (height, width), "none" into None."""
    if not isinstance(value, str):
        return value
    if value == "none":
        return None
    match = _SIZE.fullmatch(value.strip())
    if not match:
        raise wrong_kind()
    width, height = int(match[1]), int(match[2])
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE):
        message = f"{value_shown(value)}: a side must be 1 to {MAX_SIDE} pixels"
        raise ValueError(message)
    return height, width


def _split(value: object) -> object:
    """Turn a table of ratios into the text of the flag."""
    if isinstance(value, dict):
        return ",".join(f"{name}={share}" for name, share in value.items())
    return value


def share(value: object) -> object:
    """Turn "5%" into 0.05."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError as error:
        message = f"{value_shown(value)} is not a share such as 5% or 0.05"
        raise ValueError(message) from error


def _num_bytes(value: object) -> object:
    """Turn "500MB" into 500,000,000 and "2GiB" into 2,147,483,648; a bare number is bytes."""
    if not isinstance(value, str):
        return value
    match = _NUM_BYTES.fullmatch(value.strip())
    if not match:
        raise wrong_kind()
    number, unit, binary = match.groups(default="")
    return int(float(number) * (1024 if binary else 1000) ** (" kmgt".index(unit.lower() or " ")))


def _colour(value: object) -> object:
    """Turn a name, #RRGGBB or R,G,B into a triple."""
    if not isinstance(value, str):
        return value
    text = value.strip().lower()
    if text in _COLOURS:
        return _COLOURS[text]
    if re.fullmatch("#[0-9a-f]{6}", text):
        return tuple(bytes.fromhex(text[1:]))
    if match := _COLOUR.fullmatch(text):
        return tuple(int(part) for part in match.groups())
    raise wrong_kind()


def _names(value: object) -> object:
    """Turn "cat,dog" into ("cat", "dog")."""
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


def _one_or_more(value: object) -> object:
    """Turn "a" into ("a",)."""
    return (value,) if isinstance(value, str) else value


_TEXTS = Field(description="a text or a list of texts")
_Several = Annotated[tuple[str, ...], BeforeValidator(_one_or_more), _TEXTS]
_List = Annotated[tuple[str, ...], BeforeValidator(_names), _TEXTS]
_Bytes = Annotated[
    int,
    BeforeValidator(_num_bytes),
    Field(ge=1, le=_MOST_BYTES, description="a size such as 500MB, 2GB or 2GiB"),
]
_Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]
_Level = Annotated[int, Field(ge=0, le=255)]
_Count = Annotated[int, Field(ge=1, le=10**12)]


class Recipe(BaseModel):
    """A recipe, in the form in which it is stored; strings are accepted as the flags are.

    The description of a field says what its values are, where its type does not.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    source: str
    out: str = "tfrecords"
    name: str = ""
    """Of the dataset; by default made from the name of the source."""
    version: str = "1.0.0"
    shards: int | None = Field(None, ge=1, le=99_999)
    """Of the largest split; None: by size."""
    size: Annotated[tuple[_Side, _Side] | None, BeforeValidator(_size)] = Field(
        (224, 224), description="WIDTHxHEIGHT, such as 224x224, or none"
    )
    """Height, width in pixels; None: every image keeps its own."""
    fit: str = Field("crop", pattern="^(crop|pad|stretch|within|none)$")
    format: str = Field("jpeg", pattern="^(jpeg|png|raw|keep)$")
    quality: int = Field(90, ge=1, le=100)
    background: Annotated[tuple[_Level, _Level, _Level], BeforeValidator(_colour)] = Field(
        (255, 255, 255), description="white, black, grey, #RRGGBB or R,G,B"
    )
    labels: str = "auto"
    target: TargetKind | Literal["auto"] = "auto"
    separator: str = ""
    """Between several class names in one cell; "" to find it."""
    classes: _List = ()
    class_map: str = ""
    """A JSON or CSV file of names, or "old=new,…"."""
    join: _Several = ()
    """Further tables, "FILE" or "FILE:KEY"."""
    columns: _List = ()
    """Of the tables, to be features of their own."""
    header: bool = True
    null: _List = ("nan", "NaN", "<NA>")
    """Cells that mean nothing, beside empty ones."""
    split: Annotated[str, BeforeValidator(_split)] = Field(
        "", description="a text or a table of ratios"
    )
    group: str = ""
    dedup: bool = False
    root: str = ""
    include: _Several = ()
    exclude: _Several = ()
    exclude_list: str = ""
    follow_links: bool = False
    """Whether links in a folder may lead outside of it."""
    zip_encoding: str = ""
    schema_: str = Field("auto", alias="schema")
    seed: int = Field(0, ge=0, lt=2**63)
    max_pixels: _Count = 100_000_000
    timeout: float = Field(60.0, ge=0, le=10**8)
    """Seconds that one image may take; 0: no limit."""
    max_members: _Count = DEFAULT_LIMITS.max_members
    max_member_size: _Bytes = DEFAULT_LIMITS.max_member_size
    """Bytes."""
    max_unpacked: _Bytes | None = Field(None, description="a size such as 500MB, 2GB or 2GiB")
    """Bytes; None: 10 GB and 100 times the source."""
    max_ratio: _Count = DEFAULT_LIMITS.max_ratio
    max_depth: int = Field(DEFAULT_LIMITS.max_depth, ge=1, le=64)
    min_side: _Count = 1
    max_aspect: float = Field(0.0, ge=0, le=10**12)
    """Of the longer by the shorter side; 0: any."""
    truncated: str = Field("reject", pattern="^(reject|recover)$")
    max_rejected: Annotated[float, BeforeValidator(share)] = Field(
        0.05, ge=0, le=1, description="a share such as 5% or 0.05"
    )

    @property
    def source_limits(self) -> SourceLimits:
        """What the source may ask for."""
        return SourceLimits(
            self.max_members,
            self.max_member_size,
            self.max_unpacked,
            self.max_ratio,
            self.max_depth,
            self.follow_links,
        )

    @field_validator("*", mode="before")
    @classmethod
    def _check_kind(cls, value: Any, info: ValidationInfo) -> Any:
        is_flag = cls.model_fields[str(info.field_name)].annotation is bool
        if isinstance(value, bool) is not is_flag:
            raise wrong_kind()
        if any("\0" in text for text in _texts(value)):
            message = "holds a null character"
            raise ValueError(message)
        return value

    @field_validator("source", "out", "name", "version")
    @classmethod
    def _check_length(cls, text: str) -> str:
        if len(text) > _MOST_NAME:
            message = f"is longer than {_MOST_NAME:,} characters"
            raise ValueError(message)
        return text

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name and not NAME.fullmatch(name):
            message = (
                f"{value_shown(name)} must be lower-case letters, digits and _, a letter first, "
                f"at most {MAX_NAME}"
            )
            raise ValueError(message)
        return name

    @field_validator("source", "out")
    @classmethod
    def _check_address(cls, text: str, info: ValidationInfo) -> str:
        if info.field_name == "source" and is_ref(text):
            return text
        try:
            parse_place(text)
        except RecipeError as error:
            raise ValueError(str(error)) from None
        return text

    @field_validator("labels", "join", "class_map", "exclude_list", "split", "schema_")
    @classmethod
    def _check_near(cls, value: Any) -> Any:
        for text in (value,) if isinstance(value, str) else value:
            if _SCHEME.search(text) and not text.startswith("regex:"):
                message = f"{shown_url(text)}: a table is read from the source or from this machine"
                raise ValueError(message)
        return value

    @field_validator("version")
    @classmethod
    def _check_version(cls, version: str) -> str:
        if not VERSION.fullmatch(version):
            message = f"{value_shown(version)} must be three numbers, such as 1.0.0"
            raise ValueError(message)
        return version

    @field_validator("max_aspect")
    @classmethod
    def _check_aspect(cls, ratio: float) -> float:
        if 0 < ratio < 1:
            message = f"{ratio:g} is less than a square has; give 1 or more, or 0 for any"
            raise ValueError(message)
        return ratio

    @field_validator("classes")
    @classmethod
    def _check_classes(cls, classes: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(classes)) != len(classes) or "" in classes:
            message = "names must be given, each once"
            raise ValueError(message)
        return classes

    @field_validator("zip_encoding")
    @classmethod
    def _check_encoding(cls, name: str) -> str:
        try:
            codecs.lookup(name or "utf-8")
        except (LookupError, ValueError) as error:
            message = f"{value_shown(name)} is no encoding that Python knows, such as cp932 or gbk"
            raise ValueError(message) from error
        return name

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


def make_recipe(keys: Mapping[str, Any], where: str, flags: Collection[str] = ()) -> Recipe:
    """Return the recipe with these keys.

    Args:
        keys: what is given of it.
        where: what an error calls their origin.
        flags: keys that are from the command line: an error calls them as they are written there.

    Raises:
        RecipeError: a key is unknown, malformed or contradicts another; all of them are named.

    """

    def place(key: str) -> tuple[str, str]:
        return (flag_of(key), "") if key in flags else (where, f"{key}: ")

    keys = _consistent(dict(keys), place)
    try:
        return Recipe.model_validate(keys)
    except ValidationError as error:
        raise unusable(error, Recipe.model_fields, place) from error


def _consistent(keys: dict[str, Any], place: Place) -> dict[str, Any]:
    """Fill in what one key says of another, and refuse contradictions.

    Raises:
        RecipeError: two keys contradict each other.

    """

    def refused(key: str, what: str, hint: str = "") -> RecipeError:
        where, before = place(key)
        return RecipeError(where, before + what, hint)

    size, fit, form = keys.get("size"), keys.get("fit"), keys.get("format")
    if size == "none" and fit not in (None, "none"):
        raise refused("fit", f"{value_shown(fit)} needs a size, which is none")
    if size not in (None, "none") and fit == "none":
        problem = f"{value_shown(size)} contradicts the fit none"
        raise refused("size", problem, "leave one of them out")
    if fit == "none" or size == "none" or (form == "keep" and size is None and fit is None):
        keys.update(size=None, fit="none")
    if form == "raw" and keys.get("fit") in ("none", "within"):
        raise refused(
            "format",
            f"raw pixels need one size for all images, the fit {keys['fit']} gives each its own",
            "use the fit crop, pad or stretch, or the format png",
        )
    if form not in (None, "jpeg", "keep") and keys.get("quality") is not None:
        problem = f"means nothing for the format {value_shown(form)}"
        raise refused("quality", problem, "leave it out")
    return keys


def _texts(value: object) -> Collection[str]:
    """Return the strings in a value."""
    if isinstance(value, str):
        return (value,)
    parts = value if isinstance(value, list | tuple | dict) else ()
    return [part for part in parts if isinstance(part, str)]


def outputs(recipe: Recipe) -> tuple[str, ...]:
    """Return the folders or addresses that a build writes, which are never part of its source."""
    out = recipe.out.rstrip("/") if is_url(recipe.out) else str(Path(recipe.out))
    final = f"{out}/{recipe.dataset_name}/{recipe.version}"
    return out, final, final + INCOMPLETE_SUFFIX, f"{final}.old"
