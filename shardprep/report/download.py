"""A download while it runs: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from rich.console import Console

_LINE_EVERY_S = 10.0


class DownloadProgress:
    """A `DownloadWatcher` that shows what it is told on a console, best one for stderr."""

    def __init__(self, console: Console) -> None:
        """Show nothing until entered as a context."""
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._what = ""
        self._total: int | None = None
        self._start = 0.0
        self._num_before = 0
        self._next_line = 0.0

    def __enter__(self) -> Self:
        """Start the bar."""
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Take the bar away, whatever happened."""
        self._bar.stop()

    def notice(self, line: str) -> None:
        """Print the line."""
        self._console.print(escape(line), highlight=False, soft_wrap=True)

    def begin(self, what: str, num_bytes: int | None) -> None:
        """Show a phase of its own, in place of the one before."""
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None
        self._what, self._total = what, num_bytes
        self._next_line = time.monotonic() + _LINE_EVERY_S

    def progress(self, num_bytes: int) -> None:
        """Move the bar; the first report of a phase is where its rate is measured from."""
        now = time.monotonic()
        if self._task is None or num_bytes < self._num_before:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(self._what, total=self._total, completed=num_bytes)
            self._start, self._num_before = now, num_bytes
        self._bar.update(self._task, completed=num_bytes)
        if not self._console.is_terminal and now >= self._next_line:
            self._next_line = now + _LINE_EVERY_S
            self.notice(self._line(num_bytes, now))

    def _line(self, num_bytes: int, now: float) -> str:
        rate = (num_bytes - self._num_before) / max(now - self._start, 1e-9)
        done = f"{num_bytes / 1e6:,.0f}"
        if self._total is None:
            return f"{self._what}: {done} MB, {rate / 1e6:,.1f} MB/s"
        line = f"{self._what}: {done} of {self._total / 1e6:,.0f} MB, {rate / 1e6:,.1f} MB/s"
        left = f", {(self._total - num_bytes) / rate:,.0f} s left" if rate > 0 else ""
        return line + left
