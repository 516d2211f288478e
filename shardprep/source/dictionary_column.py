"""A column of repeated values: each distinct value once, and a small integer for each row."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.signedinteger[Any]]

_Value = TypeVar("_Value")
_Other = TypeVar("_Other")

_FEW = 4
"""Up to this number of values, all are pickled: finding the used ones would take longer."""


class Coded(Sequence[_Value]):
    """A sequence of values, None where the code is −1."""

    __slots__ = ("codes", "values")

    def __init__(self, codes: NDArray[Any], values: Sequence[_Value]) -> None:
        """`codes` are positions in `values`; some values may be unused."""
        self.codes: Codes = codes
        self.values = values

    @classmethod
    def of(cls, column: Iterable[_Value]) -> Coded[_Value]:
        """Return a column of texts, numbers or tuples of them; equal values are merged."""
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
        """Return a column without merging equal values."""
        listed = list(column)
        there = np.array([one is not None for one in listed], bool)
        codes = np.where(there, np.cumsum(there) - 1, -1)
        return cls(_small(codes, len(listed)), [one for one in listed if one is not None])

    @classmethod
    def constant(cls, value: _Value, number: int) -> Coded[_Value]:
        """Return a column with one value in all rows, which needs no memory."""
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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Coded.of({list(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without unused values, if there are more than a few values."""
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
        """Return for each row whether the condition holds for its value; False for None."""
        return np.array([*map(is_one, self.values), False], bool)[self.codes]

    def take(self, rows: NDArray[Any]) -> Coded[_Value]:
        if self.codes.strides == (0,) and len(self.codes):
            return Coded(np.broadcast_to(self.codes[0], len(rows)), self.values)
        return Coded(self.codes[rows], self.values)

    def filled(self, value: _Value) -> Coded[_Value]:
        """Return the column with None replaced by a value."""
        values = list(self.values) if value in self.values else [*self.values, value]
        codes = np.where(self.codes < 0, values.index(value), self.codes)
        return Coded(_small(codes, len(values)), values)

    def firsts(self) -> dict[int, _Value]:
        """Return the first row of each used value, in order of rows."""
        codes, rows = np.unique(self.codes, return_index=True)
        pairs = sorted(zip(rows.tolist(), codes.tolist(), strict=True))
        return {row: self.values[code] for row, code in pairs if code >= 0}

    def counts(self) -> dict[_Value, int]:
        """Return the number of rows of each value, in the order of their first rows."""
        numbers = np.bincount(self.codes[self.are_there], minlength=len(self.values)).tolist()
        firsts = self.firsts()
        return {one: numbers[self.codes[row]] for row, one in firsts.items()}

    def mapped(self, new_values: Iterable[_Other]) -> Coded[_Other]:
        """Return the column with new values, given in the order of `firsts`."""
        other = Coded.of(new_values)
        codes = np.full(len(self.values) + 1, -1, np.int64)
        codes[self.codes[list(self.firsts())]] = other.codes
        return Coded(_small(codes[self.codes], len(other.values)), other.values)

    def map(self, function: Callable[[_Value], _Other]) -> Coded[_Other]:
        """Apply a function to each value, in the order of `firsts`."""
        return self.mapped(map(function, self.firsts().values()))


def _small(codes: NDArray[Any], num_values: int) -> Codes:
    """Return the codes in the smallest integer type for `num_values`."""
    return codes.astype(np.min_scalar_type(-max(1, num_values)))
