"""Every error a user can meet, and nothing else.

    ShardprepError            exit 1: one line, "where: what; what to do"
    ├─ RecipeError            exit 2: an option or a recipe file cannot be used as given
    │  └─ OptionError         the value of an option is not one of those allowed
    ├─ SourceError            an archive, a label table or a folder cannot be read as asked
    ├─ SchemaError            a schema file is wrong, or asks for what the source cannot give
    ├─ RecordError            a record of a shard is cut, damaged or malformed
    ├─ DatasetError           a dataset folder is missing, incomplete or not what it says
    ├─ StorageError           object storage does not answer, or refuses
    ├─ BuildError             the run cannot go on: no space, a dead worker, too many rejections
    │  └─ BusyError           another process is at work in the same folder: try again later
    └─ InternalError          a fault of shardprep: please report it

A bad image is none of these: it is a value (`shardprep.image.process.Rejection`).

An option is named by `OptionName`, as the place of an error and in its text: users see
`--mask-values` if they called the command line, `mask_values` if they called Python, and
`shardprep.toml: mask_values` if the option is set there. No text is rewritten afterwards.
"""

from __future__ import annotations

import copyreg
import errno
import re
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNPRINTABLE = re.compile(
    "[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Characters that end a line, steer a terminal or turn the direction of writing."""
_QUOTED = re.compile(r"""(?<!\w)(b?)(['"])((?:\\.|(?!\2)[^\\])*+)\2""", re.DOTALL)
"""A value as `repr` quotes it; the apostrophe of a word opens none."""
_MAX_WHERE = 160
_MAX_VALUE = 200
_MAX_PART = 1000
"""Characters of a place, of a value, and of what is wrong or to do, in one line."""
_NO_MEMORY = ("can't start new thread", "failed to map segment from shared object")
"""Ends of messages of CPython's threads and of the dynamic loader that mean "out of memory"."""


def printable(text: str) -> str:
    """Return the text with escapes for what could do more on a terminal than be read."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def printable_json(text: str) -> str:
    """Return a text of JSON with such escapes in its strings; line ends are between them, and stay.

    A string of it is one of TOML as well.
    """
    return _UNPRINTABLE.sub(
        lambda match: "\n" if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text
    )


def shown(text: str, most: int) -> str:
    """Return the text, or its two ends if it is longer than `most` characters."""
    return text if len(text) <= most else f"{text[: most // 3]}…{text[-(most - most // 3 - 1) :]}"


def concise(text: str) -> str:
    """Return a text for one line, with its quoted values and then itself cut in the middle."""
    values = _QUOTED.sub(lambda m: f"{m[1]}{m[2]}{shown(m[3], _MAX_VALUE)}{m[2]}", text)
    return shown(values, _MAX_PART)


def counted(number: int, noun: str) -> str:
    """Return "1 shard", "2,000 shards" or "3 classes"."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"


def some_of(names: Sequence[str], most: int = 4) -> str:
    """Return the first names of a list in one line, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(shown(name, _MAX_VALUE) for name in names[:most]) + more


def is_short_of_memory(error: BaseException) -> bool:
    """Tell whether an exception says that this process gets no more memory."""
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or str(error).endswith(_NO_MEMORY)
    )


_spelling = {"as flags": False}


def name_options_as_flags(*, yes: bool = True) -> None:
    """Let errors of this process name options as the command line does, or as Python does."""
    _spelling["as flags"] = yes


@dataclass(frozen=True, slots=True)
class OptionName:
    """The name of an option in an error; `str` spells it for the user who called."""

    name: str
    """Keyword of the Python function; in capitals if the command line takes an argument instead of
    a flag: SOURCE."""
    value: str = ""
    """Value of the option, if the error names it too: `--masks auto`."""
    file: str = ""
    """Recipe file that sets the option."""

    def __str__(self) -> str:
        name = self.name.lower()
        if self.file:
            name = f"{self.file}: {name}"
        elif _spelling["as flags"]:
            name = self.name if self.name.isupper() else f"--{name.replace('_', '-')}"
        return f"{name} {self.value}" if self.value else name


class ShardprepError(Exception):
    """Base of all errors of this package; `str()` is the one line that the user reads."""

    def __init__(self, where: str | OptionName, what: str = "", hint: str = "") -> None:
        """Say `where` it is (a file, an option), `what` is wrong, and the way out (`hint`).

        A text alone is a traceback that ends with such an error: PyTorch makes the error of a
        worker anew from that. Its last line is `what` then, and the whole text a note.
        """
        super().__init__(where, what, hint)
        if not what:
            self.add_note(str(where))
            where, what = "", _line_of(type(self), str(where))
        self.place = where
        self.what = concise(what)
        self.hint = concise(hint)

    def __reduce__(self) -> tuple[object, ...]:
        """Let every field come through a pickle, whatever the constructor of a subclass takes."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    @property
    def where(self) -> str:
        """The place in words."""
        return str(self.place)

    def blame(self, file: str) -> None:
        """Name the recipe file that sets the option which the error is about."""
        if isinstance(self.place, OptionName):
            self.place = replace(self.place, file=file)
            self.args = (self.place, *self.args[1:])

    def __str__(self) -> str:
        line = f"{shown(self.where, _MAX_WHERE)}: {self._fault}" if self.where else self._fault
        return printable(f"{line}; {self.hint}" if self.hint else line)

    def _render_traceback_(self) -> list[str]:
        # IPython asks for this in place of a traceback, which is no help with a mistake of a user.
        return [f"{type(self).__name__}: {self}"]

    def as_json(self, exit_code: int) -> dict[str, Any]:
        """Return what `--json` prints in place of a result; values may be models of ours."""
        facts = {"where": self.where, "what": self._fault, "hint": self.hint, "exit": exit_code}
        return {"error": facts}

    @property
    def _fault(self) -> str:
        """The fault, as it is printed."""
        return self.what


def _line_of(kind: type[ShardprepError], text: str) -> str:
    """Return the line of the last error of that kind in a traceback, or the text if none is."""
    start = f"{kind.__module__}.{kind.__qualname__}: "
    lines = [line.removeprefix(start) for line in text.splitlines() if line.startswith(start)]
    return lines[-1] if lines else text


class RecipeError(ShardprepError):
    """An option or a key of the recipe is unknown, malformed or contradicts another."""


class OptionError(RecipeError):
    """The value of an option is not one of those allowed."""

    def __init__(
        self,
        where: str | OptionName,
        what: str = "",
        hint: str = "",
        *,
        value: object = None,
        allowed: str | Sequence[str] = "",
    ) -> None:
        """Name the option (`where`), and say what is wrong with its `value`.

        `allowed` describes the values that the option takes ("a whole number from 1 to 9"), or
        lists them; it makes the text. Otherwise `what` is the text.
        """
        if allowed:
            words = allowed if isinstance(allowed, str) else f"one of {', '.join(allowed)}"
            what = f"{shown(repr(value), _MAX_VALUE)} is not {words}"
        super().__init__(where, what, hint)
        self.value, self.allowed = value, allowed


class SourceError(ShardprepError):
    """The source cannot be read as asked: archive, label table, keys, labels."""


class SchemaError(ShardprepError):
    """A schema cannot be loaded, or names a feature that the source does not provide."""


class RecordError(ShardprepError):
    """A record that is cut, fails a checksum or holds no valid example; carries its offset."""

    def __init__(
        self,
        where: str | OptionName,
        what: str = "",
        hint: str = "",
        *,
        offset: int | None = None,
    ) -> None:
        """`offset` is where the damaged record starts in its file, in bytes; None: not known."""
        super().__init__(where, what, hint)
        self.offset = offset

    @property
    def _fault(self) -> str:
        return self.what if self.offset is None else f"offset {self.offset:,}: {self.what}"


class DatasetError(ShardprepError):
    """A dataset folder is absent, unfinished, or disagrees with its own manifest."""


class StorageError(ShardprepError):
    """Object storage does not answer, refuses, or has not what it should have."""


class BuildError(ShardprepError):
    """The build cannot go on or may not be published; what is done so far is kept."""


class BusyError(BuildError):
    """Another process is at work in the same folder; the same command may work later."""


class InternalError(ShardprepError):
    """A fault of shardprep itself, which no option or source is to blame for."""

    def _render_traceback_(self) -> list[str]:
        return traceback.format_exception(self)
