"""Cores and free memory under affinity and the limits of both versions of cgroups."""

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from shardprep.machine import free_bytes, usable_cores
from tests.support.builders import write
from tests.support.paths import DATA

ALL = len(os.sched_getaffinity(0))
MACHINES = tomllib.loads((DATA / "cgroups.toml").read_text())


def machine(root: Path, row: dict[str, Any]) -> Path:
    """Return the root folder of a machine with these cgroups."""
    write(root / "proc/meminfo", b"MemTotal: 9999 kB\nMemAvailable:    4096 kB\n")
    write(root / "proc/self/cgroup", row["own"].encode())
    for name, text in row["files"].items():
        write(root / "sys/fs/cgroup" / name, text.encode())
    return root


def test_affinity_is_respected() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize("row", MACHINES["cores"], ids=lambda row: row["name"])
def test_a_quota_limits_the_number_of_cores(row: dict[str, Any], tmp_path: Path) -> None:
    assert usable_cores(machine(tmp_path, row)) == row.get("cores", ALL)


@pytest.mark.parametrize("row", MACHINES["memory"], ids=lambda row: row["name"])
def test_the_tightest_limit_determines_the_free_memory(row: dict[str, Any], tmp_path: Path) -> None:
    assert free_bytes(machine(tmp_path, row)) == row["free"]


def test_without_cgroups_all_is_free(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == ALL
    assert free_bytes(tmp_path) == 0, "nothing is known about this machine"
    write(tmp_path / "proc/meminfo", b"MemAvailable:    4096 kB\n")
    assert free_bytes(tmp_path) == 4096 << 10
