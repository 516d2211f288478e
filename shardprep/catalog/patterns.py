r"""Regular expressions and globs of the user, searched in names of a source in bounded time.

A pattern that can match in many ways (`([a-z]+)*$`) takes exponential time for a long name, and
`re` has no time limit. So the search runs in a separate process with a limit of CPU time, except on
Windows. The library `regex` has a limit, but its `\w` fits other letters and would change labels.
"""

from __future__ import annotations

import fnmatch
import marshal
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardprep.catalog import regex_process
from shardprep.errors import OptionError, OptionName, shown
from shardprep.source.names import composed, without_archive_suffix

FREE_S = 10.0
"""CPU seconds for each batch of names, in addition to `S_PER_NAME` for each name."""
S_PER_NAME = 20e-6
"""CPU seconds for each name; an ordinary pattern needs a twentieth of that."""
ANY_FOLDER = "(?:.*/)?"
_BATCH = 1 << 18


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression, and the option that it comes from."""

    text: str
    option: OptionName
    given: str
    group: str | int | None = None
    """Group of a match to return; None to return "" for every match."""
    is_whole: bool = False

    def search(self, names: Sequence[str]) -> list[str | None]:
        """Return the group in each name, None without a match, "" without the group."""
        found: list[str | None] = []
        for start in range(0, len(names), _BATCH):
            batch = list(names[start : start + _BATCH])
            limit_s = FREE_S + S_PER_NAME * len(batch)
            order = marshal.dumps((self.text, self.group, self.is_whole, limit_s, batch))
            answer = subprocess.run(  # noqa: S603 - a module of ours
                [sys.executable, "-I", "-S", regex_process.__file__],
                input=order, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False,
            ).stdout  # fmt: skip
            groups = marshal.loads(answer) if answer else None  # noqa: S302 - of our own process
            if not isinstance(groups, list):
                raise self._too_slow(limit_s, "" if groups is None else batch[groups])
            found += groups
        return found

    def _too_slow(self, limit_s: float, name: str) -> OptionError:
        where = f", the last at {shown(name)}" if name else ""
        what = f"{shown(self.given)} takes more than {limit_s:.3g} s{where}"
        hint = "write it so that it can match in one way only: not (a+)*, not .*.*"
        return OptionError(self.option, what, hint)


def globs_match(keys: Sequence[str], pattern: Pattern) -> list[bool]:
    """Return whether each key matches, with or without the suffixes of archives in it."""
    fits = [found is not None for found in pattern.search(keys)]
    others = {
        i: plain
        for i, key in enumerate(keys)
        if not fits[i] and (plain := without_archive_suffix(key)) != key
    }
    if others:
        found = pattern.search(list(others.values()))
        for i, match in zip(others, found, strict=True):
            fits[i] = match is not None
    return fits


def unused_globs(globs: Sequence[str], keys: Iterable[str]) -> list[str]:
    """Return the globs that match no key, regardless of case."""
    left = {glob: re.compile(ANY_FOLDER + _translated(glob)).match for glob in globs}
    for key in keys:
        if not left:
            break
        name = composed(key).lower()
        names = {name, without_archive_suffix(name)}
        left = {glob: fits for glob, fits in left.items() if not any(map(fits, names))}
    return list(left)


def _translated(glob: str) -> str:
    return fnmatch.translate(composed(glob).removeprefix("**/").lower())


def matched(keys: Sequence[str], globs: Sequence[str], option: str) -> list[bool]:
    """Return whether each key matches one of the globs of an option, regardless of case."""
    if not globs:
        return [False] * len(keys)
    start = "" if option == "root" else ANY_FOLDER
    text = "|".join(start + _translated(glob) for glob in globs)
    pattern = Pattern(text, OptionName(option), " ".join(globs), is_whole=True)
    return globs_match([composed(key).lower() for key in keys], pattern)
