"""Progress on a console: a bar on a terminal, otherwise a line every ten seconds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from rich import progress as rich
from rich.text import Text

from shardprep.api.progress import Progress
from shardprep.errors import printable

if TYPE_CHECKING:
    from rich.console import Console

_LINE_EVERY_S = 10.0


def _columns(unit: str) -> tuple[rich.ProgressColumn, ...]:
    if unit == "images":
        return (
            rich.BarColumn(),
            rich.MofNCompleteColumn(),
            rich.TextColumn("{task.fields[rate]:,.0f} images/s"),
            rich.TimeRemainingColumn(),
            rich.TextColumn("{task.fields[rejected]}", style="yellow"),
        )
    if unit == "bytes":
        speed = rich.TransferSpeedColumn()
        return rich.BarColumn(), rich.DownloadColumn(), speed, rich.TimeRemainingColumn()
    return ()


class Bar:
    """Shows reports of progress as one bar at a time; leaving the context hides the bar."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: rich.Progress | None = None
        self._last = Progress()
        self._start_s = self._next_line = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._hide()

    def __call__(self, now: Progress) -> None:
        """Show a report."""
        if now.notice:
            self._say(now.notice)
            return
        if not now.follows(self._last):
            self._begin(now)
        self._last = now
        if self._bar is not None:
            rejected = f"{now.num_rejected:,} rejected" if now.num_rejected else ""
            rate = now.rate(time.monotonic() - self._start_s)
            task = self._bar.task_ids[0]
            self._bar.update(task, completed=now.num_done, rate=rate, rejected=rejected)
        elif now.unit and not self._console.is_terminal and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_EVERY_S
            self._say(now.in_words(time.monotonic() - self._start_s))

    def _begin(self, now: Progress) -> None:
        self._hide()
        self._start_s = time.monotonic()
        self._next_line = self._start_s + _LINE_EVERY_S
        if not now.what or not self._console.is_terminal:
            return
        head = () if now.unit else (rich.SpinnerColumn(),)
        text = rich.TextColumn("{task.description}", markup=False)
        columns = (*head, text, *_columns(now.unit))
        self._bar = rich.Progress(*columns, console=self._console, transient=True)
        self._bar.start()
        self._bar.add_task(
            printable(now.what), total=now.total, completed=now.num_before, rate=0.0, rejected=""
        )

    def _hide(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _say(self, line: str) -> None:
        self._console.print(Text(printable(line)), soft_wrap=True)
