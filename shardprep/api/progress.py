"""The progress of a command, as values for whoever wants to see it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardprep.writer.plan.plan import BuildPlan
    from shardprep.writer.plan.shard_plan import ShardPlan

_MEGABYTE = 1e6


@dataclass(frozen=True, slots=True)
class Progress:
    """One report: how far the work is, or a notice."""

    what: str = ""
    """The work that is going on, such as "encoding"; "" for a notice, and when it has ended."""
    num_done: int = 0
    """Images or bytes, those of earlier runs included."""
    total: int | None = None
    """Images or bytes of all this work; None: not known."""
    unit: Literal["images", "bytes", ""] = ""
    """"" for work that is not counted."""
    num_before: int = 0
    """Images or bytes, among `num_done`, that were done when this run began."""
    num_rejected: int = 0
    """Images that this run has rejected, of `num_done`."""
    notice: str = ""
    """One line about something worth knowing."""

    def follows(self, other: Progress) -> bool:
        """Tell whether this is a later report of the same work."""
        is_same = (self.what, self.total, self.unit) == (other.what, other.total, other.unit)
        return is_same and self.num_done >= other.num_done

    def rate(self, elapsed_s: float) -> float:
        """Return images or bytes a second of this run."""
        return (self.num_done - self.num_before) / max(elapsed_s, 1e-9)

    def in_words(self, elapsed_s: float) -> str:
        """Return the line of a log: how much of it is done, how fast, and the time left."""
        rate, left = self.rate(elapsed_s), ""
        if rate > 0 and self.total is not None:
            left = f", {(self.total - self.num_done) / rate:,.0f} s left"
        if self.unit == "images":
            rejected = f", {self.num_rejected:,} rejected" if self.num_rejected else ""
            done = f"{self.num_done:,} of {self.total or 0:,} images"
            return f"{done}, {rate:,.0f} images/s{left}{rejected}"
        if self.unit == "bytes":
            of = "" if self.total is None else f" of {self.total / _MEGABYTE:,.0f}"
            done = f"{self.num_done / _MEGABYTE:,.0f}{of} MB"
            return f"{self.what}: {done}, {rate / _MEGABYTE:,.1f} MB/s{left}"
        return self.what


Show = Callable[[Progress], object]
"""Takes each report, in the thread that the command runs in; what it raises ends the command."""


class Watch:
    """Makes reports of what builds, downloads and checks tell those who watch them."""

    def __init__(self, show: Show) -> None:
        """Let `show` take the reports."""
        self._show = show
        self._now = Progress()
        self._is_first = True

    def notice(self, line: str) -> None:
        """Report one line about something worth knowing."""
        self._show(Progress(notice=line))

    def doing(self, what: str) -> None:
        """Report work that is not counted; "" is its end."""
        self._now = Progress(what)
        self._show(self._now)

    def planned(self, plan: BuildPlan, shards: Sequence[ShardPlan], num_done: int) -> None:
        """Report what is to be built."""
        num_all = len(plan.shards)
        labels = f"labels{' by' if plan.schema.target else ':'} {plan.labels_from}"
        written = f"{num_all:,} shard{'' if num_all == 1 else 's'}"
        self.notice(f"{plan.num_items:,} images to {written}, {labels}")
        num_items = sum(len(shard.items) for shard in shards)
        if len(shards) < num_all:
            self.notice(f"this part: {num_items:,} images, {len(shards):,} of the shards")
        for line in plan.findings:
            self.notice(line)
        if num_done:
            self.notice(f"going on with an unfinished build: {num_done:,} images are done")
        self.count("encoding", num_items, num_done)

    def count(self, what: str, num_images: int, num_done: int = 0) -> None:
        """Report work on so many images, of which some are done."""
        self._now = Progress(what, num_done, num_images, "images", num_done)
        self._show(self._now)

    def encoded(self, num_items: int, num_rejected: int = 0) -> None:
        """Report images that are done."""
        old = self._now
        done, rejected = old.num_done + num_items, old.num_rejected + num_rejected
        self._now = Progress(old.what, done, old.total, "images", old.num_before, rejected)
        self._show(self._now)

    def begin(self, what: str, num_bytes: int | None) -> None:
        """Take the next work; the first number of bytes is where its rate is measured from."""
        self._now, self._is_first = Progress(what, 0, num_bytes, "bytes"), True

    def progress(self, num_bytes: int) -> None:
        """Report the bytes that are done; fewer than before where it started over."""
        old = self._now
        starts = self._is_first or num_bytes < old.num_before
        before, self._is_first = num_bytes if starts else old.num_before, False
        self._now = Progress(old.what, num_bytes, old.total, "bytes", before)
        self._show(self._now)


class PixelWatch:
    """Makes reports of what a pass over pixels tells."""

    def __init__(self, watch: Watch) -> None:
        """Let `watch` make them."""
        self._watch = watch

    def begin(self, num_images: int) -> None:
        """Report the number of images."""
        self._watch.count("looking at pixels", num_images)

    def measured(self, num_images: int) -> None:
        """Report images that are done."""
        self._watch.encoded(num_images)


class CopyWatch:
    """Makes reports of what a run tells that copies the records of datasets."""

    def __init__(self, watch: Watch) -> None:
        """Let `watch` make them."""
        self.notice, self.count, self.encoded = watch.notice, watch.count, watch.encoded

    def planned(self, plan: BuildPlan, shards: Sequence[ShardPlan], num_done: int) -> None:
        """Report what is to be copied."""
        num_all = len(shards)
        written = f"{num_all:,} shard{'' if num_all == 1 else 's'}"
        self.notice(f"{plan.num_items:,} images to {written}")
        if num_done:
            self.notice(f"going on with unfinished work: {num_done:,} images are done")
        self.count("copying", plan.num_items, num_done)


@contextlib.contextmanager
def watched(progress: Show | bool) -> Iterator[Watch]:  # noqa: FBT001 - the option of all commands
    """Give what makes the reports, and report the end; True shows them where this program runs."""
    with contextlib.ExitStack() as stack:
        if callable(progress):
            watch = Watch(progress)
        else:
            watch = Watch(stack.enter_context(_bar()) if progress else lambda _: None)
        yield watch
        watch.doing("")


def _bar() -> contextlib.AbstractContextManager[Show]:
    """Return a bar in the cell of a notebook, or on a terminal, or lines now and then."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if hasattr(shell, "kernel"):
        from shardprep.api.notebook_progress import Cell

        return Cell()
    from rich.console import Console

    from shardprep.api.terminal_progress import Bar

    return Bar(Console(stderr=True, highlight=False))
