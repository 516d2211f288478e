"""The one fast decoder of Examples: their layout is learned once, then values are sliced out.

Where `example.encode` wrote an Example, the names of the schema stand in their order, each with one
list, its numbers packed, so that a few comparisons tell where everything is. Whatever is otherwise
is left to `example.decode`, and what is found is what that returns. Values nobody asks for are
passed over.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardprep.dataset.example import decode, read_ints, read_varint

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    Found = list[memoryview] | list[int] | list[float]
    Features = dict[str, list[bytes] | list[int] | list[float]]

_FIELD = 0x0A
"""The tag of an entry of the map, of the Example's Features and of a list's values: field 1."""
_LISTS = {"bytes": 0x0A, "float32": 0x12, "int64": 0x1A}
"""dtype of a feature → the tag of its list of values."""
_SHORT = 128
"""Lengths in bytes below it take one byte."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """The bytes that one feature starts with."""

    name: str
    head: bytes
    """Bytes between the entry's own length and that of the Feature."""
    list_tag: int
    short: tuple[bytes, ...]
    """Length of the entry in bytes, below `_SHORT` → all that stands before its one value; b""
    where none fits."""
    wanted: bool


class ExampleDecoder:
    """A decoder of the examples of one schema."""

    def __init__(self, dtypes: Mapping[str, str], wanted: Container[str]) -> None:
        """Take the dtype of every feature by name, and the names of those to be found."""
        self._entries = [
            _entry(name, _LISTS[dtypes[name]], wanted=name in wanted) for name in sorted(dtypes)
        ]

    def find(self, data: bytes | memoryview) -> dict[str, Found] | None:
        """Return the values of the wanted features; bytes are views into `data`."""
        try:
            return self._find(memoryview(data))
        except (IndexError, ValueError):
            return None

    def decode(self, data: bytes) -> Features:
        """Return what `example.decode` returns, of the wanted features at least.

        Raises:
            RecordError: the bytes are no Example.

        """
        found = self.find(data)
        if found is None:
            return decode(data)
        return {
            name: [one if isinstance(one, (int, float)) else bytes(one) for one in values]  # type: ignore[misc]
            for name, values in found.items()
        }

    def _find(self, data: memoryview) -> dict[str, Found] | None:
        found: dict[str, Found] = {}
        size, at = read_varint(data, 1)
        if data[0] != _FIELD or at + size != len(data):
            return None
        for entry in self._entries:
            length = data[at + 1]
            short = entry.short[length] if length < _SHORT else b""
            is_short = short and bytes(data[at : at + len(short)]) == short
            if is_short:
                end = at + 2 + length
                at += len(short)
            else:
                place = _long(data, at, entry)
                if place is None:
                    return None
                at, end = place
            if entry.wanted:
                if entry.list_tag == _LISTS["bytes"]:
                    found[entry.name] = [data[at:end]] if is_short else _several(data, at, end)
                elif entry.list_tag == _LISTS["int64"]:
                    found[entry.name] = read_ints(data, at, end)
                elif (end - at) % 4:
                    return None
                else:
                    floats = struct.unpack_from(f"<{(end - at) // 4}f", data, at)
                    found[entry.name] = list(floats)
            at = end
        return found if at == len(data) else None


def _entry(name: str, list_tag: int, *, wanted: bool) -> _Entry:
    raw = name.encode()
    if len(raw) >= _SHORT:  # no such name is in use; nothing is found where there is one
        return _Entry(name, b"", 0, (), wanted)
    head = bytes((_FIELD, len(raw))) + raw + b"\x12"
    before = len(head) + 5
    short = [
        bytes((_FIELD, length))
        + head
        + bytes((length - before + 4, list_tag, length - before + 2, _FIELD, length - before))
        if length >= before
        else b""
        for length in range(_SHORT)
    ]
    return _Entry(name, head, list_tag, tuple(short), wanted)


def _long(data: memoryview, at: int, entry: _Entry) -> tuple[int, int] | None:
    """Return where the values of an entry of any length start and end; those of bytes with tags."""
    size, start = read_varint(data, at + 1)
    end = start + size
    values = start + len(entry.head)
    if data[at] != _FIELD or not entry.head or bytes(data[start:values]) != entry.head:
        return None
    size, at = read_varint(data, values)
    if at + size != end or data[at] != entry.list_tag:
        return None
    size, at = read_varint(data, at + 1)
    if at + size != end:
        return None
    if at == end or entry.list_tag == _LISTS["bytes"]:
        return at, end
    size, start = read_varint(data, at + 1)
    return (start, end) if data[at] == _FIELD and start + size == end else None


def _several(data: memoryview, at: int, end: int) -> list[memoryview]:
    """Return the values of a list of bytes."""
    found = []
    while at < end:
        size, start = read_varint(data, at + 1)
        if data[at] != _FIELD or start + size > end:
            raise ValueError("no value of a list")
        at = start + size
        found.append(data[start:at])
    return found
