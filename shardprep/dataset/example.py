"""Encoder and decoder for the wire format of `tf.train.Example`, without protobuf.

Messages (tensorflow/core/example/{example,feature}.proto): Example{1: Features},
Features{1: map entry{1: name, 2: Feature}}, Feature{1: BytesList | 2: FloatList | 3: Int64List},
each list {1: repeated value}, numbers packed. Names are written in sorted order, so that equal
examples have equal bytes: protobuf itself promises no order for a map.

`ExampleDecoder` is a fast decoder for examples that `encode` wrote: the names of the schema appear
in order, each with one list of packed numbers, so a few comparisons find each value. It passes any
other layout to `decode`, which gives the same values for all features.
"""

from __future__ import annotations

import functools
import math
import struct
import sys
from array import array
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from shardprep.errors import RecordError

Found = list[memoryview] | list[int] | list[float]
FeatureList = list[bytes] | list[int] | list[float]
Features = dict[str, FeatureList]

Values = Sequence[bytes] | Sequence[int] | Sequence[float]
"""Values of a feature, all of one type. Floats are stored as float32; array("f") is fastest."""

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_BYTES, _FLOAT, _INT64 = 1, 2, 3
_ENTRY = 1 << 3 | _LENGTH
_UINT64 = (1 << 64) - 1
_ONE_BYTE = 128
_BYTES_OF = [bytes((value,)) for value in range(_ONE_BYTE)]
_LISTS = {
    dtype: number << 3 | _LENGTH
    for dtype, number in (("bytes", _BYTES), ("float32", _FLOAT), ("int64", _INT64))
}
"""dtype of a feature → the tag of its list of values."""
_EMPTY = {dtype: bytes((tag, 0)) for dtype, tag in _LISTS.items()}
"""dtype → serialized Feature with an empty list of that type."""
_MAX_VARINT_BYTES = 10
_BEYOND_FLOAT32 = 3.4028235677973366e38
"""Smallest number that rounds to infinity as a float32."""
_VANISHES_IN_FLOAT32 = 2.0**-150
"""Largest number that rounds to 0 as a float32."""


def encode(
    features: Mapping[str, Values], dtypes: Mapping[str, str] = MappingProxyType({})
) -> bytes:
    """Return the serialized Example; OverflowError if a float is too large for float32.

    A feature without values becomes an empty list of its type in `dtypes`, as TFDS expects.
    """
    entries: list[bytes] = []
    for name in sorted(features):
        values = features[name]
        value = values[0] if len(values) == 1 else None
        if type(value) is bytes:
            entries += _start_of_bytes(name, len(value)), value
        elif type(value) is int:
            entries.append(_integer_entry(name, value))
        else:
            entries.append(_entry(name, _feature(values) or _EMPTY.get(dtypes.get(name, ""), b"")))
    return _field(1, b"".join(entries))


def with_values(data: bytes, features: Mapping[str, Values], dtypes: Mapping[str, str]) -> bytes:
    """Return the serialized Example `data` with the values of `features` replaced or added.

    Names neither in the Example nor in `dtypes` are ignored. RecordError if `data` is invalid.
    """
    values = decode(data)
    known = values.keys() | dtypes.keys()
    others = {name: feature for name, feature in features.items() if name in known}
    return encode({**values, **others}, dtypes)


def is_beyond_float32(value: float) -> bool:
    """Return whether a finite number is too large for a float feature."""
    return math.isfinite(value) and abs(value) >= _BEYOND_FLOAT32


def vanishes_in_float32(number: str) -> bool:
    """Return whether a number in a text is not 0, but becomes 0 in a float feature."""
    if abs(float(number)) > _VANISHES_IN_FLOAT32:
        return False
    return any(one in "123456789" for one in number.lower().partition("e")[0])


def decode(data: bytes) -> Features:
    """Return the features of a serialized Example by name, in the order of their first entries.

    Entries may have any order, unpacked numbers and unknown fields except groups. The last entry
    of a repeated name counts. RecordError if the bytes are not an Example.
    """
    features: Features = {}
    try:
        for block in _submessages(data, 1):
            for entry in _submessages(block, 1):
                name = b"".join(_submessages(entry, 1)[-1:]).decode()
                features[name] = _values(b"".join(_submessages(entry, 2)))
    except (IndexError, ValueError, struct.error) as error:
        what = f"is not a serialized tf.train.Example ({error})"
        raise RecordError("a record", what, "run `shardprep verify DATASET`") from error
    return features


def _entry(name: str, value: bytes) -> bytes:
    return _start(name, len(value)) + value


def _start(name: str, num_bytes: int) -> bytes:
    head = _entry_head(name) + _varint(num_bytes)
    return b"".join((b"\n", _varint(len(head) + num_bytes), head))


@functools.lru_cache(maxsize=1 << 14)  # sizes and classes recur in many examples
def _integer_entry(name: str, value: int) -> bytes:
    return _entry(name, _integers((value,)))


@functools.lru_cache(maxsize=1 << 14)
def _start_of_bytes(name: str, num_bytes: int) -> bytes:
    """Return the start of an entry with one value of `num_bytes` bytes, up to the value."""
    one = b"".join((_BYTES_OF[1 << 3 | _LENGTH], _varint(num_bytes)))
    several = b"".join((_BYTES_OF[_BYTES << 3 | _LENGTH], _varint(len(one) + num_bytes), one))
    return _start(name, len(several) + num_bytes) + several


@functools.cache
def _entry_head(name: str) -> bytes:
    return _field(1, name.encode()) + bytes((2 << 3 | _LENGTH,))


def _feature(values: Values) -> bytes:
    if not values:
        return b""
    if isinstance(values, array) and values.typecode == "f" and sys.byteorder == "little":
        return _field(_FLOAT, _field(1, values.tobytes()))
    first = values[0]
    if isinstance(first, bytes):
        return _field(_BYTES, b"".join([_field(1, value) for value in values]))  # type: ignore[arg-type]
    if isinstance(first, float):
        return _field(_FLOAT, _field(1, struct.pack(f"<{len(values)}f", *values)))
    return _integers(values)  # type: ignore[arg-type]


def _integers(values: Sequence[int]) -> bytes:
    if min(values) >= 0 and max(values) < _ONE_BYTE:
        return _field(_INT64, _field(1, bytes(values)))
    return _field(_INT64, _field(1, b"".join([_varint(int(value) & _UINT64) for value in values])))


@functools.lru_cache(maxsize=1 << 14)
def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= _ONE_BYTE:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, data: bytes) -> bytes:
    return b"".join((_BYTES_OF[number << 3 | _LENGTH], _varint(len(data)), data))


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the uint64 at an offset, and the next offset. IndexError or ValueError if damaged."""
    value = data[at]
    if value < _ONE_BYTE:
        return value, at + 1
    second = data[at + 1]
    if second < _ONE_BYTE:
        return value & 0x7F | second << 7, at + 2
    value = value & 0x7F | (second & 0x7F) << 7
    at += 1
    for shift in range(14, 7 * _MAX_VARINT_BYTES, 7):
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < _ONE_BYTE:
            return value & _UINT64, at + 1
    raise ValueError("a number is longer than 64 bits")


def read_ints(data: bytes | memoryview, at: int, end: int) -> list[int]:
    """Return the packed int64 numbers from offset `at` to `end`; errors as in `read_varint`."""
    numbers = []
    while at < end:
        number, at = read_varint(data, at)
        numbers.append(number - (1 << 64) if number >> 63 else number)
    if at != end:
        raise ValueError("cut inside a number")
    return numbers


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes | int]]:
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        kind = tag & 7
        if tag >> 3 == 0:
            raise ValueError("invalid field number 0")
        if kind == _VARINT:
            value, at = read_varint(data, at)
            yield tag >> 3, kind, value
            continue
        if kind == _LENGTH:
            size, at = read_varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"unsupported wire type {kind}")
        if at + size > len(data):
            raise ValueError("cut inside a field")
        yield tag >> 3, kind, data[at : at + size]
        at += size


def _submessages(data: bytes, number: int) -> list[bytes]:
    return [
        value for field, _, value in _fields(data) if field == number and isinstance(value, bytes)
    ]


def _values(feature: bytes) -> FeatureList:
    """Return the values of a Feature; a list of another type replaces the lists before it."""
    last = 0
    values: FeatureList = []
    for number, kind, block in _fields(feature):
        if kind != _LENGTH or not isinstance(block, bytes) or number not in _READERS:
            continue
        found = _READERS[number](block)
        values = [*values, *found] if number == last else found
        last = number
    return values


def _floats(block: bytes) -> list[float]:
    packed = b"".join(
        value
        for field, kind, value in _fields(block)
        if field == 1 and kind in (_LENGTH, _FIXED32) and isinstance(value, bytes)
    )
    return list(struct.unpack(f"<{len(packed) // 4}f", packed))


def _ints(block: bytes) -> list[int]:
    numbers: list[int] = []
    for field, kind, value in _fields(block):
        if field == 1 and isinstance(value, int):
            numbers.append(value - (1 << 64) if value >> 63 else value)
        elif field == 1 and isinstance(value, bytes) and kind == _LENGTH:
            numbers += read_ints(value, 0, len(value))
    return numbers


_READERS: dict[int, Callable[[bytes], FeatureList]] = {
    _BYTES: functools.partial(_submessages, number=1),
    _FLOAT: _floats,
    _INT64: _ints,
}


@dataclass(frozen=True, slots=True)
class _KnownFeature:
    name: str
    head: bytes
    """Bytes between the length of the entry and the length of its Feature."""
    list_tag: int
    short: tuple[bytes, ...]
    """For each length of an entry, 0 to 127: the bytes before its only value, or b"" if the entry
    is too short for a value."""
    wanted: bool


class ExampleDecoder:
    """Decoder for the examples of one schema, fast for the layout that `encode` writes."""

    def __init__(self, dtypes: Mapping[str, str], wanted: Container[str]) -> None:
        """Decode only the features in `wanted`; `dtypes` has all features of the schema."""
        self._entries = [
            _known_feature(name, _LISTS[dtypes[name]], wanted=name in wanted)
            for name in sorted(dtypes)
        ]

    def find(self, data: bytes | memoryview) -> dict[str, Found] | None:
        """Return the wanted features, or None for a layout that `encode` does not write.

        Values of bytes features are views into `data`.
        """
        try:
            return self._find(memoryview(data))
        except (IndexError, ValueError):
            return None

    def decode(self, data: bytes) -> Features:
        """Return at least the wanted features; RecordError if `data` is not an Example."""
        features = self.find(data)
        if features is None:
            return decode(data)
        return {
            name: [one if isinstance(one, (int, float)) else bytes(one) for one in values]  # type: ignore[misc]
            for name, values in features.items()
        }

    def _find(self, data: memoryview) -> dict[str, Found] | None:
        features: dict[str, Found] = {}
        size, at = read_varint(data, 1)
        if data[0] != _ENTRY or at + size != len(data):
            return None
        for entry in self._entries:
            length = data[at + 1]
            short = entry.short[length] if length < _ONE_BYTE else b""
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
                    features[entry.name] = [data[at:end]] if is_short else _several(data, at, end)
                elif entry.list_tag == _LISTS["int64"]:
                    features[entry.name] = read_ints(data, at, end)
                elif (end - at) % 4:
                    return None
                else:
                    floats = struct.unpack_from(f"<{(end - at) // 4}f", data, at)
                    features[entry.name] = list(floats)
            at = end
        return features if at == len(data) else None


def _known_feature(name: str, list_tag: int, *, wanted: bool) -> _KnownFeature:
    raw = name.encode()
    if len(raw) >= _ONE_BYTE:  # `find` never matches such a name; schemas do not have any
        return _KnownFeature(name, b"", 0, (), wanted)
    head = bytes((_ENTRY, len(raw))) + raw + b"\x12"
    before = len(head) + 5
    short = [
        bytes((_ENTRY, length))
        + head
        + bytes((length - before + 4, list_tag, length - before + 2, _ENTRY, length - before))
        if length >= before
        else b""
        for length in range(_ONE_BYTE)
    ]
    return _KnownFeature(name, head, list_tag, tuple(short), wanted)


def _long(data: memoryview, at: int, entry: _KnownFeature) -> tuple[int, int] | None:
    """Return start and end of an entry's values, or None for a layout that `encode` does not write.

    The values of a bytes feature include their tags and lengths.
    """
    size, start = read_varint(data, at + 1)
    end = start + size
    values = start + len(entry.head)
    if data[at] != _ENTRY or not entry.head or bytes(data[start:values]) != entry.head:
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
    return (start, end) if data[at] == _ENTRY and start + size == end else None


def _several(data: memoryview, at: int, end: int) -> list[memoryview]:
    values = []
    while at < end:
        size, start = read_varint(data, at + 1)
        if data[at] != _ENTRY or start + size > end:
            raise ValueError("a value of a list is damaged")
        at = start + size
        values.append(data[start:at])
    return values
