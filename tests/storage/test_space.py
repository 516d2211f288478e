"""Free disk space: the reserve depends on the size of the work."""

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
def test_an_eighth_of_the_work_stays_free_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_bytes: int, num_written: int, kept: int
) -> None:
    disk = SimpleNamespace(free=num_bytes + kept)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk)
    assert not shortage(tmp_path, num_bytes, num_written)
    disk.free -= 1
    assert shortage(tmp_path, num_bytes, num_written)
    disk.free = 64_000_000
    said = "62.0 MB are needed and 7.8 MB must stay free, but the disk has 64.0 MB left"
    assert shortage(tmp_path, 62_000_000) == said
