"""The problems of a recipe in words: the flag or the key, and what is wrong with it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

from shardprep.errors import RecipeError, printable, shown
from shardprep.recipe.options import BUILD_OPTIONS, RUN_OPTIONS

_MAX_SHOWN = 60
"""Characters of a key in an error."""
_MAX_WHAT = 180
"""Characters of one problem."""
_MAX_PROBLEMS = 240
"""Characters of problems in an error, after which the others are counted."""

Place = Callable[[str], tuple[str, str]]
"""From a key to where it is from, and what stands before a problem with it."""


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
