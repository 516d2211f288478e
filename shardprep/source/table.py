"""Label tables: CSV bytes in, a header and stripped rows out. All cells are strings."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass

from shardprep.errors import SourceError

_DELIMITERS = ",;\t|"


@dataclass(frozen=True, slots=True)
class Table:
    """A CSV file: every row has exactly the columns of the header."""

    name: str
    header: tuple[str, ...]
    rows: list[list[str]]

    def column(self, name: str) -> int:
        """Return the index of a column, by exact name first and else regardless of case.

        Raises:
            SourceError: there is no such column; the message lists those there are.

        """
        lowered = [title.lower() for title in self.header]
        if name in self.header:
            return self.header.index(name)
        if name.lower() in lowered:
            return lowered.index(name.lower())
        raise SourceError(
            self.name, f"has no column {name!r}", f"its columns are {', '.join(self.header)}"
        )


def parse_table(data: bytes, name: str) -> Table:
    """Return the table in the bytes of a CSV file with a header line.

    UTF-8 with or without a byte order mark, else Windows-1252; separated by comma, semicolon, tab
    or bar, whichever the header has most of. Short rows are filled with "", long ones cut.

    Raises:
        SourceError: there is no header.

    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("cp1252", errors="replace")
    first_line = text.split("\n", 1)[0]
    delimiter = max(_DELIMITERS, key=first_line.count)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    try:
        header = tuple(cell.strip() for cell in next(lines, []))
        width = len(header)
        rows = [
            [cell.strip() for cell in line[:width]] + [""] * (width - len(line))
            for line in lines
            if any(line)
        ]
    except csv.Error as error:
        raise SourceError(name, f"is no CSV that can be read ({error})") from error
    if not any(header):
        raise SourceError(name, "is empty: a header line is needed")
    return Table(name, header, rows)
