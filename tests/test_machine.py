"""Cores and memory of made machines: affinity, and limits of cgroups of both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardprep.machine import free_bytes, usable_cores
from tests.support.builders import write

ALL = len(os.sched_getaffinity(0))
FREE = 4096 << 10
"""Bytes that the kernel of a made machine estimates."""
SLURM = "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0"


def machine(root: Path, own: str, files: dict[str, str]) -> Path:
    """Return the folder of a machine with these cgroup files, and this list of own cgroups."""
    write(root / "proc/meminfo", b"MemTotal: 9999 kB\nMemAvailable:    4096 kB\n")
    write(root / "proc/self/cgroup", own.encode())
    for name, text in files.items():
        write(root / "sys/fs/cgroup" / name, text.encode())
    return root


def v1_cpu(folder: str, quota: str) -> dict[str, str]:
    return {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": "100000\n"}


def v1_memory(folder: str, limit: str, usage: str) -> dict[str, str]:
    return {f"{folder}/memory.limit_in_bytes": limit, f"{folder}/memory.usage_in_bytes": usage}


def v2_memory(folder: str, limit: str, usage: str) -> dict[str, str]:
    return {f"{folder}memory.max": limit, f"{folder}memory.current": usage}


def test_affinity_is_respected() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("0::/pod/one\n", {"pod/one/cpu.max": "100000 100000\n"}),
        ("0::/pod/one\n", {"pod/one/cpu.max": "max 100000\n", "pod/cpu.max": "50000 100000\n"}),
        ("0::/of/the/host\n", {"cpu.max": "100000 100000\n"}),
        (f"0::{SLURM}\n", {"system.slice/slurmstepd.scope/job_7/cpu.max": "100000 100000"}),
        ("4:cpu,cpuacct:/box\n3:memory:/box\n", v1_cpu("cpu,cpuacct/box", "100000\n")),
        ("4:cpu,cpuacct:/box\n", v1_cpu("cpu/box", "100000\n")),
        ("4:cpu,cpuacct:/a/b\n0::/a/b\n", v1_cpu("cpu,cpuacct/a", "90000\n")),
        ("1:name=systemd:/a\n0::/a\n", {"unified/a/cpu.max": "100000 100000\n"}),
        ("0::/\n", {"cpu.max": "20000 100000\n"}),
    ],
    ids=[
        "v2", "v2, a cgroup above", "v2, seen from a container", "v2, a job of Slurm", "v1",
        "v1, mounted under one name", "v1, a cgroup above", "both", "part of a core",
    ],
)  # fmt: skip
def test_a_quota_of_one_core_gives_one_worker(
    own: str, files: dict[str, str], tmp_path: Path
) -> None:
    assert usable_cores(machine(tmp_path, own, files)) == 1


@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("", {}),
        ("0::/\n", {"cpu.max": "max 100000\n"}),
        ("0::/\n", {"cpu.max": "6400000 100000\n"}),
        ("0::/\n", {"cpu.max": "nonsense\n"}),
        ("0::/\n", {"cpu.max": "100000 0\n"}),
        ("0::/mine\n", {"other/cpu.max": "100000 100000\n"}),
        ("4:cpu:/\n", v1_cpu("cpu", "-1\n")),
    ],
)
def test_no_quota_leaves_all(own: str, files: dict[str, str], tmp_path: Path) -> None:
    assert usable_cores(machine(tmp_path, own, files)) == ALL


@pytest.mark.parametrize(
    ("own", "files", "free"),
    [
        ("0::/\n", {}, FREE),
        ("0::/\n", v2_memory("", "max\n", "5\n"), FREE),
        ("0::/\n", v2_memory("", "3000\n", "1000\n"), 2000),
        ("0::/\n", v2_memory("", "3000\n", "4000\n"), 0),
        ("0::/of/the/host\n", v2_memory("", "3000\n", "1000\n"), 2000),
        ("0::/a/b\n", v2_memory("a/b/", "max\n", "5\n") | v2_memory("a/", "900\n", "100\n"), 800),
        (
            f"0::{SLURM}\n",
            v2_memory("system.slice/slurmstepd.scope/job_7/", "3000\n", "500\n")
            | v2_memory(f"{SLURM[1:]}/", "max\n", "400\n"),
            2500,
        ),
        ("0::/mine\n", v2_memory("other/", "3000\n", "500\n"), FREE),
        (
            "0::/a\n",
            v2_memory("a/", "3000\n", "2900\n")
            | {"a/memory.stat": "anon 100\nfile 2700\ninactive_file 2000\n"},
            2100,
        ),
        ("5:memory:/\n", v1_memory("memory", "9\n", "2\n"), 7),
        (
            "5:memory:/slurm/uid_1/job_7/step_0\n2:cpu:/\n",
            v1_memory("memory/slurm/uid_1/job_7", "3000\n", "1000\n")
            | v1_memory("memory/slurm/uid_1/job_7/step_0", "9223372036854771712\n", "900\n"),
            2000,
        ),
        (
            "5:memory:/a\n",
            v1_memory("memory/a", "3000\n", "2900\n")
            | {"memory/a/memory.stat": "total_inactive_file 1000\n"},
            1100,
        ),
    ],
    ids=[
        "no limit", "v2, max", "v2", "v2, more than allowed", "v2, seen from a container",
        "v2, a cgroup above", "v2, a job of Slurm", "v2, of others", "v2, page cache",
        "v1", "v1, a job of Slurm", "v1, page cache",
    ],
)  # fmt: skip
def test_free_memory_is_what_the_tightest_limit_leaves(
    own: str, files: dict[str, str], free: int, tmp_path: Path
) -> None:
    assert free_bytes(machine(tmp_path, own, files)) == free


def test_without_cgroups_all_is_free(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == ALL
    assert free_bytes(tmp_path) == 0, "and nothing of an unknown machine"
    write(tmp_path / "proc/meminfo", b"MemAvailable:    4096 kB\n")
    assert free_bytes(tmp_path) == FREE
