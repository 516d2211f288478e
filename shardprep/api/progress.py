"""The progress of a command, as values for whoever wants to see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardprep.progress import Unit

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
    unit: Unit = ""
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

    def notice(self, line: str) -> None:
        """Report one line about something worth knowing."""
        self._show(Progress(notice=line))

    def start(
        self, what: str, total: int | None = None, unit: Unit = "", num_done: int = 0
    ) -> None:
        """Report a phase, of which `num_done` was done before."""
        self._now = Progress(what, num_done, total, unit, num_done)
        self._show(self._now)

    def advance(self, number: int, num_rejected: int = 0) -> None:
        """Report images or bytes that are done; the rate is measured anew after a loss."""
        now = self._now
        num_done = now.num_done + number
        self._now = replace(
            now,
            num_done=num_done,
            num_before=min(now.num_before, num_done),
            num_rejected=now.num_rejected + num_rejected,
        )
        self._show(self._now)

    def finish(self) -> None:
        """Report the end of a phase."""
        self._now = Progress()
        self._show(self._now)
