"""Columns of many rows in little memory.

`Texts` stores all texts in one buffer, plus 8 bytes for each text instead of a Python object.
`Coded` stores each distinct value once, and a small integer for each row.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Codes = NDArray[np.signedinteger[Any]]

_Value = TypeVar("_Value")
_Other = TypeVar("_Other")

_FEW = 4
"""Maximum number of values for which `Coded` also pickles unused values, which is faster."""


class ColumnView(Sequence[_Value]):
    """A sequence of values that are made on access; it equals any sequence of equal values."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


class Coded(ColumnView[_Value]):
    """A sequence of values and None, stored as a code for each row and a list of values."""

    __slots__ = ("codes", "values")

    def __init__(self, codes: NDArray[Any], values: Sequence[_Value]) -> None:
        """`codes` are positions in `values`, or −1 for None. Some values may be unused."""
        self.codes: Codes = codes
        self.values = values

    @classmethod
    def of(cls, column: Iterable[_Value]) -> Coded[_Value]:
        """Return a column of texts, numbers or tuples, which stores equal values once."""
        if isinstance(column, Coded):
            return column
        places: dict[Hashable, int] = {}
        values: list[Any] = []
        codes: list[int] = []
        for value in column:
            # 0.0 equals −0.0, and NaN equals nothing, so numbers are compared by their repr.
            key: Any = (float, repr(value)) if type(value) is float else value
            code = -1 if value is None else places.setdefault(key, len(values))
            if code == len(values):
                values.append(value)
            codes.append(code)
        return cls(_small(np.array(codes, np.int64), len(values)), values)

    @classmethod
    def apart(cls, column: Iterable[_Value]) -> Coded[_Value]:
        """Return a column that stores each row's value, even if values are equal."""
        listed = list(column)
        there = np.array([one is not None for one in listed], bool)
        codes = np.where(there, np.cumsum(there) - 1, -1)
        return cls(_small(codes, len(listed)), [one for one in listed if one is not None])

    @classmethod
    def constant(cls, value: _Value, number: int) -> Coded[_Value]:
        """Return a column with `value` in all `number` rows."""
        code, values = (-1, ()) if value is None else (0, (value,))
        return cls(np.broadcast_to(np.int8(code), number), values)

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, at: int) -> _Value: ...
    @overload
    def __getitem__(self, at: slice) -> Coded[_Value]: ...
    def __getitem__(self, at: int | slice) -> _Value | Coded[_Value]:
        if isinstance(at, slice):
            return Coded(self.codes[at], self.values)
        code = int(self.codes[at])
        return None if code < 0 else self.values[code]  # type: ignore[return-value]

    def __iter__(self) -> Iterator[_Value]:
        values, codes = self.values, self.codes.tolist()
        if min(codes, default=0) >= 0:
            return map(values.__getitem__, codes)
        return (values[code] if code >= 0 else None for code in codes)  # type: ignore[misc]

    def __reduce__(self) -> tuple[Any, ...]:
        if len(self.values) <= _FEW:
            return Coded, (self.codes, self.values)
        used, codes = np.unique(self.codes, return_inverse=True)
        values = [self.values[code] for code in used.tolist() if code >= 0]
        codes = codes - (len(used) - len(values))
        return Coded, (_small(codes, len(values)), values)

    @property
    def are_there(self) -> NDArray[np.bool_]:
        there: NDArray[np.bool_] = self.codes >= 0
        return there

    def fit(self, is_one: Callable[[_Value], bool]) -> NDArray[np.bool_]:
        """Return `is_one` of the value of each row, bool[n]; False for None."""
        return np.array([*map(is_one, self.values), False], bool)[self.codes]

    def take(self, rows: NDArray[Any]) -> Coded[_Value]:
        if self.codes.strides == (0,) and len(self.codes):
            return Coded(np.broadcast_to(self.codes[0], len(rows)), self.values)
        return Coded(self.codes[rows], self.values)

    def filled(self, value: _Value) -> Coded[_Value]:
        """Return the column with None replaced by `value`."""
        values = list(self.values) if value in self.values else [*self.values, value]
        codes = np.where(self.codes < 0, values.index(value), self.codes)
        return Coded(_small(codes, len(values)), values)

    def firsts(self) -> dict[int, _Value]:
        """Return first row → value for each used value, in row order."""
        codes, rows = np.unique(self.codes, return_index=True)
        pairs = sorted(zip(rows.tolist(), codes.tolist(), strict=True))
        return {row: self.values[code] for row, code in pairs if code >= 0}

    def counts(self) -> dict[_Value, int]:
        """Return the number of rows of each used value, in the order of `firsts`."""
        numbers = np.bincount(self.codes[self.are_there], minlength=len(self.values)).tolist()
        return {one: numbers[self.codes[row]] for row, one in self.firsts().items()}

    def mapped(self, new_values: Iterable[_Other]) -> Coded[_Other]:
        """Return the column with its used values replaced by `new_values`, in `firsts` order."""
        other = Coded.of(new_values)
        codes = np.full(len(self.values) + 1, -1, np.int64)
        codes[self.codes[list(self.firsts())]] = other.codes
        return Coded(_small(codes[self.codes], len(other.values)), other.values)

    def map(self, function: Callable[[_Value], _Other]) -> Coded[_Other]:
        """Return the column with `function` called once for each used value, in `firsts` order."""
        return self.mapped(map(function, self.firsts().values()))


def _small(codes: NDArray[Any], num_values: int) -> Codes:
    return codes.astype(np.min_scalar_type(-max(1, num_values)))


Hashes = NDArray[np.uint64]
Ints = NDArray[np.int64]

_AT_ONCE = 1 << 12
_HASHED_AT_ONCE = 1 << 14
"""Number of texts to hash at a time. Hashing needs 20 bytes of memory for each character."""
_FOUND_AT_ONCE = 1 << 17
_FEW_TEXTS = 1 << 15
"""Maximum number of distinct texts for which `Texts.coded` is cached, at two bytes per row."""
_FEW_ROWS = 1 << 12
"""Maximum number of rows that a `Lookup` keeps as Python texts."""
_TEXT = pa.large_string()
_WEIGHTS = np.frombuffer(os.urandom(8 * 4096), np.uint64) | np.uint64(1)
"""Random odd factors for the bytes of a text, so that nobody can make names with equal hashes."""


class Texts(ColumnView[str]):
    """A sequence of texts; each becomes a Python object only on access."""

    __slots__ = ("_codes", "_folders", "array")

    def __init__(self, array: Any) -> None:
        """`array` is an Arrow array of texts without nulls."""
        self.array: Any = array if array.type == _TEXT else array.cast(_TEXT)
        self._codes: Coded[str] | None = None
        self._folders: Coded[str] | None = None

    @classmethod
    def of(cls, texts: Iterable[str]) -> Texts:
        """Return texts as a column. Lone surrogates, which are not valid UTF-8, become escapes."""
        if isinstance(texts, Texts):
            return texts
        # `pa.array` of a list imports pandas if it is installed, which takes a second.
        encoded = [text.encode(errors="backslashreplace") for text in texts]
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)), out=offsets[1:])
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
        return cls(pa.Array.from_buffers(pa.large_string(), len(encoded), buffers))

    @classmethod
    def joined(cls, parts: Sequence[Texts]) -> Texts:
        if len(parts) == 1:
            return parts[0]
        return cls(pa.concat_arrays([part.array for part in parts])) if parts else cls.of([])

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Texts: ...
    def __getitem__(self, at: int | slice) -> str | Texts:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step != 1:
                return self.take(np.arange(start, stop, step))
            return Texts(self.array.slice(start, max(0, stop - start)))
        text: str = self.array[at].as_py()
        return text

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _AT_ONCE):
            yield from self.array.slice(start, _AT_ONCE).to_pylist()

    def num_folders(self) -> Ints:
        return integers(pc.count_substring(self.array, "/"))

    def lengths(self) -> Ints:
        """Return the length of each text in characters."""
        return integers(pc.utf8_length(self.array))

    @property
    def are_filled(self) -> NDArray[np.bool_]:
        """Which texts are not empty, bool[n]."""
        return booleans(pc.not_equal(self.array, ""))

    def matching(self, pattern: str) -> NDArray[np.bool_]:
        """Return which texts have a match of a regular expression in RE2's syntax, bool[n]."""
        return booleans(pc.match_substring_regex(self.array, pattern))

    def where(self, is_one: NDArray[np.bool_]) -> Texts:
        return self if is_one.all() else self.take(np.flatnonzero(is_one))

    def take(self, rows: NDArray[Any]) -> Texts:
        numbers = np.ascontiguousarray(rows, np.int64)
        buffers = [None, pa.py_buffer(numbers)]
        return Texts(self.array.take(pa.Array.from_buffers(pa.int64(), len(numbers), buffers)))

    def encoded(self) -> Iterable[bytes]:
        found: Iterable[bytes] = self.array.cast(pa.large_binary()).to_pylist()
        return found

    def coded(self) -> Coded[str]:
        """Return the texts as `Coded`; cached up to `_FEW_TEXTS` distinct texts."""
        if self._codes is not None:
            return self._codes
        found = _coded(self)
        if len(found.values) <= _FEW_TEXTS:
            self._codes = found = Coded(_small(found.codes, len(found.values)), found.values)
        return found

    @property
    def folders(self) -> Coded[str]:
        """The part of each path before the last "/"; "" for a path without folders."""
        if self._folders is None:
            self._folders = _coded(self, lambda text: text.rpartition("/")[0])
        return self._folders

    def composed(self) -> Texts:
        """Return each text in Unicode form NFC: a letter and its accent are one character."""
        if booleans(pc.string_is_ascii(self.array)).all():
            return self
        return Texts(pc.utf8_normalize(self.array, form="NFC"))

    def ends(self, depth: int) -> Texts:
        """Return the last part of each path with up to `depth` folders before it."""
        pattern = rf"^.*/((?:[^/]*/){{{depth}}}[^/]*)$" if depth else "^.*/"
        return Texts(pc.replace_substring_regex(self.array, pattern, r"\1" if depth else ""))

    def without_folders(self, number: int) -> Texts:
        """Return each path without its first folders; a path with fewer folders does not change."""
        return Texts(pc.replace_substring_regex(self.array, rf"^(?:[^/]*/){{{number}}}", ""))

    def replaced(self, rows: NDArray[Any], others: Texts) -> Texts:
        """Return a copy with the texts at `rows` replaced by `others`, in order."""
        places = np.arange(len(self))
        places[rows] = len(self) + np.arange(len(rows))
        return Texts.joined([self, others]).take(places)

    def stems(self, depth: int) -> Texts:
        """Return the `ends` of all paths without file extension; ".jpg" stays unchanged."""
        ends = self.ends(depth).array
        return Texts(pc.replace_substring_regex(ends, r"([^/])\.[^./]*$", r"\1"))

    def after(self, prefix: str) -> Texts:
        """Return each text with `prefix` in front of it."""
        before, nothing = Texts.of([prefix, ""]).array
        return Texts(pc.binary_join_element_wise(before, self.array, nothing))


class Lookup:
    """An index from a text to the first row whose `part` equals it, at 12 bytes per row."""

    def __init__(self, among: Texts, part: Callable[[Texts], Texts] = lambda texts: texts) -> None:
        self._firsts, self._several = dict[str, int](), set[str]()
        self._is_small = len(among) <= _FEW_ROWS
        if self._is_small:
            of_row = enumerate(part(among))
            self._several = {
                text for row, text in of_row if self._firsts.setdefault(text, row) != row
            }
            return
        hashes = _hashes(among, part)
        order = np.argsort(hashes, kind="stable")
        self._order = order.astype(np.uint32 if len(among) >> 32 == 0 else int)
        self._hashes = hashes[self._order]
        self._among = among
        self._part = part

    def positions(self, texts: Texts) -> tuple[Ints, NDArray[np.bool_]]:
        """Return each text's first row or −1, and whether more rows may have this text."""
        firsts, is_many = np.full(len(texts), -1, np.int64), np.zeros(len(texts), bool)
        if self._is_small:
            for row, text in enumerate(texts):
                firsts[row], is_many[row] = self._firsts.get(text, -1), text in self._several
            return firsts, is_many
        for start in range(0, len(texts), _FOUND_AT_ONCE):
            some = texts[start : start + _FOUND_AT_ONCE]
            asked = _hashes(some)
            rising = np.argsort(asked)  # a search for sorted numbers is ten times as fast
            asked = asked[rising]
            at = np.searchsorted(self._hashes, asked)
            hits = np.flatnonzero(self._hashes[np.minimum(at, len(self._hashes) - 1)] == asked)
            at, rows = at[hits], rising[hits]
            ends = np.searchsorted(self._hashes, asked[hits], "right")
            positions = self._order[at].astype(np.int64)
            there = self._part(self._among.take(positions))
            is_same = pc.equal(some.take(rows).array, there.array)
            for i in np.flatnonzero(~booleans(is_same)).tolist():
                alike = self._order[at[i] : ends[i]].astype(np.int64)
                same = alike[
                    [one == some[int(rows[i])] for one in self._part(self._among.take(alike))]
                ]
                positions[i] = same[0] if len(same) else -1
            firsts[start + rows] = positions
            is_many[start + rows] = (ends > at + 1) & (positions >= 0)
        release()
        return firsts, is_many


def positions(texts: Texts, among: Texts) -> tuple[Ints, NDArray[np.bool_]]:
    """Return each text's first row in `among` or −1, and whether more rows may have this text."""
    return Lookup(among).positions(texts)


def release() -> None:
    """Return Arrow's freed memory to the system. Otherwise, Arrow keeps it for later arrays."""
    pa.default_memory_pool().release_unused()


def _hashes(texts: Texts, part: Callable[[Texts], Texts] = lambda texts: texts) -> Hashes:
    """Return a hash of `part` of each text, uint64[n]. Hashes differ between processes."""
    hashes = np.empty(len(texts), np.uint64)
    for start in range(0, len(texts), _HASHED_AT_ONCE):
        some = part(texts[start : start + _HASHED_AT_ONCE]).array
        _, offsets, data = some.buffers()
        ends = np.frombuffer(offsets, np.int64)[some.offset :][: len(some) + 1]
        lengths = np.diff(ends)
        letters = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]].astype(np.uint64)
        ends = ends - ends[0]
        place = np.arange(len(letters)) - np.repeat(ends[:-1], lengths)
        letters += np.uint64(1)
        letters *= _WEIGHTS[place % len(_WEIGHTS)]
        sums = np.zeros(len(letters) + 1, np.uint64)
        np.cumsum(letters, out=sums[1:])
        hashes[start : start + len(some)] = sums[ends[1:]] - sums[ends[:-1]]
    return hashes


def _coded(texts: Texts, part: Callable[[str], str] | None = None) -> Coded[str]:
    places: dict[str, int] = {}
    codes = np.empty(len(texts), np.int32)
    for start in range(0, len(texts), _HASHED_AT_ONCE):
        block = texts.array.slice(start, _HASHED_AT_ONCE)
        if part is not None:
            own = [places.setdefault(part(text), len(places)) for text in block.to_pylist()]
            codes[start : start + len(block)] = own
            continue
        block = block.dictionary_encode()
        own = [places.setdefault(text, len(places)) for text in block.dictionary.to_pylist()]
        codes[start : start + len(block)] = np.array(own, np.int32)[integers(block.indices)]
    return Coded(codes, list(places))


def integers(array: Any) -> NDArray[Any]:
    """Return an integer Arrow array without nulls as a NumPy array, without importing pandas."""
    kind = {"int32": np.int32, "int64": np.int64, "uint64": np.uint64, "uint8": np.uint8}
    whole = np.frombuffer(array.buffers()[1] or b"", kind[str(array.type)])
    return whole[array.offset : array.offset + len(array)]


def booleans(array: Any) -> NDArray[np.bool_]:
    """Return an Arrow array of booleans without nulls as a NumPy array."""
    bits = np.frombuffer(array.buffers()[1] or b"", np.uint8)
    end = array.offset + len(array)
    return np.unpackbits(bits, count=end, bitorder="little")[array.offset :].view(np.bool_)
