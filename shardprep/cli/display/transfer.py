"""Work that is measured in bytes while it runs: how many, how fast, time left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    DownloadColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from shardprep.cli.display.bar import Bar

if TYPE_CHECKING:
    from rich.console import Console


class ByteProgress(Bar):
    """Shows what it is told of a download or a check."""

    def __init__(self, console: Console) -> None:
        """Count nothing yet."""
        super().__init__(
            console,
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        self._what = ""
        self._total: int | None = None
        self._num_before: int | None = None

    def begin(self, what: str, num_bytes: int | None) -> None:
        """Show a phase of its own, in place of the one before."""
        self.hide()
        self._what, self._total, self._num_before = what, num_bytes, None

    def progress(self, num_bytes: int) -> None:
        """Move the bar; the first report of a phase is where its rate is measured from."""
        before = self._num_before
        if before is None or num_bytes < before:
            self.show(self._what, self._total, num_bytes)
            before = self._num_before = num_bytes
        new = num_bytes - before
        self.move(num_bytes, lambda: self._line(num_bytes, new))

    def _line(self, num_bytes: int, num_new: int) -> str:
        rate = num_new / max(time.monotonic() - self.start_s, 1e-9)
        done = f"{num_bytes / 1e6:,.0f}"
        if self._total is None:
            return f"{self._what}: {done} MB, {rate / 1e6:,.1f} MB/s"
        line = f"{self._what}: {done} of {self._total / 1e6:,.0f} MB, {rate / 1e6:,.1f} MB/s"
        left = f", {(self._total - num_bytes) / rate:,.0f} s left" if rate > 0 else ""
        return line + left
