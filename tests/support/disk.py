"""A disk that nobody waits for."""

from __future__ import annotations

import os


def skip_fsync() -> None:
    """Let `os.fsync` do nothing: only a power cut could show what it does, and none is tried.

    A build calls it 27 times, and waits each time.
    """

    def nothing(fd: object) -> None:
        del fd

    os.fsync = nothing
