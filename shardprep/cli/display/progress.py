"""Work while it runs: a bar on a terminal, a plain line now and then elsewhere; best on stderr."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from shardprep.cli.display.console import counted
from shardprep.errors import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from shardprep.writer.plan import BuildPlan
    from shardprep.writer.shard_plan import ShardPlan

_LINE_EVERY_S = 10.0


class Bar:
    """One bar at a time. It shows nothing until entered as a context."""

    def __init__(self, console: Console, *columns: ProgressColumn) -> None:
        """`columns` are what a terminal shows behind the description and the bar."""
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            *columns,
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._start_s = self._next_line = 0.0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def notice(self, line: str) -> None:
        """Print the line."""
        self._console.print(Text(printable(line)), soft_wrap=True)

    def show(self, what: str, total: int | None, completed: int, **fields: Any) -> None:
        """Begin a bar in place of the one before."""
        self.hide()
        self._start_s = time.monotonic()
        self._next_line = self._start_s + _LINE_EVERY_S
        self._task = self._progress.add_task(
            printable(what), total=total, completed=completed, **fields
        )

    def hide(self) -> None:
        """Take the present bar away."""
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None

    def rate(self, number: int) -> float:
        """Return so many things a second, since the bar began."""
        return number / max(time.monotonic() - self._start_s, 1e-9)

    def move(self, completed: int, line: Callable[[], str], **fields: Any) -> None:
        """Move the bar; `line` is what to print now and then where there is no terminal."""
        if self._task is not None:
            self._progress.update(self._task, completed=completed, **fields)
        now = time.monotonic()
        if not self._console.is_terminal and now >= self._next_line:
            self._next_line = now + _LINE_EVERY_S
            self.notice(line())


class BuildProgress(Bar):
    """A `shardprep.writer.build.Watcher` that shows images a second, time left, rejections."""

    def __init__(self, console: Console) -> None:
        """Count nothing yet."""
        super().__init__(
            console,
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:,.0f} images/s"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[rejected]}", style="yellow"),
        )
        self._total = self._num_done = self._num_new = self._num_rejected = 0

    def planned(self, plan: BuildPlan, shards: Sequence[ShardPlan], num_done: int) -> None:
        """Say what is to be done and start counting."""
        num_all = len(plan.shards)
        written = counted(num_all, "shard")
        labels = f"labels{' by' if plan.schema.target else ':'} {plan.labels_from}"
        self.notice(f"{plan.num_items:,} images to {written}, {labels}")
        num_items = sum(len(shard.items) for shard in shards)
        if len(shards) < num_all:
            self.notice(f"this part: {num_items:,} images, {len(shards):,} of the shards")
        for line in plan.findings:
            self.notice(line)
        if num_done:
            self.notice(f"going on with an unfinished build: {num_done:,} images are done")
        self._total, self._num_done = num_items, num_done
        self.show("encoding", num_items, num_done, rate=0.0, rejected="")

    def encoded(self, num_items: int, num_rejected: int) -> None:
        """Count items that are done."""
        self._num_new += num_items
        self._num_rejected += num_rejected
        rate = self.rate(self._num_new)
        rejected = f"{self._num_rejected:,} rejected" if self._num_rejected else ""
        done = self._num_done + self._num_new

        def line() -> str:
            left = (self._total - done) / rate
            text = f"{done:,} of {self._total:,} images, {rate:,.0f} images/s, {left:,.0f} s left"
            return f"{text}, {rejected}" if rejected else text

        self.move(done, line, rate=rate, rejected=rejected)


class ImageProgress(Bar):
    """A `shardprep.reporter.pixel_pass.Watcher` that shows images a second and time left."""

    def __init__(self, console: Console) -> None:
        """Count nothing yet."""
        super().__init__(
            console,
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:,.0f} images/s"),
            TimeRemainingColumn(),
        )
        self._total = self._num_done = 0

    def begin(self, num_images: int) -> None:
        """Start counting."""
        self._total, self._num_done = num_images, 0
        self.show("looking at pixels", num_images, 0, rate=0.0)

    def measured(self, num_images: int) -> None:
        """Count images that are done."""
        self._num_done += num_images
        rate = self.rate(self._num_done)

        def line() -> str:
            left = (self._total - self._num_done) / rate
            done = f"{self._num_done:,} of {self._total:,} images"
            return f"{done} looked at, {rate:,.0f} images/s, {left:,.0f} s left"

        self.move(self._num_done, line, rate=rate)


class ByteProgress(Bar):
    """A watcher of a download or a check: how many bytes, how fast, time left."""

    def __init__(self, console: Console) -> None:
        """Count nothing yet."""
        super().__init__(console, DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self._what = ""
        self._total: int | None = None
        self._num_before: int | None = None

    def begin(self, what: str, num_bytes: int | None) -> None:
        """Show a phase of its own, in place of the one before."""
        self.hide()
        self._what, self._total, self._num_before = what, num_bytes, None

    def progress(self, num_bytes: int) -> None:
        """Move the bar; the first report of a phase is where its rate is measured from."""
        if self._num_before is None or num_bytes < self._num_before:
            self.show(self._what, self._total, num_bytes)
            self._num_before = num_bytes
        num_new = num_bytes - self._num_before

        def line() -> str:
            rate, done = self.rate(num_new), f"{num_bytes / 1e6:,.0f}"
            speed = f"{rate / 1e6:,.1f} MB/s"
            if self._total is None:
                return f"{self._what}: {done} MB, {speed}"
            left = f", {(self._total - num_bytes) / rate:,.0f} s left" if rate > 0 else ""
            return f"{self._what}: {done} of {self._total / 1e6:,.0f} MB, {speed}{left}"

        self.move(num_bytes, line)
