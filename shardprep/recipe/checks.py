"""Checks of a recipe beyond the types of its values, and one error for all its problems."""

from __future__ import annotations

import codecs
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardprep.dataset.documents import MAX_NAME, NAME, VERSION
from shardprep.dataset.schema import MAX_SIDE
from shardprep.errors import RecipeError, printable, shown
from shardprep.recipe.options import BUILD_OPTIONS, RUN_OPTIONS
from shardprep.recipe.values import texts_in, value_shown
from shardprep.source.kaggle.ref import is_ref
from shardprep.storage.url import parse_place, shown_url

_MAX_KEY = 60
_MAX_WHAT = 180
_MAX_PROBLEMS = 240
"""Maximum number of characters in an error: of a key, of one problem, of all problems."""

Place = Callable[[str], tuple[str, str]]
"""Maps a key to the place of its error, and to the prefix of the problem."""
_MAX_TEXT = 4096
"""Maximum number of characters of a path, an address or a name (PATH_MAX of Linux)."""
_SCHEME = re.compile(r"(^|[:,=])[A-Za-z][A-Za-z0-9+.-]+://")
"""Scheme of an address in a rule that names a file."""
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
"""Two options, a test whether their values contradict each other, problem and hint."""


def consistent(keys: Mapping[str, Any], flags: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """Return the options of a file, overridden by flags, with size and fit made consistent.

    An option of the file that contradicts a flag is left out.

    Raises:
        RecipeError: two options of the file, or two flags, contradict each other.

    """
    options = {**keys, **flags}
    if options.get("fit") == "auto":
        del options["fit"]
    if "size" in options and options["size"] is None:
        options["size"] = "none"
    for key, other, contradict, what, hint in _CONTRADICTIONS:
        if not (key in options and other in options and contradict(options[key], options[other])):
            continue
        from_file = [name for name in (key, other) if name not in flags]
        if len(from_file) != 1:
            where, before = place(key)
            problem = what.format(value_shown(options[key]), other=options[other])
            raise RecipeError(where, before + problem, hint)
        del options[from_file[0]]
    sizes = {"size", "fit"} & options.keys()
    if flags.get("format") == "keep" and keys.get("format") != "keep" and not sizes & flags.keys():
        sizes = set()  # size and fit of the file were meant for its own format
    if "none" in (options.get("size"), options.get("fit")) or (
        options.get("format") == "keep" and not sizes
    ):
        options.update(size="none", fit="none")
    annotations = [options[key] for key in ("boxes", "masks") if options.get(key, "") != ""]
    if "fit" not in options and (annotations or options.get("labels", "auto") != "auto"):
        options["fit"] = "crop" if all(rule == "none" for rule in annotations) else "pad"
    return options


def check(key: str, value: Any, given: object) -> None:
    """Check the value of an option; `given` is the value before it was converted.

    Raises:
        ValueError: the value cannot be used. The message says why.

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
            raise ValueError(f"{where}: a table must be in the source or on this machine")


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
"""Options that may name a file. Files in object storage are not allowed."""
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
        "is below 1, the ratio of a square; give 1 or more, or 0 for no limit",
    ),
    "classes": (
        lambda names: "" not in names and len(set(names)) == len(names),
        "must be names, each once",
    ),
    "group": (lambda rule: rule != "near,", "names no rule after near"),
    "zip_encoding": (_is_encoding, "is not an encoding that Python knows, such as cp932 or gbk"),
}
"""Option → test of its value, and the problem if the test fails."""


def unusable(problems: Sequence[tuple[str, str]], place: Place) -> RecipeError:
    """Return one error for problems, each a key and a message.

    Problems that do not fit in one line are only counted.
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
    """Return the flag of an option; SOURCE is an argument."""
    return "SOURCE" if key == "source" else f"--{key.replace('_', '-')}"


def unknown_key(key: str) -> tuple[str, str]:
    """Return the problem of an unknown key: its shortened name, and a message with a hint."""
    name = shown(printable(key), _MAX_KEY)
    if key in RUN_OPTIONS:
        return name, f"is for one run: give {flag_of(key)} on the command line"
    near = difflib.get_close_matches(key[:_MAX_KEY], sorted(BUILD_OPTIONS), 1)
    hint = f"is {near[0]} meant?" if near else "shardprep build --help lists the options"
    return name, f"unknown key; {hint}"
