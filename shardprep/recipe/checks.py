"""Checks of a recipe beyond the types of its values, and the error of all that is wrong with it."""

from __future__ import annotations

import codecs
import difflib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shardprep.dataset.documents import MAX_NAME, NAME, VERSION
from shardprep.dataset.schema import MAX_SIDE
from shardprep.errors import RecipeError, printable, shown
from shardprep.recipe.options import BUILD_OPTIONS, RUN_OPTIONS
from shardprep.recipe.values import texts_in, value_shown
from shardprep.source.kaggle.ref import is_ref
from shardprep.storage.url import parse_place, shown_url

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MAX_SHOWN = 60
"""Characters of a key in an error."""
_MAX_WHAT = 180
"""Characters of one problem."""
_MAX_PROBLEMS = 240
"""Characters of problems in an error, after which the others are counted."""

Place = Callable[[str], tuple[str, str]]
"""From a key to where it is from, and what stands before a problem with it."""
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
    """Return the options of a file and of flags together, without those that give way to a flag."""
    found = {**keys, **flags}
    if found.get("fit") == "auto":
        del found["fit"]
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
    annotations = [found[key] for key in ("boxes", "masks") if found.get(key, "") != ""]
    if "fit" not in found and (annotations or found.get("labels", "auto") != "auto"):
        found["fit"] = "crop" if all(one == "none" for one in annotations) else "pad"
    return found


def check(key: str, value: Any, given: object) -> None:
    """Check the value of an option, which was read from what is given.

    Raises:
        ValueError: it cannot be used; the message says why.

    """
    if isinstance(value, str) and key in _NAMES and len(value) > _MAX_TEXT:
        raise ValueError(f"is longer than {_MAX_TEXT:,} characters")
    is_valid, what = _VALID.get(key, (None, ""))
    if is_valid and not is_valid(value):
        raise ValueError(f"{value_shown(given)} {what}")
    if key == "out" or (key == "source" and not is_ref(value)):
        try:
            parse_place(value)
        except RecipeError as error:
            raise ValueError(str(error)) from None
    for text in texts_in(value) if key in _FILES else ():
        if _SCHEME.search(text) and not text.startswith("regex:"):
            where = shown_url(text)
            raise ValueError(f"{where}: a table is read from the source or from this machine")


def _is_encoding(name: str) -> bool:
    try:
        codecs.lookup(name or "utf-8")
    except (LookupError, ValueError):
        return False
    return True


_NAMES = ("source", "out", "name", "version")
_FILES = (
    "labels", "join", "class_map", "exclude_list", "split", "schema", "boxes", "masks",
    "mask_values",
)  # fmt: skip
"""Options that may name a file, which is never one in object storage."""
_VALID: dict[str, tuple[Callable[[Any], object], str]] = {
    "name": (
        lambda name: not name or NAME.fullmatch(name),
        f"must be lower-case letters, digits and _, a letter first, at most {MAX_NAME}",
    ),
    "version": (VERSION.fullmatch, "must be three numbers, such as 1.0.0"),
    "size": (
        lambda size: size is None or all(1 <= side <= MAX_SIDE for side in size),
        f"must have sides of 1 to {MAX_SIDE:,} pixels",
    ),
    "max_aspect": (
        lambda ratio: not 0 < ratio < 1,
        "is less than a square has; give 1 or more, or 0 for any",
    ),
    "classes": (
        lambda names: "" not in names and len(set(names)) == len(names),
        "must be names, each once",
    ),
    "group": (lambda rule: rule != "near,", "names no rule beside near"),
    "zip_encoding": (_is_encoding, "is no encoding that Python knows, such as cp932 or gbk"),
}
"""Option → test of its value, and what is wanted of it."""


def unusable(problems: Sequence[tuple[str, str]], place: Place) -> RecipeError:
    """Return the error of all problems, as far as they fit in a line; the others are counted.

    A problem is a key and what is wrong with its value.
    """
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


def flag_of(key: str) -> str:
    """Return the name of an option on the command line."""
    return "SOURCE" if key == "source" else f"--{key.replace('_', '-')}"


def unknown_key(key: str) -> tuple[str, str]:
    """Return the problem of a key that is none: the key, as far as it is shown, and a hint."""
    name = shown(printable(key), _MAX_SHOWN)
    if key in RUN_OPTIONS:
        return name, f"is for one run: give {flag_of(key)} on the command line"
    near = difflib.get_close_matches(key[:_MAX_SHOWN], sorted(BUILD_OPTIONS), 1)
    hint = f"is {near[0]} meant?" if near else "shardprep build --help lists the options"
    return name, f"unknown key; {hint}"
