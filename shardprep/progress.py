"""The protocol by which long work reports its progress.

Work that takes seconds or more gets a `Watcher`. It calls `start` once for each phase, `advance`
while the phase runs, and `notice` for a line of text. `shardprep.api.progress.Watch` implements the
protocol and turns the calls into the values that users see.
"""

from __future__ import annotations

from typing import Literal, Protocol

Unit = Literal["images", "bytes", ""]
"""What a phase counts; "" if it counts nothing."""


class Watcher(Protocol):
    """Receiver of progress reports. An exception that it raises ends the work."""

    def notice(self, line: str) -> None:
        """Report one line of text that the user should see."""

    def start(
        self, what: str, total: int | None = None, unit: Unit = "", num_done: int = 0
    ) -> None:
        """Begin a phase, which ends the previous one.

        Args:
            what: the phase, such as "encoding".
            total: number of images or bytes; None if unknown.
            unit: what `total` and `advance` count.
            num_done: images or bytes that were done by an earlier run.

        """

    def advance(self, number: int, num_rejected: int = 0) -> None:
        """Report that `number` more images or bytes are done, `num_rejected` of them rejected.

        A negative number means that work was lost, for example if a download starts again.
        """

    def finish(self) -> None:
        """End the phase: nothing is shown until the next one."""
