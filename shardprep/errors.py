"""The classes of the errors that users can meet, and functions that format their texts.

    ShardprepError            exit 1: one line, "where: what; what to do"
    ├─ RecipeError            exit 2: an option or a recipe file cannot be used as given
    │  └─ OptionError         an option has a value that is not allowed
    ├─ SourceError            an archive, a label table or a folder cannot be read as asked
    ├─ SchemaError            a schema file is wrong, or asks for what the source cannot give
    ├─ RecordError            a record of a shard is cut, damaged or malformed
    ├─ DatasetError           a dataset folder is missing, incomplete, or contradicts its manifest
    ├─ StorageError           object storage does not answer, or refuses a request
    ├─ BuildError             the run cannot continue: no space, a dead worker, too many rejections
    │  └─ BusyError           another process uses the same folder: try again later
    └─ InternalError          a bug in shardprep: please report it

A bad image does not raise an error, but is a value (`shardprep.image.process.Rejection`).

Errors name options with `OptionName`. Users see `--mask-values` if they called the command line,
`mask_values` if they called Python, and `shardprep.toml: mask_values` if the option is set there.
Advice to give a table, such as `--labels csv:FILE`, is `labels=frame` in Python.
"""

from __future__ import annotations

import copyreg
import difflib
import errno
import json
import re
import shlex
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple, Self

_UNPRINTABLE = re.compile(
    "[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Characters that end a line, control a terminal or change the direction of a text."""
_QUOTED = re.compile(r"""(?<!\w)(b?)(['"])((?:\\.|(?!\2)[^\\])*+)\2""", re.DOTALL)
"""A value quoted by `repr`. An apostrophe inside a word does not begin such a value."""
_COMMA = re.compile(r"(?<!\\),(?! )")
"""Separates the items of an option's value; a comma before a blank belongs to a sentence."""
_MAX_WHERE = 160
_MAX_VALUE = 200
_MAX_NAME = 100
_ALIKE = 0.8
_MAX_PART = 1000
"""Maximum numbers of characters of `where`, of a quoted value, and of `what` or `hint`."""
_NO_MEMORY = ("can't start new thread", "failed to map segment from shared object")
"""Endings of error texts that mean "out of memory", from CPython and the dynamic loader."""
_NO_EXCEPTION = ("without exception set", "without setting an exception")
"""Endings of SystemError texts which mean that CPython had no memory for an exception."""


TABLE_OPTIONS = frozenset(
    {"items", "labels", "relabel", "join", "predictions", "exclude_list", "class_map"}
)
"""Options that take a table as an object of Python, such as a data frame."""
_ANY_TABLE = re.compile("(csv:)?FILE(:.*)?")
"""Matches a placeholder in advice for any table of the user."""


def printable(text: str) -> str:
    """Return the text with control characters escaped, so that it cannot control a terminal."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def printable_json(text: str) -> str:
    r"""Return JSON or TOML text with control characters escaped as \uXXXX, except "\n"."""
    return _UNPRINTABLE.sub(
        lambda match: "\n" if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text
    )


def shown(text: str, most: int = 80) -> str:
    """Return the text, with "…" instead of its middle if it exceeds `most` characters."""
    return text if len(text) <= most else f"{text[: most // 3]}…{text[-(most - most // 3 - 1) :]}"


def concise(text: str) -> str:
    """Return the text with each quoted value cut to 200 characters, and the result to 1,000.

    A list, such as the value of `--classes`, keeps its first items.
    """
    values = _QUOTED.sub(lambda m: f"{m[1]}{m[2]}{_shown_value(m[3])}{m[2]}", text)
    return shown(values, _MAX_PART)


def _shown_value(value: str) -> str:
    items = [] if len(value) <= _MAX_VALUE else _COMMA.split(value)
    ends = accumulate(len(item) + 1 for item in items)
    num_shown = sum(end <= _MAX_VALUE - len(", … and 1,000,000 more") for end in ends)
    if num_shown < 2:
        return shown(value, _MAX_VALUE)
    return f"{','.join(items[:num_shown])}, … and {len(items) - num_shown:,} more"


def counted(number: int, noun: str, single: str = "", several: str = "") -> str:
    """Return a number with a noun, in the plural if needed: "1 shard", "3 classes".

    Appends `single` after 1, otherwise `several`: "1 image is a copy", "2 images are copies".
    """
    ending = "" if number == 1 else "es" if noun.endswith(("s", "x", "ch")) else "s"
    return f"{number:,} {noun}{ending} {single if number == 1 else several}".rstrip()


def some_of(names: Sequence[str], most: int = 4) -> str:
    """Return the first `most` names and the number of the others: "a, b and 3 more"."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(shown(name, _MAX_VALUE) for name in names[:most]) + more


def use_one_of(name: object, known: Iterable[str], most: int = 8) -> str:
    """Return a hint with the first `most` known names, after the one that is nearest to `name`."""
    names, text = [*known], str(name)
    longer = (one for one in names if text and one.startswith(text))  # val
    near = nearest_name(text, names) or next(longer, "")
    return f"{f'is {shown(near)} meant? ' if near else ''}use one of {some_of(names, most)}"


def nearest_name(name: str, known: Iterable[str]) -> str:
    """Return the known name that is probably meant, in any case, or "".

    A fifth of its letters may differ, or two neighbours be swapped, but no number; the folders
    of a dotted name may be missing.
    """
    folded = {one.casefold(): one for one in known}
    name = name[:_MAX_NAME].casefold()
    swaps = (name[:i] + name[i : i + 2][::-1] + name[i + 2 :] for i in range(len(name) - 1))
    near = [
        *(one for one in folded if one.endswith(f".{name}")),
        *difflib.get_close_matches(name, folded, 3, _ALIKE),
        *filter(folded.__contains__, swaps),
    ]
    numbers = re.findall(r"\d+", name)
    return next((folded[one] for one in near if re.findall(r"\d+", one) == numbers), "")


def command_line(name: str, place: object, more: str = "") -> str:
    """Return a command of shardprep for a sentence: in backquotes, with its path quoted."""
    return f"`{typed(name, place, more)}`"


def typed(name: str, place: object, more: str = "") -> str:
    """Return a command of shardprep as a user types it, with its path quoted."""
    return f"shardprep {name} {shlex.quote(str(place))}{more and f' {more}'}"


def is_short_of_memory(error: BaseException) -> bool:
    """Return True for an exception that means "out of memory"."""
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or str(error).rstrip(")").endswith(_NO_MEMORY)  # pyarrow adds it in parentheses
        or (isinstance(error, SystemError) and str(error).endswith(_NO_EXCEPTION))
    )


_spelling = {"as flags": False}


def name_options_as_flags(*, yes: bool = True) -> None:
    """Spell options in errors of this process as flags; with `yes=False`, as Python keywords."""
    _spelling["as flags"] = yes


def as_keywords(options: Mapping[str, Any]) -> str:
    """Return options as keywords of Python; "" if this process spells options as flags."""
    words = (f"{name}={_value(value)}" for name, value in options.items())
    return "" if _spelling["as flags"] else ", ".join(words)


def _value(value: Any) -> str:
    if isinstance(value, str) and value.isdecimal():
        return value
    is_text = isinstance(value, str | tuple)
    return json.dumps(value, ensure_ascii=False) if is_text else str(value)


@dataclass(frozen=True, slots=True)
class OptionName:
    """Name of an option in an error. `str` spells it for the command line or for Python."""

    name: str
    """Keyword of the Python function; in capitals, such as SOURCE, if it has no flag."""
    value: str = ""
    """Value to show after the name: `--masks auto`, or `masks="auto"` for Python."""
    file: str = ""
    """The file that sets the option, such as `shardprep.toml`, or ""."""

    def __str__(self) -> str:
        name = self.name.lower()
        if not self.file and _spelling["as flags"]:
            name = self.name if self.name.isupper() else f"--{name.replace('_', '-')}"
            return f"{name} {shlex.quote(self.value)}" if self.value else name
        is_frame = not self.file and name in TABLE_OPTIONS and _ANY_TABLE.fullmatch(self.value)
        value = "frame" if is_frame else _value(self.value)
        name = f"{self.file}: {name}" if self.file else name
        return f"{name}={value}" if self.value else name


class ShardprepError(Exception):
    """Base class of all errors; `str` gives one line: where, the problem, and what to do."""

    parts: Sequence[str] = ()
    """Parts of the problem that a terminal shows on a line each, such as rows; () for one line."""

    def __init__(self, where: str | OptionName, what: str = "", hint: str = "") -> None:
        """Create an error from a file or an option, the problem, and what to do about it.

        PyTorch copies a worker's error with one argument, the text of the traceback. The last of
        its lines that start with the class name becomes `what`, and the whole text becomes a note.
        """
        super().__init__(where, what, hint)
        if not what:
            self.add_note(str(where))
            where, what = "", _line_of(type(self), str(where))
        self.place = where
        self.what = concise(what)
        self.hint = concise(hint)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle all fields without calling `__init__`, whose arguments differ by subclass."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    @property
    def where(self) -> str:
        return str(self.place)

    def blame(self, file: str) -> None:
        if isinstance(self.place, OptionName):
            self.place = replace(self.place, file=file)
            self.args = (self.place, *self.args[1:])

    def __str__(self) -> str:
        line = f"{shown(self.where, _MAX_WHERE)}: {self._fault}" if self.where else self._fault
        return printable(f"{line}; {self.hint}" if self.hint else line)

    @property
    def lines(self) -> list[str]:
        """Lines that a terminal shows."""
        if len(self.parts) < 2:
            return [str(self)]
        last = f"{self.hint[:1].upper()}{self.hint[1:]}."
        parts = (f"  {part}" for part in self.parts)
        return [*map(printable, (f"{shown(self.where, _MAX_WHERE)}:", *parts, last))]

    def _render_traceback_(self) -> list[str]:
        # IPython shows this instead of a traceback, which does not help with a user's mistake.
        first, *others = self.lines
        return [f"{type(self).__name__}: {first}", *others]

    def as_json(self, exit_code: int) -> dict[str, Any]:
        """Return the object that `--json` prints. In subclasses, values may be pydantic models."""
        facts = {"where": self.where, "what": self._fault, "hint": self.hint, "exit": exit_code}
        return {"error": facts}

    @property
    def _fault(self) -> str:
        return self.what


def of_system(error: OSError) -> ShardprepError:
    """Return an error of the operating system as an error that names the file, if known."""
    hint = (
        "free some space" if error.errno == errno.ENOSPC else "check the path and its permissions"
    )
    what = (error.strerror or str(error)).lower()
    return ShardprepError(str(error.filename or "shardprep"), what, hint if error.filename else "")


def _line_of(kind: type[ShardprepError], text: str) -> str:
    start = f"{kind.__module__}.{kind.__qualname__}: "
    lines = [line.removeprefix(start) for line in text.splitlines() if line.startswith(start)]
    return lines[-1] if lines else text


class RecipeError(ShardprepError):
    """An option or a key of the recipe is unknown, malformed or contradicts another."""


class OptionError(RecipeError):
    """An option has a value that is not allowed."""

    @classmethod
    def of(cls, option: OptionName, value: object, allowed: str | Iterable[str]) -> Self:
        """Return the error "VALUE is not ALLOWED", or for names "VALUE is not one of A, B"."""
        words = allowed if isinstance(allowed, str) else f"one of {', '.join(allowed)}"
        return cls(option, f"{shown(repr(value), _MAX_VALUE)} is not {words}")


class SourceError(ShardprepError):
    """An archive, table, annotation or key is invalid, or Kaggle data cannot be downloaded."""


class Choice(NamedTuple):
    """One of several readings of a source, which a `QuestionError` offers."""

    options: Mapping[str, Any]
    """Options of the recipe that select this reading, by key."""
    flags: str
    """The same options as command-line flags, or as keywords if Python was called."""
    why: str
    """Evidence for this reading."""
    examples: tuple[str, ...] = ()
    """Lines that show images with their labels or annotations under this reading."""


class QuestionError(RecipeError):
    """Several readings of a source fit, and the user must choose one."""

    choices: Sequence[Choice] = ()

    @classmethod
    def of(cls, where: str | OptionName, choices: Sequence[Choice]) -> QuestionError:
        what = f"{len(choices)} readings of the source fit: choose one"
        if len(choices) == 1:
            what = "a part of the source is not read: choose how to go on without it"
        error = cls(where, what)
        error.hint = ", or ".join(f"{one.flags} ({one.why})" for one in choices)  # flags stay whole
        error.choices = choices
        return error

    @property
    def lines(self) -> list[str]:
        """Lines that a terminal shows: options of each reading, its evidence and examples."""
        if not self.choices:
            return super().lines
        lines = [f"{self.where}: {self.what}:"]
        for one in self.choices:
            lines += [f"  {one.flags}", f"      {one.why}", *(f"      {x}" for x in one.examples)]
        last = "Repeat the command with the flags of one of them."
        last = last if _spelling["as flags"] else "Repeat the call with the options of one of them."
        return [*map(printable, lines), last]

    def as_json(self, exit_code: int) -> dict[str, Any]:
        """Return the object that `--json` prints, with the readings."""
        facts = super().as_json(exit_code)
        of_choice = [{**one._asdict(), "options": dict(one.options)} for one in self.choices]
        return {"error": {**facts["error"], "readings": of_choice}}


class SchemaError(ShardprepError):
    """A schema cannot be loaded, or names a feature that the source does not provide."""


class RecordError(ShardprepError):
    """A record is truncated, fails a checksum, or does not contain a valid example."""

    def __init__(
        self, where: str | OptionName, what: str = "", hint: str = "", *, offset: int | None = None
    ) -> None:
        """Create an error; `offset` is the byte position of the record in its file, if known."""
        super().__init__(where, what, hint)
        self.offset = offset

    @property
    def _fault(self) -> str:
        return self.what if self.offset is None else f"offset {self.offset:,}: {self.what}"


class DatasetError(ShardprepError):
    """A dataset is missing, unfinished or damaged, or an argument or state does not fit it."""


class StorageError(ShardprepError):
    """Object storage does not answer, refuses a request, or lacks an expected object."""


class BuildError(ShardprepError):
    """The build cannot continue, or its result must not be published. Finished work is kept."""


class BusyError(BuildError):
    """Another process uses the same folder. Try again later."""


class InternalError(ShardprepError):
    """A bug in shardprep, not a problem of the options or the source."""

    def _render_traceback_(self) -> list[str]:
        return traceback.format_exception(self)
