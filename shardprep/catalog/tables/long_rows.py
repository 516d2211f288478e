"""Rows of a CSV with more cells than columns: a fault, unless only the last column has more text.

A delimiter within a cell without quotes moves all later cells to other columns. Only a free text in
the last column moves no other cell.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from shardprep.catalog.names import words_of
from shardprep.errors import SourceError, counted
from shardprep.source.string_column import Texts
from shardprep.storage.text_file import CsvRows

OF_TEXTS = frozenset((
    "caption", "captions", "text", "prompt", "description", "sentence", "sentences", "comment",
    "transcription", "transcript", "report", "latex", "question",
    "answer",
))  # fmt: skip
"""Words in titles of columns with free texts."""
REMEDY = "quote the cells that have a delimiter, or give each column a title"
_ID = re.compile(r"\S*[\d./]\S*")
_NUMBER = re.compile(r"[-+\d.]+")
_MOST_CELLS, _MOST_ROWS = 1_000, 100_000


class LongRows:
    """The rows with more cells than `width`, read from lines with the delimiter `sign`."""

    def __init__(self, lines: CsvRows, width: int, sign: str) -> None:
        self._lines, self._width, self._sign = lines, width, sign
        self._found = dict[int, tuple[list[str], str]]()

    def fitted(self, rows: Iterable[list[str]], null: Collection[str]) -> Iterator[list[str]]:
        """Yield all rows with `width` cells; cells in `null` become ""."""
        width = self._width
        for number, row in enumerate(rows):
            cells = row
            if len(row) != width:
                cells = row[:width] + [""] * (width - len(row))
                if any(row[width:]) and len(self._found) <= _MOST_ROWS:
                    self._found[number] = row, self._lines.line
            yield ["" if cell in null else cell for cell in cells] if null else cells

    @property
    def fault(self) -> str:
        """What is wrong with the first long row, or "" without one."""
        first = next(iter(self._found.items()), None)
        return "" if first is None else _fault(first[0], first[1][0], self._width)

    def texts(self, columns: Sequence[Texts], title: str) -> dict[int, str]:
        """Return row → whole text in the last column `title`; {} unless this is sure for all rows.

        It is sure if the cell before the text is an id, or a word that only this column has.
        """
        if not 0 < len(self._found) <= _MOST_ROWS or self._sign == " " or self._width < 2:
            return {}
        short = np.setdiff1d(np.arange(len(columns[0])), [*self._found])
        some = columns[-1].take(short[:_MOST_CELLS])
        are_sentences = 2 * min(len({*some}), sum(" " in one for one in some)) > len(some) > 0
        if not len(short) or not (are_sentences or OF_TEXTS.intersection(words_of(title))):
            return {}
        known = {*columns[-2].take(short).coded().values} - {""}
        texts = dict[int, str]()
        for number, (row, line) in self._found.items():
            before, own = row[self._width - 2], row[self._width - 1 :]
            is_word = before in known and not _NUMBER.fullmatch(before) and known.isdisjoint(own)
            if '"' in line or not (_ID.fullmatch(before) if self._width == 2 else is_word):
                return {}
            texts[number] = line.split(self._sign, self._width - 1)[-1].strip()
        return texts


def check_widths(rows: Sequence[Sequence[str]], where: str) -> None:
    """Raise a SourceError if a row has more cells than the first row."""
    for number, row in enumerate(rows):
        if any(row[len(rows[0]) :]):
            raise SourceError(where, _fault(number, row, len(rows[0])), REMEDY)


def _fault(number: int, row: Sequence[str], width: int) -> str:
    return f"row {number + 1:,} has {counted(len(row), 'cell')} for {counted(width, 'column')}"
