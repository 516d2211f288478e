"""The console of all commands, and parts of reports that several commands print.

Names, labels and reasons may come from untrusted archives and datasets. Their control
characters are escaped, and rich does not interpret them as markup or emoji codes.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardprep.errors import printable

_UNWRAPPED_CELLS = 1 << 20
"""Line width if not on a terminal: lines are not wrapped, so that grep finds them."""
_TITLE_CELLS = 10
HASH_DIGITS = 12


class Terminal(Console):
    """Stdout or stderr. Lines are wrapped only on a terminal or if COLUMNS is set."""

    def __init__(self, *, stderr: bool = False, quiet: bool = False) -> None:
        stream = sys.stderr if stderr else sys.stdout
        is_terminal = stream is not None and stream.isatty()
        # FORCE_COLOR asks for colours in notebooks, but rich would also animate there.
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
        return super().render_str(printable(text), **options)

    def notice(self, line: str, style: str = "") -> None:
        self.print(line, style=style, soft_wrap=True)

    def heading(self, title: str, rest: str = "") -> None:
        self.print(Text.assemble((printable(title), "bold"), printable(rest)), soft_wrap=True)

    def entry(self, title: str, text: str, style: str = "") -> None:
        """Print a title in the first column, and a text wrapped within the second."""
        width = max(20, self.width - _TITLE_CELLS)
        for line in textwrap.wrap(printable(text), width, break_on_hyphens=False) or [""]:
            head = f"{title:<{_TITLE_CELLS - 1}} "
            self.print(Text.assemble((head, "bold"), (line, style)), soft_wrap=True)
            title = ""

    def entries(
        self, title: str, lines: Sequence[str], number: int = 0, *, many: bool = False
    ) -> None:
        """Print a title and lines, and how many of `number` are left; `many` repeats the title."""
        for i, line in enumerate(lines):
            self.entry(title if many or not i else "", line)
        self.more(number - len(lines))

    def more(self, number: int) -> None:
        if number > 0:
            self.entry("", f"and {number:,} more; --json lists them all", style="dim")


def plain_table(*titles: str, left: Collection[str] = ("",)) -> Table:
    """Return an empty table. Its first column and the columns in `left` are left-aligned."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in titles:
        is_left = title in (titles[0], *left)
        table.add_column(title, justify="left" if is_left else "right")
    return table


def counts_line(counts: Mapping[str, int]) -> str:
    """Return counts as text: "3 junk, 1 not an image"."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
