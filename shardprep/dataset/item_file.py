"""An open `items.parquet`: a column, or a row, when it is asked for; many threads may ask."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from shardprep.dataset.item_table import bounded_table, parquet_file, readable
from shardprep.storage.regular_file import open_regular

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa


class ItemFile:
    """The item table of a dataset, as it was when it was opened: a later file is not seen."""

    def __init__(self, path: Path) -> None:
        """Open it; raises as `read_items`."""
        self._path = path
        self._lock = threading.Lock()
        self._is_ended = False
        with readable(path):
            self._raw = open_regular(path)
            self._file = parquet_file(self._raw, path)
            facts = self._file.metadata
            groups = [facts.row_group(i).num_rows for i in range(facts.num_row_groups)]
        self._ends = np.cumsum(groups, dtype=np.int64)

    def close(self) -> None:
        """Close it after the read in progress; all later reads raise an error."""
        self._is_ended = True
        with self._lock:
            self._raw.close()

    def column(self, name: str) -> pa.ChunkedArray:
        """Return all values of a column; raises as `read_items`."""
        return self._read((name,))[name]

    def part(self, name: str, row: int) -> tuple[range, pa.ChunkedArray]:
        """Return the values of a column around a row, and the numbers of their rows.

        They are those of its row group, such as a shard; raises as `read_items`.
        """
        group = int(np.searchsorted(self._ends, row, "right"))
        table = self._read((name,), group)
        return range(int(self._ends[group]) - len(table), int(self._ends[group])), table[name]

    def row(self, number: int) -> dict[str, Any]:
        """Return a row by column, 0 ≤ number < rows; raises as `read_items`."""
        group = int(np.searchsorted(self._ends, number, "right"))
        table = self._read(None, group)
        row = table.slice(number - int(self._ends[group]) + len(table), 1)
        found: dict[str, Any] = row.to_pylist()[0]
        return found

    def _read(self, names: Sequence[str] | None, group: int | None = None) -> pa.Table:
        with readable(self._path), self._lock:
            if self._is_ended:  # `close` does not wait behind others
                self._raw.close()
            num_bytes = os.fstat(self._raw.fileno()).st_size
            return bounded_table(self._file, num_bytes, names, group)
