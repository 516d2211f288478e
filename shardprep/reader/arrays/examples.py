"""The examples of a split by number: records and what they mean, with one kind of error for both.

Whatever is wrong with a record, in its frame, its Example or its image, is a RecordError that
names the file, the record and the offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardprep.errors import RecordError

if TYPE_CHECKING:
    import numpy as np

    from shardprep.reader.arrays.features import Values
    from shardprep.reader.records import Records

    Columns = dict[str, np.ndarray[Any, Any]]
    """Feature → its values in a batch, a row an example."""


@dataclass(frozen=True, slots=True)
class Examples:
    """Reads from many threads at a time."""

    records: Records
    values: Values

    def item(self, number: int) -> dict[str, Any]:
        """Return the values of one example by feature. Raises as `Records.payload`."""
        payload = self.records.payload(number)
        try:
            return self.values.item(payload)
        except Exception as error:
            raise self._damaged(number, error) from error

    def fill(self, number: int, columns: Columns, row: int) -> None:
        """Write the values of one example into a row. Raises as `Records.payload`."""
        payload = self.records.payload(number)
        try:
            self.values.fill(payload, columns, row)
        except Exception as error:
            raise self._damaged(number, error) from error

    def _damaged(self, number: int, error: Exception) -> Exception:
        """Decoders raise anything; only what says nothing of the record stays what it is."""
        if isinstance(error, MemoryError):
            return error
        what = error.what if isinstance(error, RecordError) else " ".join(str(error).split())
        return self.records.damaged(number, what or type(error).__name__)
