"""Parse JSON of any size one element at a time, in a quarter of the memory of `json.loads`."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from shardprep.errors import SourceError

MOST_BYTES = 16 << 20
"""Maximum bytes of an element, and of the part of the document that is decoded at a time."""
_CHUNK = 1024
_SPACE = frozenset(" \t\r\n")
_FILLED = re.compile(r"[^ \t\r\n]|\Z")
_scan: Any = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_COMMA = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")
_START = "\ufeff"
_HINT = "download or export it again"


def elements(data: bytes, where: str) -> Iterator[tuple[str, list[Any]]]:
    """Yield the keys of a JSON object in order, each with a list of elements of its value.

    A long array is yielded in parts, each with the key. A value that is not an array is a list of
    one element. NaN and infinities are allowed. SourceError if the document is damaged, nested too
    deeply or not a JSON object, or has an element above `MOST_BYTES`.
    """
    reader = _Reader(data)
    try:
        yield from reader.members()
    except json.JSONDecodeError as error:
        what = f"is damaged JSON at {reader.place(error.pos)} ({error.msg})"
        raise SourceError(where, what, _HINT) from error
    except RecursionError as error:
        raise SourceError(where, "is JSON that is nested too deeply", _HINT) from error
    except UnicodeDecodeError as error:
        raise SourceError(where, f"is not UTF-8 near {reader.place(0)}", _HINT) from error
    except ValueError as error:  # a number of 5,000 digits
        raise SourceError(where, "has a number with too many digits", _HINT) from error


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._decode = json.JSONDecoder().raw_decode
        self._start = 0
        """Byte offset of the decoded part in the document."""
        self._stop = 0
        self._text = ""
        self._at = 0

    def place(self, at: int) -> str:
        offset = self._start + len(self._text[:at].encode())
        before = bytes(self._data[:offset])
        line, column = before.count(b"\n") + 1, offset - before.rfind(b"\n")
        return f"line {line:,}, column {column:,}"

    def members(self) -> Iterator[tuple[str, list[Any]]]:
        self._move()
        self._at = int(self._text.startswith(_START))
        self._take("{")
        if self._next() == "}":
            return
        while True:
            key = self._value()
            if not isinstance(key, str):
                raise self._error("a key is not a text")
            self._take(":")
            if self._next() == "[":
                values = self._array()
                yield key, [*islice(values, _CHUNK)]
                while chunk := [*islice(values, _CHUNK)]:
                    yield key, chunk
            else:
                yield key, [self._value()]
            if self._next() == "}":
                return
            self._take(",")

    def _array(self) -> Iterator[Any]:
        self._take("[")
        sign = self._next()
        while sign != "]":
            yield from self._run()
            yield self._value()
            sign = self._next()
            if sign == ",":
                self._at += 1
                self._next()
            elif sign != "]":
                raise self._error("',' or ']' is missing")
        self._at += 1

    def _run(self) -> Iterator[Any]:
        """Yield the next elements of an array that are complete in the decoded text."""
        text, decode = self._text, _scan
        with contextlib.suppress(json.JSONDecodeError, StopIteration):  # parsed again later
            while True:
                value, end = decode(text, self._at)
                comma = _COMMA.match(text, end)
                if comma is None or comma.end() == len(text):
                    return
                self._at = comma.end()
                yield value

    def _value(self) -> Any:
        self._next()
        try:
            value, end = self._decode(self._text, self._at)
        except json.JSONDecodeError:
            self._move()
            return self._whole()
        if end >= len(self._text) - len("e+") and self._move():
            return self._whole()  # a number may continue in the next part
        self._at = end
        return value

    def _whole(self) -> Any:
        try:
            value, self._at = self._decode(self._text, self._at)
        except json.JSONDecodeError as error:
            is_cut = error.pos > len(self._text) - _CHUNK or error.msg.startswith("Unterminated")
            if self._stop < len(self._data) and is_cut:
                raise self._error(f"an element of more than {MOST_BYTES >> 20} MiB") from error
            raise
        return value

    def _next(self) -> str:
        sign = self._text[self._at : self._at + 1]
        while sign in _SPACE or (not sign and self._stop < len(self._data)):
            found = _FILLED.search(self._text, self._at)
            self._at = found.start() if found else len(self._text)
            if self._at == len(self._text) and not self._move():
                return ""
            sign = self._text[self._at : self._at + 1]
        return sign

    def _take(self, sign: str) -> None:
        if self._next() != sign:
            raise self._error(f"{sign!r} is missing")
        self._at += 1

    def _move(self) -> bool:
        """Decode the next part, from the current position on; return False at the end."""
        if self._stop == len(self._data):
            return False
        self._start += len(self._text[: self._at].encode())
        self._stop = min(self._start + MOST_BYTES, len(self._data))
        while self._stop < len(self._data) and self._data[self._stop] & 0xC0 == 0x80:
            self._stop -= 1  # do not cut a character
        self._text, self._at = "", 0
        self._text = str(self._data[self._start : self._stop], "utf-8")
        return True

    def _error(self, what: str) -> json.JSONDecodeError:
        return json.JSONDecodeError(what, self._text, self._at)
