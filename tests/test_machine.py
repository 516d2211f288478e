from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from shardprep.machine import usable_cores
from tests.support.builders import write

if TYPE_CHECKING:
    from pathlib import Path

ALL = len(os.sched_getaffinity(0))


def cores(folder: Path, own: str, files: dict[str, str]) -> int:
    for name, text in files.items():
        write(folder / "cgroup" / name, text.encode())
    return usable_cores(folder / "cgroup", write(folder / "own", own.encode()))


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
        (
            "4:cpu,cpuacct:/box\n3:memory:/box\n",
            {
                "cpu,cpuacct/box/cpu.cfs_quota_us": "100000\n",
                "cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
            },
        ),
    ],
    ids=["v2", "v2, a cgroup above", "v2, seen from a container", "v1"],
)
def test_a_quota_of_one_core_gives_one_worker(
    own: str, files: dict[str, str], tmp_path: Path
) -> None:
    assert cores(tmp_path, own, files) == 1


@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("", {}),
        ("0::/\n", {"cpu.max": "max 100000\n"}),
        ("0::/\n", {"cpu.max": "6400000 100000\n"}),
        ("0::/\n", {"cpu.max": "nonsense\n"}),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}),
    ],
)
def test_no_quota_leaves_all(own: str, files: dict[str, str], tmp_path: Path) -> None:
    assert cores(tmp_path, own, files) == ALL


def test_a_part_of_a_core_is_one_worker(tmp_path: Path) -> None:
    assert cores(tmp_path, "0::/\n", {"cpu.max": "20000 100000\n"}) == 1


def test_without_cgroups_all_are_used(tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "none", tmp_path / "none") == ALL
