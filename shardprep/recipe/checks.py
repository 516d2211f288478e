"""Checks of a recipe beyond the types of its values: of one option, and of options together."""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING, Any

from shardprep.dataset.grammar import MAX_NAME, NAME, VERSION
from shardprep.dataset.schema import MAX_SIDE
from shardprep.errors import RecipeError
from shardprep.recipe.values import texts_in, value_shown
from shardprep.source.kaggle.ref import is_ref
from shardprep.storage.url import parse_place, shown_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardprep.recipe.problems import Place

_MAX_TEXT = 4096
"""Characters of a path, an address or a name; Linux allows no longer path."""
_SCHEME = re.compile(r"(^|[:,=])[A-Za-z][A-Za-z0-9+.-]+://")
"""Scheme of an address, where a rule names a file."""
_ONE_SIZE = "use the fit crop, pad or stretch, or the format png"
_CONTRADICTIONS: tuple[tuple[str, str, Callable[[Any, Any], bool], str, str], ...] = (
    (
        "fit", "size", lambda fit, size: size == "none" and fit != "none",
        "{} needs a size, which is none", "",
    ),
    (
        "size", "fit", lambda size, fit: fit == "none" and size != "none",
        "{} contradicts the fit none", "leave one of them out",
    ),
    (
        "format", "fit", lambda form, fit: form == "raw" and fit in ("none", "within"),
        "raw pixels need one size for all images, the fit {other} gives each its own", _ONE_SIZE,
    ),
    (
        "format", "size", lambda form, size: form == "raw" and size == "none",
        "raw pixels need one size for all images, the size {other} gives each its own", _ONE_SIZE,
    ),
    (
        "quality", "format", lambda _, form: form in ("png", "raw"),
        "means nothing for the format {other!r}", "leave it out",
    ),
)  # fmt: skip
"""Pairs of options, the values that contradict each other, and the error of the first option."""


def consistent(keys: Mapping[str, Any], flags: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """Return the options of a file and of flags together, without those that give way to a flag.

    Raises:
        RecipeError: two flags contradict each other, or two keys of the file.

    """
    found = {**keys, **flags}
    if "size" in found and found["size"] is None:
        found["size"] = "none"
    for key, other, contradict, what, hint in _CONTRADICTIONS:
        if not (key in found and other in found and contradict(found[key], found[other])):
            continue
        yields = [one for one in (key, other) if one not in flags]
        if len(yields) != 1:
            where, before = place(key)
            shown = what.format(value_shown(found[key]), other=found[other])
            raise RecipeError(where, before + shown, hint)
        del found[yields[0]]
    kept = {"size", "fit"} & found.keys()
    if flags.get("format") == "keep" and keys.get("format") != "keep" and not kept & flags.keys():
        kept = set()  # the file's size is that of its format
    if "none" in (found.get("size"), found.get("fit")) or (
        found.get("format") == "keep" and not kept
    ):
        found.update(size="none", fit="none")
    return found


def _check_length(text: str) -> None:
    if len(text) > _MAX_TEXT:
        message = f"is longer than {_MAX_TEXT:,} characters"
        raise ValueError(message)


def _check_name(name: str) -> None:
    _check_length(name)
    if name and not NAME.fullmatch(name):
        message = (
            f"{value_shown(name)} must be lower-case letters, digits and _, a letter first, "
            f"at most {MAX_NAME}"
        )
        raise ValueError(message)


def _check_version(version: str) -> None:
    _check_length(version)
    if not VERSION.fullmatch(version):
        message = f"{value_shown(version)} must be three numbers, such as 1.0.0"
        raise ValueError(message)


def _check_place(text: str) -> None:
    _check_length(text)
    try:
        parse_place(text)
    except RecipeError as error:
        raise ValueError(str(error)) from None


def _check_source(text: str) -> None:
    if is_ref(text):
        _check_length(text)
    else:
        _check_place(text)


def _check_near(value: str | tuple[str, ...]) -> None:
    """Refuse files in object storage."""
    for text in texts_in(value):
        if _SCHEME.search(text) and not text.startswith("regex:"):
            message = f"{shown_url(text)}: a table is read from the source or from this machine"
            raise ValueError(message)


def _check_size(size: tuple[int, int] | None) -> None:
    if size and not all(1 <= side <= MAX_SIDE for side in size):
        message = f"{size[1]}x{size[0]}: a side must be 1 to {MAX_SIDE:,} pixels"
        raise ValueError(message)


def _check_aspect(ratio: float) -> None:
    if 0 < ratio < 1:
        message = f"{ratio:g} is less than a square has; give 1 or more, or 0 for any"
        raise ValueError(message)


def _check_classes(classes: tuple[str, ...]) -> None:
    if len(set(classes)) != len(classes) or "" in classes:
        message = "names must be given, each once"
        raise ValueError(message)


def _check_encoding(name: str) -> None:
    try:
        codecs.lookup(name or "utf-8")
    except (LookupError, ValueError) as error:
        message = f"{value_shown(name)} is no encoding that Python knows, such as cp932 or gbk"
        raise ValueError(message) from error


CHECKS: dict[str, Callable[[Any], None]] = {
    **dict.fromkeys(
        ("labels", "join", "class_map", "exclude_list", "split", "schema"), _check_near
    ),
    "source": _check_source,
    "out": _check_place,
    "name": _check_name,
    "version": _check_version,
    "size": _check_size,
    "max_aspect": _check_aspect,
    "classes": _check_classes,
    "zip_encoding": _check_encoding,
}
"""Option → check of its value, beyond its type."""
