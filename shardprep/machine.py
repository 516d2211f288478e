"""Cores and memory that this process may use, from CPU affinity, the kernel and cgroup limits.

Docker, Kubernetes, systemd and Slurm use cgroups. A cgroup limits the processes in it and in all
cgroups below it, so the tightest limit from the process's own cgroup up to the root applies.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None  # type: ignore[assignment]

_ROOT = Path("/")
_LEAST_ADDRESS_SPACE = 384 << 20


def usable_cores(root: Path = _ROOT) -> int:
    """Return the number of processes or threads that can run at once, at least 1.

    CPU quotas (Docker's --cpus, Kubernetes' limits.cpu) count, rounded up: `os.cpu_count` would
    start 64 workers in a container that may use 2 cores. `root` contains /proc and /sys.
    """
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quotas = []
    for folder, is_v2 in _cgroups(root, "cpu"):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # no file, or "max"
            if is_v2:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota = (folder / "cpu.cfs_quota_us").read_text()
                period = (folder / "cpu.cfs_period_us").read_text()
            if int(quota) > 0:
                quotas.append(int(quota) / int(period))
    return max(1, math.ceil(min(bound or 1, *quotas, math.inf)))


def check_address_space() -> None:
    """Raise MemoryError if the address space (`ulimit -v`) is limited to less than 384 MiB.

    OpenBLAS and Arrow may abort the process if they cannot start a thread.
    """
    if resource is not None:
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY and limit < _LEAST_ADDRESS_SPACE:
            raise MemoryError("the address space is below 384 MiB: raise its limit (ulimit -v)")


@contextlib.contextmanager
def limited_memory(num_bytes: int) -> Iterator[None]:
    """Limit the memory that this process may add in the block; 0 means no limit. Linux only."""
    status = Path("/proc/self/status")
    if not num_bytes or not status.exists() or resource is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    data_bytes = int(status.read_text().partition("VmData:")[2].split()[0]) << 10
    limit = data_bytes + num_bytes
    if before[0] == resource.RLIM_INFINITY or limit < before[0]:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def free_bytes(root: Path = _ROOT) -> int:
    """Return the bytes that this process can use without swapping or being killed; 0 if unknown.

    The result is the kernel's estimate for the machine, or the free memory of the tightest cgroup
    if that is less. Inactive files in the page cache count as free. `root` contains /proc and /sys.
    """
    with contextlib.suppress(OSError):
        info = (root / "proc/meminfo").read_text()
        available = re.search(r"^MemAvailable:\s+(\d+) kB", info, re.MULTILINE)
        free = [int(available[1]) * 1024 if available else 0]
        for folder, is_v2 in _cgroups(root, "memory"):
            limit, usage, cached = _MEMORY_V2 if is_v2 else _MEMORY_V1
            with contextlib.suppress(OSError, ValueError):  # no file, or "max"
                left = int((folder / limit).read_text()) - int((folder / usage).read_text())
                free.append(left + _value(folder / "memory.stat", cached))
        return max(0, min(free))
    return 0


_MEMORY_V2 = ("memory.max", "memory.current", "inactive_file")
_MEMORY_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _value(path: Path, key: str) -> int:
    with contextlib.suppress(OSError):
        match = re.search(rf"^{key} (\d+)$", path.read_text(), re.MULTILINE)
        return int(match[1]) if match else 0
    return 0


def _cgroups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the possible folders of the process's cgroup and its parents, and whether each is v2.

    Lines of /proc/self/cgroup are "hierarchy:controllers:path". For v2, `controllers` is empty.
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
        # v1 is mounted under the list of its controllers, with a link for each single name; v2 at
        # the top, or together with v1 under "unified".
        tops = (
            [mounted / controllers, mounted / controller]
            if controllers
            else [mounted, mounted / "unified"]
        )
        inner = PurePosixPath(path.lstrip("/"))
        # In a container, `inner` is often a path of the host, and the container's cgroup is `top`.
        for top in dict.fromkeys(tops):
            for folder in (inner, *inner.parents):
                yield top / folder, not controllers
