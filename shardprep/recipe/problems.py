"""The problems of a recipe in words: the flag or the key, its value, and what is wanted."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

from pydantic_core import PydanticCustomError

from shardprep.dataset.schema import TargetKind
from shardprep.errors import RecipeError, printable, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import ValidationError
    from pydantic.fields import FieldInfo

OF_ONE_RUN = frozenset((
    "workers", "engine", "ray_address", "part", "save_rejected", "refresh", "overwrite", "profile",
    "dry_run", "json", "quiet", "log_level", "store_timeout",
))  # fmt: skip
"""Options of a build that are no keys: where and how one run works is not what it makes, and no
file from elsewhere is to name the cluster that code is sent to."""
_MOST_BITS = 64
_MOST_SHOWN = 60
"""Characters of a value in an error."""
_MOST_PROBLEMS = 240
"""Characters of problems in an error, after which the others are counted."""

Place = Callable[[str], tuple[str, str]]
"""From a key to where it is from, and what stands before a problem with it."""


def unusable(error: ValidationError, fields: Mapping[str, FieldInfo], place: Place) -> RecipeError:
    """Return the error of all problems, as far as they fit in a line; the others are counted."""
    problems = [_problem(one, fields) for one in error.errors()]
    (first, message), *others = dict.fromkeys(problems)
    where, before = place(first)
    what, last = before + message, where
    for number, (key, message) in enumerate(others):
        here, before = place(key)
        more = f"; {before}{message}" if here == last else f"; {here}: {before}{message}"
        if len(what) + len(more) > _MOST_PROBLEMS:
            what += f"; and {len(others) - number:,} more"
            break
        what, last = what + more, here
    return RecipeError(where, what)


def flag_of(key: str) -> str:
    """Return what a key is called on the command line."""
    return "SOURCE" if key == "source" else f"--{key.replace('_', '-')}"


def wrong_kind() -> PydanticCustomError:
    """Return what `_problem` words: a value that is not what its key takes."""
    return PydanticCustomError("wrong_kind", "is of another kind")


def _problem(problem: Any, fields: Mapping[str, FieldInfo]) -> tuple[str, str]:
    """Return the key of a problem, as far as it can be shown, and what is wrong with it."""
    key = str(problem["loc"][0]) if problem["loc"] else "recipe"
    if problem["type"] == "extra_forbidden":
        return shown(printable(key), _MOST_SHOWN), _unknown(key, fields)
    if problem["type"] == "missing":
        return key, "is needed"
    if problem["type"] == "value_error":
        return key, shown(printable(str(problem["ctx"]["error"])), 3 * _MOST_SHOWN)
    return key, f"{value_shown(problem['input'])} is not {_wanted(key, fields)}"


def _unknown(key: str, fields: Mapping[str, FieldInfo]) -> str:
    if key in OF_ONE_RUN:
        return f"is for one run: give {flag_of(key)} on the command line"
    known = sorted(name.rstrip("_") for name in fields)
    near = difflib.get_close_matches(key[:_MOST_SHOWN], known, 1)
    hint = f"is {near[0]} meant?" if near else "shardprep build --help lists the options"
    return f"unknown key; {hint}"


def _wanted(key: str, fields: Mapping[str, FieldInfo]) -> str:
    """Return in words what the values of a key are."""
    field = fields["schema_" if key == "schema" else key]
    if field.description:
        return field.description
    if key == "target":
        return f"one of auto, {', '.join(get_args(TargetKind))}"
    names = ("ge", "le", "lt", "pattern")
    bounds = {n: getattr(one, n) for one in field.metadata for n in names if hasattr(one, n)}
    if "pattern" in bounds:
        return f"one of {bounds['pattern'].strip('^$()').replace('|', ', ')}"
    if field.annotation is bool:
        return "true or false"
    if field.annotation is str:
        return "a text"
    number = "a number" if field.annotation is float else "a whole number"
    most = bounds.get("le", bounds.get("lt", 0) - 1)
    return f"{number} from {bounds['ge']:,} to {most:,}"


def value_shown(value: object) -> str:
    """Return a value of a recipe for an error: what it is, if it has no short form."""
    if isinstance(value, str):
        return shown(printable(repr(value)), _MOST_SHOWN)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return "a number of twenty digits or more"
    if isinstance(value, dict):
        return "a table"
    return "a list" if isinstance(value, list | tuple) else shown(str(value), _MOST_SHOWN)
