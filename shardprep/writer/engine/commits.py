"""Shards are committed while the next ones are written: syncing and sending cost no worker's time.

A few at once, so that neither memory, nor the temporary folder, nor what is lost when a build
fails grows with their number.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Self

from shardprep.profiling import stage

if TYPE_CHECKING:
    from types import TracebackType

    from shardprep.writer.shard import ShardWriter

_AT_ONCE = 2
_LEAVE_S = 10.0
"""Seconds that running commits get to end when a build fails."""


class Commits:
    """A context: leaving it waits for all commits, and raises what went wrong with one."""

    def __init__(self) -> None:
        """Begin with none."""
        self._begun: deque[Future[None]] = deque()

    @stage("write")
    def add(self, writer: ShardWriter) -> None:
        """Begin to commit a shard that is full; it is no more the caller's to abandon.

        Raises:
            ShardprepError, OSError: an earlier one cannot be committed.

        """
        while len(self._begun) >= _AT_ONCE:
            self._begun.popleft().result()
        self._begun.append(_begin(writer))

    def __enter__(self) -> Self:
        return self

    @stage("write")
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            wait(self._begun, timeout=_LEAVE_S)
            return
        while self._begun:
            self._begun.popleft().result()


def _begin(writer: ShardWriter) -> Future[None]:
    future: Future[None] = Future()

    def run() -> None:
        try:
            try:
                writer.commit()
            finally:
                writer.abandon()
        except BaseException as error:  # the future raises it where it is waited for
            future.set_exception(error)
        else:
            future.set_result(None)

    # One that hangs in the network must not keep an interrupted program from ending: a daemon.
    threading.Thread(target=run, name="shardprep commit", daemon=True).start()
    return future
