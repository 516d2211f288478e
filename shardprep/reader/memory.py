"""How much memory is free for this process: the kernel's estimate, and a container's bound."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

_CGROUPS = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


def free_bytes(root: Path = Path("/")) -> int:
    """Return what can be filled without swapping or being ended; `root` is where /proc lies."""
    info = (root / "proc" / "meminfo").read_text()
    found = re.search(r"^MemAvailable:\s+(\d+) kB", info, re.MULTILINE)
    free = int(found[1]) * 1024 if found else 0
    for limit, usage in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # there is no such bound, or it is "max"
            bound = int((root / "sys/fs/cgroup" / limit).read_text())
            free = min(free, bound - int((root / "sys/fs/cgroup" / usage).read_text()))
    return max(0, free)
