"""Some rows of an item table: columns, or single values, read when they are asked for."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from shardprep.dataset.item_file import ItemFile

    Ints = np.ndarray[Any, np.dtype[np.int64]]

_MOST_PARTS = 4
"""Parts of a column that are kept before the whole is."""


class Rows:
    """Some rows of an item table; a column is read when it is first asked for, and kept."""

    def __init__(self, file: ItemFile, is_of: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        """Take the rows of which `is_of`, of all rows, is true."""
        self._file = file
        self._is_of = is_of
        self._number = int(is_of.sum())
        # Of its buffer: from an array, Arrow would import what numpy has for masked ones.
        bits = pa.py_buffer(np.packbits(is_of, bitorder="little"))
        self._bits = pa.BooleanArray.from_buffers(pa.bool_(), len(is_of), [None, bits])
        self._columns: dict[str, pa.ChunkedArray] = {}
        self._parts: dict[str, dict[range, pa.ChunkedArray]] = {}

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        if name not in self._columns:
            self._columns[name] = self.read(name)
            self._parts.pop(name, None)
        return self._columns[name]

    def value(self, name: str, number: int) -> Any:
        """Return a value of a row; of a column that was not read, only what lies around it is.

        That is, until so many parts of a column were wanted that the whole is.
        """
        if name in self._columns:
            return self._columns[name][number].as_py()
        row, parts = int(self.numbers[number]), self._parts.setdefault(name, {})
        for rows, values in parts.items():
            if row in rows:
                return values[row - rows.start].as_py()
        if len(parts) == _MOST_PARTS:
            return self[name][number].as_py()
        rows, values = self._file.part(name, row)
        self._parts[name] = {**parts, rows: values}
        return values[row - rows.start].as_py()

    def read(self, name: str) -> pa.ChunkedArray:
        """Return a column that is needed once; DatasetError where it is damaged."""
        return self._file.column(name).filter(self._bits)

    def anew(self) -> Rows:
        """Return the same rows, of which no column has been read."""
        return Rows(self._file, self._is_of)

    @cached_property
    def numbers(self) -> Ints:
        """Number of each row in the file."""
        return np.flatnonzero(self._is_of)
