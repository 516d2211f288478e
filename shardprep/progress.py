"""Protocol for progress reports of long work.

Long work gets a `Watcher`. The work calls `start` at the beginning of each phase, `advance` during
the phase, and `notice` for a line of text. `shardprep.api.progress.Watch` implements the protocol
and turns the calls into the values that users see.
"""

from __future__ import annotations

from typing import Literal, Protocol

Unit = Literal["images", "bytes", ""]
"""What a phase counts; "" if it counts nothing."""


class Watcher(Protocol):
    """Receiver of progress reports. It may raise an exception to end the work."""

    def notice(self, line: str) -> None:
        pass

    def start(
        self, what: str, total: int | None = None, unit: Unit = "", num_done: int = 0
    ) -> None:
        """Begin a phase such as "encoding"; the previous phase ends.

        `num_done` of the `total` images or bytes (None: unknown) were done by an earlier run.
        """

    def advance(self, number: int, num_rejected: int = 0) -> None:
        """Report that `number` more images or bytes are done, `num_rejected` of them rejected.

        After lost work, for example a download that starts again, `number` is negative.
        """

    def finish(self) -> None:
        """End the phase. Nothing is shown until the next phase."""
