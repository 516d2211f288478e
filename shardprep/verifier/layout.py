"""The plain layout of an Example, read quickly: what our writer writes, or nothing at all.

A serialized Example may take many forms; `example.decode` reads them all. Ours has one, in which
every field stands where the one before it ends, so that it needs no copies and no search.
"""

from __future__ import annotations

import struct

Features = dict[str, list[bytes] | list[int] | list[float]]

_FIELD_1, _FIELD_2, _FIELD_3 = b"\x0a\x12\x1a"
_SHORT = 0x80


def read_plain(data: bytes) -> Features | None:
    """Return what `example.decode` returns, None where the bytes are laid out otherwise.

    None says nothing of the bytes but that the general decoder must judge them.
    """
    try:
        return _read(data)
    except (IndexError, ValueError, struct.error):
        return None


def _read(data: bytes) -> Features | None:
    features: Features = {}
    total = len(data)
    size, at = _size(data, 1)
    if data[0] != _FIELD_1 or at + size != total:
        return None
    while at < total:
        if data[at] != _FIELD_1:
            return None
        size, at = _size(data, at + 1)
        stop = at + size
        length = data[at + 1]
        middle = at + 2 + length
        if data[at] != _FIELD_1 or length >= _SHORT or data[middle] != _FIELD_2:
            return None
        name = data[at + 2 : middle].decode()
        size, at = _size(data, middle + 1)
        if at + size != stop or stop > total or name in features:
            return None
        values = _values(data, at, stop)
        if values is None:
            return None
        features[name] = values
        at = stop
    return features


def _values(data: bytes, at: int, stop: int) -> list[bytes] | list[int] | list[float] | None:
    """Return the values of the Feature between two places."""
    if at == stop:
        return []
    kind = data[at]
    size, at = _size(data, at + 1)
    if at + size != stop or data[at] != _FIELD_1:
        return None
    size, at = _size(data, at + 1)
    if at + size != stop:
        return None
    if kind == _FIELD_1:
        return [data[at:stop]]
    if kind == _FIELD_2:
        return list(struct.unpack_from(f"<{size // 4}f", data, at)) if size % 4 == 0 else None
    return _integers(data, at, stop) if kind == _FIELD_3 else None


def _integers(data: bytes, at: int, stop: int) -> list[int] | None:
    numbers: list[int] = []
    while at < stop:
        number, at = _size(data, at)
        numbers.append(number - (1 << 64) if number >> 63 else number)
    return numbers if at == stop else None


def _size(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint at a place, and where it ends."""
    byte = data[at]
    if byte < _SHORT:
        return byte, at + 1
    value, shift = byte - _SHORT, 7
    while True:
        at += 1
        byte = data[at]
        if byte < _SHORT:
            return (value | byte << shift) & 0xFFFFFFFFFFFFFFFF, at + 1
        value |= (byte - _SHORT) << shift
        shift += 7
        if shift >= 70:
            message = "a number is longer than 64 bits"
            raise ValueError(message)
