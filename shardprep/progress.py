"""Progress reports of long work, passed to a function of the caller.

Long work calls a `Watch`: `start` at the beginning of each phase, `advance` during the phase, and
`notice` for a line of text. Each call passes a `Progress` to the function `show` of the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

_MEGABYTE = 1e6

Unit = Literal["images", "bytes", ""]


@dataclass(frozen=True, slots=True)
class Progress:
    """A report: the state of a phase, or a notice."""

    what: str = ""
    """The phase, such as "encoding"; "" for a notice and after the end of a phase."""
    num_done: int = 0
    """Number of images or bytes done, including earlier runs."""
    total: int | None = None
    """Number of images or bytes of the phase; None if unknown."""
    unit: Unit = ""
    """What `num_done` and `total` count; "" if the phase counts nothing."""
    num_before: int = 0
    """Number of images or bytes done by earlier runs."""
    num_rejected: int = 0
    """Number of images rejected by this run."""
    notice: str = ""
    """A line of text that the user should see."""

    def follows(self, other: Progress) -> bool:
        """Return True if `other` is an earlier or equal state of the same phase."""
        is_same = (self.what, self.total, self.unit) == (other.what, other.total, other.unit)
        return is_same and self.num_done >= other.num_done

    def rate(self, elapsed_s: float) -> float:
        return (self.num_done - self.num_before) / max(elapsed_s, 1e-9)

    def in_words(self, elapsed_s: float) -> str:
        """Return a line for a log: amount done, rate and time left, or only the phase's name."""
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
"""Function that gets each report, in the thread of the command. Its exceptions end the command."""


class Watch:
    """Reporter of long work: each call passes a `Progress` to `show`, whose errors end the work."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._now = Progress()

    def notice(self, line: str) -> None:
        self._show(Progress(notice=line))

    def start(
        self, what: str, total: int | None = None, unit: Unit = "", num_done: int = 0
    ) -> None:
        """End the previous phase and begin the phase `what`, such as "encoding".

        `total` counts images or bytes, None if unknown. Earlier runs did `num_done` of them.
        """
        self._now = Progress(what, num_done, total, unit, num_done)
        self._show(self._now)

    def advance(self, number: int, num_rejected: int = 0) -> None:
        """Report that `number` more images or bytes are done, `num_rejected` of them rejected.

        After lost work, for example a download that starts again, `number` is negative.
        """
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
        """End the phase: show an empty `Progress`."""
        self._now = Progress()
        self._show(self._now)
