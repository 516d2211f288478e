"""The console that all is printed on. Nothing that a file says can steer it.

Names, labels and reasons come from archives and datasets of others: a string is shown as it is,
with escapes for control characters, and is never read as rich's markup or for its emoji codes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rich.console import Console

from shardprep.errors import printable

if TYPE_CHECKING:
    from rich.text import Text

_UNWRAPPED_CELLS = 1 << 20
"""The width where there is no terminal: a line is one line, to be found by grep."""


class Terminal(Console):
    """Stdout or stderr, as wide as the terminal or $COLUMNS say, else without end."""

    def __init__(self, *, stderr: bool = False, quiet: bool = False) -> None:
        """Print to stderr, or to stdout; nothing at all where it is to be quiet."""
        super().__init__(stderr=stderr, quiet=quiet, highlight=False, markup=False, emoji=False)
        if not self.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
            self.width = _UNWRAPPED_CELLS

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string, or a cell of a table, as what is shown of it."""
        return super().render_str(printable(text), **options)
