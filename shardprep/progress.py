"""Protocol for progress reports of long work.

Work that takes seconds or more gets a `Watcher`. It calls `start` once for each phase, `advance`
while the phase runs, and `notice` for a line of text. `shardprep.api.progress.Watch` implements the
protocol and turns the calls into the values that users see.
"""

from __future__ import annotations

from typing import Literal, Protocol

Unit = Literal["images", "bytes", ""]
"""What a phase counts, or ""."""


class Watcher(Protocol):
    """Receiver of progress reports. It may raise an exception to end the work."""

    def notice(self, line: str) -> None:
        pass

    def start(
        self, what: str, total: int | None = None, unit: Unit = "", num_done: int = 0
    ) -> None:
        """Begin a phase such as "encoding", which ends the previous one.

        `num_done` of its `total` images or bytes (None: unknown) were done by an earlier run.
        """

    def advance(self, number: int, num_rejected: int = 0) -> None:
        """Report that `number` more images or bytes are done, `num_rejected` of them rejected.

        After lost work, for example a download that starts again, `number` is negative.
        """

    def finish(self) -> None:
        """End the phase; nothing is shown until the next one."""
