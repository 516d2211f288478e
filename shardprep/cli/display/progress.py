"""A build while it runs: images a second, time left, rejections."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from shardprep.cli.display.bar import Bar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from shardprep.writer.plan import BuildPlan
    from shardprep.writer.shard import ShardTask


class BuildProgress(Bar):
    """A `shardprep.writer.build.Watcher` that shows what it is told."""

    def __init__(self, console: Console) -> None:
        """Count nothing yet."""
        super().__init__(
            console,
            TextColumn("{task.description}", markup=False),
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

    def planned(self, plan: BuildPlan, shards: Sequence[ShardTask], num_done: int) -> None:
        """Say what is to be done and start counting."""
        num_all = len(plan.shards)
        written = f"{num_all:,} {'shard' if num_all == 1 else 'shards'}"
        self.notice(f"{plan.num_items:,} images to {written}, labels by {plan.labels_from}")
        num_items = sum(len(shard.plan.items) for shard in shards)
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
        rate = self._num_new / max(time.monotonic() - self.start_s, 1e-9)
        rejected = f"{self._num_rejected:,} rejected" if self._num_rejected else ""
        done = self._num_done + self._num_new

        def line() -> str:
            left = (self._total - done) / rate
            text = f"{done:,} of {self._total:,} images, {rate:,.0f} images/s, {left:,.0f} s left"
            return f"{text}, {rejected}" if rejected else text

        self.move(done, line, rate=rate, rejected=rejected)
