r"""Regular expressions and globs of the user, searched in names of a source in bounded time.

A pattern that can match in many ways (`([a-z]+)*$`) takes exponential time for a long name, and
`re` has no time limit. But `re` handles signals during a search, so a timer ends the search, in
the main thread of Unix. The library `regex` has a time limit, but it takes more than twice as long,
and its `\w` matches other letters, which would change labels.
"""

from __future__ import annotations

import contextlib
import fnmatch
import re
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from shardprep.errors import OptionError, OptionName, shown
from shardprep.source.names import composed, without_archive_suffix

FREE_S = 10.0
"""CPU seconds allowed for a search, in addition to `S_PER_NAME` for each name."""
S_PER_NAME = 20e-6
"""CPU seconds allowed for each name; an ordinary pattern needs a twentieth of this."""
ANY_FOLDER = "(?:.*/)?"


class _OutOfTimeError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression and the option that states it."""

    text: str
    option: OptionName
    given: str
    group: str | int | None = None
    """Group to return from a match; None to return "" for every match."""
    is_whole: bool = False

    def search(self, names: Sequence[str]) -> list[str | None]:
        """Return the text of `group` in each name, or None; OptionError if it takes too long."""
        compiled, found = re.compile(self.text), list[str | None]()
        matches = map(compiled.fullmatch if self.is_whole else compiled.search, names)
        group, limit_s = self.group, FREE_S + S_PER_NAME * len(names)
        try:
            with _cpu_limit(limit_s):
                if group is None:
                    found.extend(None if match is None else "" for match in matches)
                else:
                    found.extend(None if match is None else match[group] or "" for match in matches)
        except _OutOfTimeError:
            last = shown(names[min(len(found), len(names) - 1)])
            what = f"{shown(self.given)} takes more than {limit_s:.3g} s to match, at last {last}"
            hint = "write a pattern that can match in one way only, without (a+)* and .*.*"
            raise OptionError(self.option, what, hint) from None
        return found


@contextlib.contextmanager
def _cpu_limit(limit_s: float) -> Iterator[None]:
    """Raise _OutOfTimeError when this process has used the CPU time."""
    is_main = threading.current_thread() is threading.main_thread()
    if not (is_main and hasattr(signal, "setitimer")):
        yield
        return
    handler = signal.signal(signal.SIGVTALRM, _out_of_time)
    timer = signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, *timer)
    finally:  # None: Python did not install the handler
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL if handler is None else handler)


def _out_of_time(*_: object) -> None:
    raise _OutOfTimeError


def globs_match(keys: Sequence[str], pattern: Pattern) -> list[bool]:
    """Return whether each key matches, in full or without its archive suffixes."""
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
    """Return whether each key matches a glob, regardless of case; an OptionError names `option`."""
    if not globs:
        return [False] * len(keys)
    start = "" if option == "root" else ANY_FOLDER
    text = "|".join(start + _translated(glob) for glob in globs)
    pattern = Pattern(text, OptionName(option), " ".join(globs), is_whole=True)
    return globs_match([composed(key).lower() for key in keys], pattern)
