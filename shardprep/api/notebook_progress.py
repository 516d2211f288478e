"""Progress in a notebook cell, as HTML without scripts or widgets."""

from __future__ import annotations

import time
from collections import deque
from html import escape
from importlib import import_module
from typing import Any, Self

from shardprep.api.progress import Progress
from shardprep.errors import printable

_EVERY_S = 0.5
"""Seconds between two updates; each update is a message to the notebook."""
_MOST_NOTICES = 20


class Cell:
    """Shows reports of progress below a cell: notices, a bar and a line."""

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
        """Show a report."""
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
        """Return the current content of the output area."""
        lines = [f"<div>{escape(printable(line))}</div>" for line in self._notices]
        now = self._last
        if now.what:
            of = "" if now.total is None else f' max="{max(now.total, 1)}" value="{now.num_done}"'
            text = escape(printable(now.in_words(time.monotonic() - self._start_s)))
            bar = f"<progress{of}></progress> " if now.unit else ""
            lines.append(f"<div>{bar}{text}</div>")
        return "".join(lines)
