"""The console that all is printed on. Nothing that a file says can steer it.

Names, labels and reasons come from archives and datasets of others: a string is shown as it is,
with escapes for control characters, and is never read as rich's markup or for its emoji codes.
"""

from __future__ import annotations

import os
import sys
import textwrap
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardprep.errors import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_UNWRAPPED_CELLS = 1 << 20
"""The width where there is no terminal: a line is one line, to be found by grep."""
_TITLE_CELLS = 10


class Terminal(Console):
    """Stdout or stderr, as wide as the terminal or $COLUMNS say, else without end."""

    def __init__(self, *, stderr: bool = False, quiet: bool = False) -> None:
        """Print to stderr, or to stdout; nothing at all where it is to be quiet."""
        stream = sys.stderr if stderr else sys.stdout
        is_terminal = stream is not None and stream.isatty()
        # A notebook asks for colour where nothing can be moved (FORCE_COLOR), and rich would
        # animate what it captures.
        forced: Any = "standard" if os.environ.get("FORCE_COLOR") else None
        super().__init__(
            stderr=stderr,
            quiet=quiet,
            force_terminal=None if is_terminal else False,
            color_system="auto" if is_terminal else forced,
            highlight=False,
            markup=False,
            emoji=False,
        )
        if not self.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
            self.width = _UNWRAPPED_CELLS

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string, or a cell of a table, as what is shown of it."""
        return super().render_str(printable(text), **options)

    def notice(self, line: str, style: str = "") -> None:
        """Print one line."""
        self.print(line, style=style, soft_wrap=True)

    def heading(self, title: str, rest: str = "") -> None:
        """Print what a report is of, and what there is to say at once."""
        self.print(Text.assemble((printable(title), "bold"), printable(rest)), soft_wrap=True)

    def entry(self, title: str, text: str, style: str = "") -> None:
        """Print a titled line, its continuation below its beginning."""
        width = max(20, self.width - _TITLE_CELLS)
        for line in textwrap.wrap(printable(text), width, break_on_hyphens=False) or [""]:
            head = f"{title:<{_TITLE_CELLS}}"
            self.print(Text.assemble((head, "bold"), (line, style)), soft_wrap=True)
            title = ""


def plain_table(*titles: str, left: Collection[str] = ("",)) -> Table:
    """Return a table without lines: columns to the right, but for the first one and those named."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in titles:
        is_left = title in (titles[0], *left)
        table.add_column(title, justify="left" if is_left else "right")
    return table


def counts_line(counts: Mapping[str, int]) -> str:
    """Return "3 junk, 1 not an image"."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
