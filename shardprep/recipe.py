"""The recipe: what to build. Flags and `shardprep.toml` have the same keys; a flag wins."""

from __future__ import annotations

import codecs
import re
import tomllib
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

from shardprep.errors import RecipeError
from shardprep.grammar import MAX_NAME, NAME, VERSION
from shardprep.schema import MAX_SIDE, TargetKind
from shardprep.source.kaggle.ref import is_ref
from shardprep.source.limits import DEFAULT_LIMITS, SourceLimits
from shardprep.storage.url import parse_place, shown_url

if TYPE_CHECKING:
    from collections.abc import Mapping

RECIPE_FILE = "shardprep.toml"
_SIZE = re.compile(r"(\d+)\s*[xX\u00d7]\s*(\d+)")
_NUM_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kKmMgGtT])(i?))?[bB]?")
_MOST_BYTES = 2**63 - 1
_COLOURS = {"white": (255, 255, 255), "black": (0, 0, 0), "grey": (128, 128, 128)}
_SUFFIXES = re.compile(r"\.(zip|tar|tgz|tbz2?|txz|gz|bz2|xz)$", re.IGNORECASE)
_SCHEME = re.compile(r"(^|[:,=])[A-Za-z][A-Za-z0-9+.-]+://")
"""Of an address, where a rule names a file."""


def _size(value: object) -> object:
    """Turn "WxH" into (height, width), "none" into None."""
    if not isinstance(value, str):
        return value
    if value == "none":
        return None
    match = _SIZE.fullmatch(value.strip())
    if not match:
        message = f"{value!r} is not WIDTHxHEIGHT, such as 224x224, or none"
        raise ValueError(message)
    width, height = int(match[1]), int(match[2])
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE):
        message = f"{value!r}: a side must be 1 to {MAX_SIDE} pixels"
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
        message = f"{value!r} is not a share such as 5% or 0.05"
        raise ValueError(message) from error


def _num_bytes(value: object) -> object:
    """Turn "500MB" into 500,000,000 and "2GiB" into 2,147,483,648; a bare number is bytes."""
    if not isinstance(value, str):
        return value
    match = _NUM_BYTES.fullmatch(value.strip())
    if not match:
        message = f"{value!r} is not a size such as 500MB, 2GB or 2GiB"
        raise ValueError(message)
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
    parts = text.split(",")
    if len(parts) == 3 and all(p.strip().isdigit() and int(p) <= 255 for p in parts):
        return tuple(int(part) for part in parts)
    message = f"{value!r} is not white, black, grey, #RRGGBB or R,G,B"
    raise ValueError(message)


def _names(value: object) -> object:
    """Turn "cat,dog" into ("cat", "dog")."""
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


def _one_or_more(value: object) -> object:
    """Turn "a" into ("a",)."""
    return (value,) if isinstance(value, str) else value


_Several = Annotated[tuple[str, ...], BeforeValidator(_one_or_more)]
_List = Annotated[tuple[str, ...], BeforeValidator(_names)]
_Bytes = Annotated[int, BeforeValidator(_num_bytes), Field(ge=1, le=_MOST_BYTES)]


class Recipe(BaseModel):
    """What to build, in the form in which it is stored; strings are accepted as the flags are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    out: str = "tfrecords"
    name: str = ""
    """Of the dataset; by default made from the name of the source."""
    version: str = "1.0.0"
    shards: Annotated[int, Field(ge=1, le=99_999)] | None = None
    """Of the largest split; None: by size."""
    size: Annotated[tuple[int, int] | None, BeforeValidator(_size)] = (224, 224)
    """Height, width in pixels; None: every image keeps its own."""
    fit: str = Field("crop", pattern="^(crop|pad|stretch|within|none)$")
    format: str = Field("jpeg", pattern="^(jpeg|png|raw|keep)$")
    quality: int = Field(90, ge=1, le=100)
    background: Annotated[tuple[int, int, int], BeforeValidator(_colour)] = (255, 255, 255)
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
    split: Annotated[str, BeforeValidator(_split)] = ""
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
    max_pixels: int = Field(100_000_000, ge=1)
    timeout: float = Field(60.0, ge=0)
    """Seconds that one image may take; 0: no limit."""
    max_members: int = Field(DEFAULT_LIMITS.max_members, ge=1)
    max_member_size: _Bytes = DEFAULT_LIMITS.max_member_size
    """Bytes."""
    max_unpacked: _Bytes | None = None
    """Bytes; None: 10 GB and 100 times the source."""
    max_ratio: int = Field(DEFAULT_LIMITS.max_ratio, ge=1)
    max_depth: int = Field(DEFAULT_LIMITS.max_depth, ge=1, le=64)
    min_side: int = Field(1, ge=1)
    max_aspect: float = Field(0.0, ge=0)
    """Of the longer by the shorter side; 0: any."""
    truncated: str = Field("reject", pattern="^(reject|recover)$")
    max_rejected: Annotated[float, BeforeValidator(share), Field(ge=0, le=1)] = 0.05

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

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name and not NAME.fullmatch(name):
            message = (
                f"{name!r} must be lower-case letters, digits and _, start with a letter, and have "
                f"at most {MAX_NAME} characters"
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
            message = f"{version!r} must be three numbers, such as 1.0.0"
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
        except LookupError as error:
            message = f"{name!r} is no encoding that Python knows, such as cp932 or gbk"
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
        while _SUFFIXES.search(stem):
            stem = _SUFFIXES.sub("", stem)
        name = re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_")
        name = name if name[:1].isalpha() else f"dataset_{name}"
        return name[:MAX_NAME].rstrip("_")


def read_recipe(path: Path) -> dict[str, Any]:
    """Return the keys of a recipe file; "-" in a key counts as "_".

    Raises:
        RecipeError: the file cannot be read or is not TOML.

    """
    try:
        keys = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(str(path), f"cannot be read ({error})") from error
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(str(path), f"is not TOML ({error})") from error
    return {key.replace("-", "_"): value for key, value in keys.items()}


def make_recipe(keys: Mapping[str, Any], where: str) -> Recipe:
    """Return the recipe with these keys; `where` is what an error calls their origin.

    Raises:
        RecipeError: a key is unknown, malformed or contradicts another; all of them are named.

    """
    keys = _consistent(dict(keys))
    try:
        return Recipe.model_validate(keys)
    except ValidationError as error:
        problems = [_problem(problem) for problem in error.errors()]
        raise RecipeError(where, "; ".join(dict.fromkeys(problems))) from error


def _consistent(keys: dict[str, Any]) -> dict[str, Any]:
    """Fill in what one key says of another, and refuse contradictions.

    Raises:
        RecipeError: two keys contradict each other.

    """
    size, fit, form = keys.get("size"), keys.get("fit"), keys.get("format")
    if size == "none" and fit not in (None, "none"):
        raise RecipeError("--fit", f"{fit} needs a --size, which is none")
    if size not in (None, "none") and fit == "none":
        raise RecipeError("--size", f"{size} contradicts --fit none", "leave one of them out")
    if fit == "none" or size == "none" or (form == "keep" and size is None and fit is None):
        keys.update(size=None, fit="none")
    if form == "raw" and keys.get("fit") in ("none", "within"):
        raise RecipeError(
            "--format",
            f"raw pixels need one size for all images, --fit {keys['fit']} gives each its own",
            "use --fit crop, pad or stretch, or --format png",
        )
    if form not in (None, "jpeg", "keep") and keys.get("quality") is not None:
        raise RecipeError("--quality", f"means nothing for --format {form}", "leave it out")
    return keys


def _problem(problem: Any) -> str:
    key = str(problem["loc"][0]) if problem["loc"] else "recipe"
    if problem["type"] == "extra_forbidden":
        known = ", ".join(sorted(name.rstrip("_") for name in Recipe.model_fields))
        return f"{key}: unknown key; the keys are {known}"
    if problem["type"] == "literal_error":
        return f"{key}: {problem['input']!r} is not one of {problem['ctx']['expected']}"
    if problem["type"] == "missing":
        return f"{key}: is needed"
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "string_pattern_mismatch":
        choices = str(problem["ctx"]["pattern"]).strip("^$()").replace("|", ", ")
        message = f"{problem['input']!r} is not one of {choices}"
    return f"{key}: {message}"
