"""The space that work needs on a disk: the reserve depends on the work, and is named."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from shardprep.storage.space import shortage

MIB = 1 << 20


@pytest.mark.parametrize(
    ("num_bytes", "num_written", "kept"),
    [
        (0, 0, MIB),
        (4 * MIB, 0, MIB),
        (80 * MIB, 0, 10 * MIB),
        (8 * MIB, 72 * MIB, 10 * MIB),
        (10**12, 0, 64 * MIB),
    ],
)
def test_work_fits_where_an_eighth_of_it_stays_free_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_bytes: int, num_written: int, kept: int
) -> None:
    disk = SimpleNamespace(free=num_bytes + kept)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk)
    assert not shortage(tmp_path, num_bytes, num_written)
    disk.free -= 1
    assert shortage(tmp_path, num_bytes, num_written)


def test_what_is_short_is_said_with_all_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=64_000_000))
    said = "62.0 MB are needed and 7.8 MB must stay free, the disk has 64.0 MB left"
    assert shortage(tmp_path, 62_000_000) == said
