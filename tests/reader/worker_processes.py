"""Worker processes of readers in tests."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Any

from shardprep.reader.arrays.team import Team

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest


def let_workers_fill_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a worker instead of filling the first batches with threads."""
    usual = Team._workers

    def waiting(self: Team) -> Any:
        pool = usual(self)
        while pool is None and self._num_workers:
            time.sleep(0.005)
            pool = usual(self)
        return pool

    monkeypatch.setattr(Team, "_workers", waiting)


def gone(pids: Sequence[int | None]) -> bool:
    """Wait until the processes have ended; return False after 20 seconds."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if not any(is_running(pid) for pid in pids if pid):
            return True
        time.sleep(0.02)
    return False


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def run(code: str, folder: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    script = folder / "program.py"
    script.write_text(textwrap.dedent(code))
    command = f"{before}exec {sys.executable} {script}"
    return subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False
    )
