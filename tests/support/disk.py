"""A disk that nobody waits for."""

from __future__ import annotations

import os


def skip_fsync() -> None:
    """Let `os.fsync` and `os.sync` do nothing: only a power cut could show what they do.

    None is tried. A build calls the first 27 times, and waits each time.
    """

    def nothing(fd: object = None) -> None:
        del fd

    os.fsync = os.sync = nothing
