"""A build while it runs: images a second, time left, rejections."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from shardprep.report.bar import Bar

if TYPE_CHECKING:
    from rich.console import Console

    from shardprep.chunk import Outcome
    from shardprep.prepare import BuildPlan


class BuildProgress(Bar):
    """A `shardprep.build.Watcher` that shows what it is told."""

    def __init__(self, console: Console) -> None:
        """Count nothing yet."""
        super().__init__(
            console,
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:,.0f} images/s"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[rejected]}", style="yellow"),
        )
        self._total = 0
        self._num_done = 0
        self._num_new = 0
        self._num_rejected = 0

    def planned(self, plan: BuildPlan, num_done: int) -> None:
        """Say what is to be done and start counting."""
        shards = f"{len(plan.shards):,} {'shard' if len(plan.shards) == 1 else 'shards'}"
        self.notice(f"{plan.num_items:,} images to {shards}, labels by {plan.labels_from}")
        for line in plan.findings:
            self.notice(line)
        if num_done:
            self.notice(f"going on with an unfinished build: {num_done:,} images are done")
        self._total, self._num_done = plan.num_items, num_done
        self.show("encoding", plan.num_items, num_done, rate=0.0, rejected="")

    def encoded(self, outcomes: tuple[Outcome, ...]) -> None:
        """Count the items of a chunk."""
        self._num_new += len(outcomes)
        self._num_rejected += sum(bool(outcome.kind) for outcome in outcomes)
        rate = self._num_new / max(time.monotonic() - self.start_s, 1e-9)
        rejected = f"{self._num_rejected:,} rejected" if self._num_rejected else ""
        done = self._num_done + self._num_new

        def line() -> str:
            left = (self._total - done) / rate
            text = f"{done:,} of {self._total:,} images, {rate:,.0f} images/s, {left:,.0f} s left"
            return f"{text}, {rejected}" if rejected else text

        self.move(done, line, rate=rate, rejected=rejected)
