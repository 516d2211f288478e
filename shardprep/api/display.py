"""Show progress: in a notebook cell as HTML, on a terminal as a bar, otherwise as lines."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Iterator
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from shardprep.errors import printable
from shardprep.progress import Progress, Show, Watch

if TYPE_CHECKING:
    from rich import progress as rich
    from rich.console import Console

_EVERY_S = 0.5
"""Seconds between updates of a cell; each update is a message to the notebook."""
_LINE_EVERY_S = 10.0
_MOST_NOTICES = 20


@contextlib.contextmanager
def watched(progress: Show | bool) -> Iterator[Watch]:  # noqa: FBT001 - the option of all commands
    """Yield a `Watch` that calls `progress`; for True it shows a bar, for False only warnings."""
    with contextlib.ExitStack() as stack:
        if callable(progress):
            watch = Watch(progress)
        else:
            watch = Watch(stack.enter_context(_bar()) if progress else _advise)
        yield watch
        watch.finish()


def _advise(now: Progress) -> None:
    if now.notice.startswith("warning: "):
        from shardprep.reader.config import warn

        warn(now.notice.removeprefix("warning: "))


def _bar() -> contextlib.AbstractContextManager[Show]:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if hasattr(shell, "kernel"):
        return Cell()
    from rich.console import Console

    return Bar(Console(stderr=True, highlight=False))


class Cell:
    """Shows progress below a notebook cell: the last notices, a bar and a line of text."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._notices: deque[str] = deque(maxlen=_MOST_NOTICES)
        self._last = Progress()
        self._start_s = self._next_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._draw()

    def __call__(self, now: Progress) -> None:
        if now.notice:
            self._notices.append(now.notice)
        elif now.what:
            if not now.follows(self._last):
                self._start_s, self._next_s = time.monotonic(), 0.0
            self._last = now
        if time.monotonic() >= self._next_s:
            self._draw()

    def _draw(self) -> None:
        # A notebook kernel always has IPython; it is not a dependency of shardprep.
        ipython: Any = import_module("IPython.display")

        self._next_s = time.monotonic() + _EVERY_S
        picture = ipython.HTML(self.html())
        if self._handle is None:
            self._handle = ipython.display(picture, display_id=True)
        else:
            self._handle.update(picture)

    def html(self) -> str:
        lines = [f"<div>{escape(printable(line))}</div>" for line in self._notices]
        now = self._last
        if now.what:
            of = "" if now.total is None else f' max="{max(now.total, 1)}" value="{now.num_done}"'
            text = escape(printable(now.in_words(time.monotonic() - self._start_s)))
            bar = f"<progress{of}></progress> " if now.unit else ""
            lines.append(f"<div>{bar}{text}</div>")
        return "".join(lines)


class Bar:
    """Shows one bar at a time until the context ends; if not on a terminal, a line every 10 s."""

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
        from rich import progress as rich

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
        from rich.text import Text

        self._console.print(Text(printable(line)), soft_wrap=True)


def _columns(unit: str) -> tuple[rich.ProgressColumn, ...]:
    from rich import progress as rich

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
