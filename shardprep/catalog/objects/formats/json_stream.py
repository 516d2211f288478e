"""Parse JSON of any size element by element, in a quarter of the memory of `json.loads`."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from shardprep.errors import SourceError

MOST_BYTES = 16 << 20
"""Maximum number of characters of an element."""
_PART_BYTES = 1 << 20
"""Number of bytes that are decoded at a time."""
_SIGN = re.compile(r"[^ \t\r\n]")
_NUM_ELEMENTS = 1024
_NEAR = 1024
"""Maximum distance of an error to the end of the decoded text if the element may be only cut."""
_HINT = "download or export it again"


def elements(data: bytes, where: str) -> Iterator[tuple[str, list[Any]]]:
    """Yield the keys of a JSON object in order, each with a list of elements of its value.

    A long array is yielded in parts, each with the key. Another value is a list of one element. NaN
    and infinities are allowed. SourceError if the document is damaged, nested too deeply or not a
    JSON object, or has an element above `MOST_BYTES`.
    """
    reader = _Reader(data)
    try:
        yield from reader.members()
    except json.JSONDecodeError as error:
        what = f"is damaged JSON at {reader.place(error.pos)} ({error.msg})"
        raise SourceError(where, what, _HINT) from error
    except RecursionError as error:
        raise SourceError(where, "is JSON that is nested too deeply to be read") from error
    except UnicodeDecodeError as error:
        raise SourceError(where, f"is not UTF-8 near {reader.place(0)}", _HINT) from error
    except ValueError as error:  # a number of 5,000 digits
        raise SourceError(where, "has a number with too many digits", _HINT) from error


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._stop = 0
        """Number of bytes that were decoded."""
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")()
        self._decode = json.JSONDecoder().raw_decode
        self._text, self._at = "", 0
        """Decoded text from the last element on, and the current position in it."""
        self._line, self._column = 1, 1
        """Place of the start of the text in the document."""

    def place(self, at: int) -> str:
        line, column = self._place(at)
        return f"line {line:,}, column {column:,}"

    def _place(self, at: int) -> tuple[int, int]:
        num_lines = self._text.count("\n", 0, at)
        start = -self._column if not num_lines else self._text.rfind("\n", 0, at)
        return self._line + num_lines, at - start

    def members(self) -> Iterator[tuple[str, list[Any]]]:
        self._take("{")
        if self._sign() == "}":
            return
        while True:
            key = self._value()
            if not isinstance(key, str):
                raise self._error("a key is not a text")
            self._take(":")
            values = self._array() if self._sign() == "[" else iter([self._value()])
            yield key, [*islice(values, _NUM_ELEMENTS)]
            while some := [*islice(values, _NUM_ELEMENTS)]:
                yield key, some
            if self._take(",}") == "}":
                return

    def _array(self) -> Iterator[Any]:
        self._take("[")
        if self._sign() == "]":
            self._take("]")
            return
        yield self._value()
        while self._take(",]") == ",":
            yield self._value()

    def _value(self) -> Any:
        self._sign()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except json.JSONDecodeError as error:
                is_cut = error.pos > len(self._text) - _NEAR or error.msg.startswith("Unterminated")
                if not (is_cut and self._move()):
                    raise
            else:
                if end < len(self._text) - len("e+") or not self._move():
                    self._at = end
                    return value  # otherwise, a number may continue

    def _sign(self) -> str:
        """Move behind white space, and return the next character, or "" at the end."""
        while (found := _SIGN.search(self._text, self._at)) is None:
            self._at = len(self._text)
            if not self._move():
                return ""
        self._at = found.start()
        return found[0]

    def _take(self, signs: str) -> str:
        """Return the next character, one of `signs`, and move behind it."""
        sign = self._sign()
        if not sign or sign not in signs:
            raise self._error(f"{' or '.join(map(repr, signs))} is missing")
        self._at += 1
        return sign

    def _move(self) -> bool:
        """Decode the next part of the document; return False if nothing is left."""
        if self._stop == len(self._data):
            return False
        if len(self._text) - self._at > MOST_BYTES:
            raise self._error(f"an element of more than {MOST_BYTES >> 20} MiB")
        self._line, self._column = self._place(self._at)
        rest, self._text, self._at = self._text[self._at :], "", 0
        part = self._data[self._stop : self._stop + _PART_BYTES]
        self._stop += len(part)
        self._text = rest + self._utf8.decode(part)
        return True

    def _error(self, what: str) -> json.JSONDecodeError:
        return json.JSONDecodeError(what, self._text, self._at)
