"""Text files from users: detect the encoding, and read the rows of a CSV."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence

_MOST_CELL = 1 << 30
"""Largest cell in characters; the limit of `csv` is 131,072."""
INDEX = re.compile(r"|Unnamed: \d+")
"""Matches the title that pandas writes for an index in a CSV: "" or "Unnamed: 0"."""
_LINE_END = re.compile(r"\r\n|\r|\n")


def encoding_of(data: bytes) -> str:
    """Return Python's codec for a text: UTF-8, UTF-16 or UTF-32, otherwise Windows-1252."""
    wide = json.detect_encoding(data[:4])
    if not wide.startswith("utf-8"):
        return wide
    try:
        data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8-sig"


def decoded(data: bytes) -> str:
    """Return a text as `str`, without byte order mark. Invalid bytes become U+FFFD."""
    return data.decode(encoding_of(data), errors="replace")


def as_utf8(data: bytes) -> bytes:
    """Return a text in UTF-16 or UTF-32 as UTF-8. Other texts are returned unchanged."""
    wide = json.detect_encoding(data[:4])
    return data if wide.startswith("utf-8") else decoded(data).encode()


def text_lines(data: bytes) -> io.TextIOWrapper:
    """Return a stream of the lines of a text. Line endings are not translated."""
    return io.TextIOWrapper(io.BytesIO(data), encoding_of(data), errors="replace", newline="")


WHOLE = -1
"""Column number for a fault of the whole file: an open quote has swallowed rows."""


class CsvRows:
    """The rows of a CSV file, and the faults in its quotation marks.

    An open quote swallows later rows up to the next quote or the end of the file, and `csv` does
    not report this. Its strict mode does, so rows of several lines are parsed again in that mode.
    """

    def __init__(self, lines: Iterable[str], delimiter: str = ",") -> None:
        """Read rows from lines that include their line endings, as in `text_lines`."""
        self._lines = lines
        self._form = {"delimiter": delimiter, "skipinitialspace": True}
        self.faults: dict[int, str] = {}
        """Column number (or `WHOLE`) → its first fault in the rows read so far."""
        self.line = ""
        """The last line of the row that was read last."""

    def __iter__(self) -> Iterator[list[str]]:
        """Yield the rows; csv.Error for a cell above 2³⁰ characters. Sets that limit in `csv`."""
        csv.field_size_limit(_MOST_CELL)
        several: list[str] = []
        rows = csv.reader(self._watched(several), **self._form)  # type: ignore[arg-type]
        for row in rows:
            if len(several) > 1:
                self._judge(row, several, rows.line_num - len(several) + 1)
            self.line = several[-1]
            several.clear()
            yield row

    def fault(self, *columns: int) -> str:
        """Return the fault of the whole file, else the first fault of these columns, else ""."""
        return next((self.faults[i] for i in (WHOLE, *columns) if i in self.faults), "")

    def _watched(self, several: list[str]) -> Iterator[str]:
        for line in self._lines:
            several.append(line)
            yield line

    def _judge(self, row: Sequence[str], lines: Sequence[str], first: int) -> None:
        last, at, opened = first + len(lines) - 1, first, 0
        for column, cell in enumerate(row):
            if num_ends := len(_LINE_END.findall(cell)):
                opened = opened or at
                what = f"a quote opens in line {at:,} and its cell continues on the next lines"
                self.faults.setdefault(column, what)
                at += num_ends
        if WHOLE in self.faults:
            return
        try:
            list(csv.reader(lines, strict=True, **self._form))  # type: ignore[arg-type]
        except csv.Error:
            what = f"a quote opens in line {opened or first:,} that swallows rows up to {last:,}"
            self.faults = {WHOLE: what, **self.faults}
