"""How many processors this process may use: what it is bound to, and what its cgroups grant it."""

from __future__ import annotations

import math
import os
from pathlib import Path, PurePosixPath

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


def usable_cores(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUPS) -> int:
    """Return how many processes can run at once, at least 1.

    A container's quota (Docker's --cpus, Kubernetes' limits.cpu) counts, rounded up; plain
    `os.cpu_count` would start 64 workers in a container that may use two cores of 64.

    Args:
        cgroups: where the cgroup file systems are mounted.
        own: the list of this process's cgroups (cgroups(7)).

    """
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, math.ceil(min(bound or 1, _quota(cgroups, own))))


def _quota(cgroups: Path, own: Path) -> float:
    """Return the smallest quota of this process's cgroups and those above them, in cores."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return math.inf
    quotas = [math.inf]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = cgroups / controllers if controllers else cgroups
        inner = PurePosixPath(path.lstrip("/"))
        # In a container the path is often that of the host: its own folder is then the root.
        quotas += [
            _read(root / folder, is_v2=not controllers) for folder in (inner, *inner.parents)
        ]
    return min(quotas)


def _read(folder: Path, *, is_v2: bool) -> float:
    """Return the quota of one cgroup in cores (kernel documentation, cgroup-v2 and cpu v1)."""
    try:
        if is_v2:
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        return math.inf if quota == "max" or int(quota) <= 0 else int(quota) / int(period)
    except (OSError, ValueError):
        return math.inf
