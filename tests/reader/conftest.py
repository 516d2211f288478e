"""Fixtures of several tests of the readers."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from shardprep.reader.arrays.team import Team


@pytest.fixture(name="copied")
def _copied(sets: dict[str, Any], tmp_path: Path) -> Path:
    """Return a copy of the JPEG dataset of a module's `sets`, to be damaged."""
    return shutil.copytree(sets["jpeg"], tmp_path / "set")


@pytest.fixture(name="by_workers")
def _by_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for workers instead of filling the first batches with threads."""
    usual = Team._workers

    def waiting(self: Team) -> Any:
        self._let_workers_start()
        pool = usual(self)
        while pool is None and self._num_workers:
            time.sleep(0.005)
            pool = usual(self)
        return pool

    monkeypatch.setattr(Team, "_workers", waiting)
