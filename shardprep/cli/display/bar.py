"""A bar on a terminal, a plain line now and then elsewhere; best on stderr."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.progress import Progress, ProgressColumn, TaskID
from rich.text import Text

from shardprep.errors import printable

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, Self

    from rich.console import Console

_LINE_EVERY_S = 10.0


class Bar:
    """One bar at a time. It shows nothing until entered as a context."""

    def __init__(self, console: Console, *columns: ProgressColumn) -> None:
        """`columns` are what a terminal shows of it."""
        self._console = console
        is_terminal = console.is_terminal
        self._progress = Progress(
            *columns, console=console, transient=True, disable=not is_terminal
        )
        self._task: TaskID | None = None
        self._next_line = 0.0
        self.start_s = 0.0
        """When the bar began, on the monotonic clock."""

    def __enter__(self) -> Self:
        """Start the bar."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Take the bar away, whatever happened."""
        self._progress.stop()

    def notice(self, line: str) -> None:
        """Print the line."""
        self._console.print(Text(printable(line)), soft_wrap=True)

    def show(self, what: str, total: int | None, completed: int, **fields: Any) -> None:
        """Begin a bar in place of the one before."""
        self.hide()
        self.start_s = time.monotonic()
        self._next_line = self.start_s + _LINE_EVERY_S
        self._task = self._progress.add_task(
            printable(what), total=total, completed=completed, **fields
        )

    def hide(self) -> None:
        """Take the present bar away."""
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None

    def move(self, completed: int, line: Callable[[], str], **fields: Any) -> None:
        """Move the bar; `line` is what to print now and then where there is no terminal."""
        if self._task is not None:
            self._progress.update(self._task, completed=completed, **fields)
        now = time.monotonic()
        if not self._console.is_terminal and now >= self._next_line:
            self._next_line = now + _LINE_EVERY_S
            self.notice(line())
