"""A build while it runs: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from rich.console import Console

    from shardprep.chunk import Outcome
    from shardprep.prepare import BuildPlan

_LINE_EVERY_S = 10.0


class BuildProgress:
    """A `Watcher` that shows what it is told on a console, best one for stderr."""

    def __init__(self, console: Console) -> None:
        """Show nothing until entered as a context."""
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:,.0f} images/s"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[rejected]}", style="yellow"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._start = 0.0
        self._next_line = 0.0
        self._total = 0
        self._num_done = 0
        self._num_new = 0
        self._num_rejected = 0

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

    def planned(self, plan: BuildPlan, num_done: int) -> None:
        """Say what is to be done and start counting."""
        shards = f"{len(plan.shards):,} {'shard' if len(plan.shards) == 1 else 'shards'}"
        self.notice(f"{plan.num_items:,} images to {shards}, labels by {plan.labels_from}")
        for line in plan.findings:
            self.notice(line)
        if num_done:
            self.notice(f"going on with an unfinished build: {num_done:,} images are done")
        self._total, self._num_done = plan.num_items, num_done
        self._start = time.monotonic()
        self._next_line = self._start + _LINE_EVERY_S
        self._task = self._bar.add_task(
            "encoding", total=plan.num_items, completed=num_done, rate=0.0, rejected=""
        )

    def encoded(self, outcomes: tuple[Outcome, ...]) -> None:
        """Count the items of a chunk."""
        self._num_new += len(outcomes)
        self._num_rejected += sum(bool(outcome.kind) for outcome in outcomes)
        now = time.monotonic()
        rate = self._num_new / max(now - self._start, 1e-9)
        rejected = f"{self._num_rejected:,} rejected" if self._num_rejected else ""
        done = self._num_done + self._num_new
        if self._task is not None:
            self._bar.update(self._task, completed=done, rate=rate, rejected=rejected)
        if not self._console.is_terminal and now >= self._next_line:
            self._next_line = now + _LINE_EVERY_S
            left = (self._total - done) / rate
            line = f"{done:,} of {self._total:,} images, {rate:,.0f} images/s, {left:,.0f} s left"
            self.notice(f"{line}, {rejected}" if rejected else line)
