"""Cores and memory that this process may use: affinity, the kernel, and limits of its cgroups.

A cgroup limits its members and those of all cgroups below it (Docker, Kubernetes, systemd and
Slurm use them), so the tightest limit from the process's own cgroup up to the root counts.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path("/")


def usable_cores(root: Path = _ROOT) -> int:
    """Return how many processes or threads can run at once, at least 1.

    A quota (Docker's --cpus, Kubernetes' limits.cpu) counts, rounded up; plain `os.cpu_count`
    would start 64 workers in a container that may use two cores of 64. `root` is where /proc and
    /sys lie.
    """
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quotas = []
    for folder, is_v2 in _cgroups(root, "cpu"):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # none, or it is "max"
            if is_v2:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota = (folder / "cpu.cfs_quota_us").read_text()
                period = (folder / "cpu.cfs_period_us").read_text()
            if int(quota) > 0:
                quotas.append(int(quota) / int(period))
    return max(1, math.ceil(min(bound or 1, *quotas, math.inf)))


def address_space_bytes() -> float:
    """Return the limit of the address space of this process (`ulimit -v`); infinity without one."""
    if resource is None:
        return math.inf
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return math.inf if limit == resource.RLIM_INFINITY else limit


def free_bytes(root: Path = _ROOT) -> int:
    """Return the bytes that can be filled without swapping or being killed.

    The kernel's estimate for the machine, or what the tightest cgroup has left; files that a
    cgroup holds in the page cache without using them are counted as free, as the kernel does. 0
    where the kernel gives no estimate. `root` is where /proc and /sys lie.
    """
    with contextlib.suppress(OSError):
        info = (root / "proc/meminfo").read_text()
        found = re.search(r"^MemAvailable:\s+(\d+) kB", info, re.MULTILINE)
        free = [int(found[1]) * 1024 if found else 0]
        for folder, is_v2 in _cgroups(root, "memory"):
            limit, usage, cached = _MEMORY_V2 if is_v2 else _MEMORY_V1
            with contextlib.suppress(OSError, ValueError):  # there is no limit, or it is "max"
                left = int((folder / limit).read_text()) - int((folder / usage).read_text())
                free.append(left + _value(folder / "memory.stat", cached))
        return max(0, min(free))
    return 0


_MEMORY_V2 = ("memory.max", "memory.current", "inactive_file")
_MEMORY_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _value(path: Path, key: str) -> int:
    """Return a value of a file of "key number" lines, 0 where there is none."""
    with contextlib.suppress(OSError):
        found = re.search(rf"^{key} (\d+)$", path.read_text(), re.MULTILINE)
        return int(found[1]) if found else 0
    return 0


def _cgroups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of the process's cgroups and of those above, and whether each is v2.

    `cgroups(7)`: a line of /proc/self/cgroup is "hierarchy:controllers:path"; v2 has no
    controllers.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mounted = root / "sys/fs/cgroup"
        # v1 is mounted under the list of its controllers, with links of the single names beside
        # it; v2 at the top, or beside v1 under "unified".
        tops = (
            [mounted / controllers, mounted / controller]
            if controllers
            else [mounted, mounted / "unified"]
        )
        inner = PurePosixPath(path.lstrip("/"))
        # In a container the path is often that of the host: its own folder is then the root.
        for top in dict.fromkeys(tops):
            for folder in (inner, *inner.parents):
                yield top / folder, not controllers
