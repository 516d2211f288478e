"""What an item and a worker may cost; the operating system holds them to it.

A decoder that never comes back, or asks for all memory there is, costs one image, not the build.
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
import signal
from dataclasses import dataclass

_PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """0 is no limit."""

    item_s: float = 0.0
    """Seconds of the wall for reading, decoding and encoding one item."""
    worker_bytes: int = 0
    """Memory that a worker may allocate."""


def hold_memory(num_bytes: int) -> None:
    """Let allocations beyond so many bytes fail in this process, which raises `MemoryError`."""
    if num_bytes:
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        if most == resource.RLIM_INFINITY or num_bytes < most:
            resource.setrlimit(resource.RLIMIT_DATA, (num_bytes, most))


def start_clock(seconds: float) -> None:
    """End this process by SIGALRM unless the clock is started anew in time; 0 stops it.

    A signal without a handler ends a process also inside a C library that never returns.
    """
    signal.setitimer(signal.ITIMER_REAL, seconds)


def die_with_parent() -> None:
    """Let the system end this process when its parent ends, even by SIGKILL (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def cause_of_death(exit_code: int | None) -> str:
    """Return in words how a process ended: "killed by SIGSEGV", "exit code 1"."""
    if exit_code is None or exit_code >= 0:
        return f"exit code {exit_code}"
    return f"killed by {signal.Signals(-exit_code).name}"
