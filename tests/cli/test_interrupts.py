"""Ctrl-C from a terminal, which all processes of a command hear, in its first seconds."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.builders import animals, write, zip_bytes
from tests.support.processes import wait_until

SERVER = b"multiprocessing.forkserver"


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interrupts")
    write(folder / "pets.zip", zip_bytes(animals(40)))
    return folder


def in_group(leader: int) -> dict[int, bytes]:
    """Return the processes of a group, and the command line of each."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            number = int(place.name)
            if os.getpgid(number) == leader:
                found[number] = (place / "cmdline").read_bytes()
    return found


def hears_interrupts(number: int) -> bool:
    """Tell whether SIGINT reaches a process: it neither blocks nor ignores it."""
    lines = Path(f"/proc/{number}/status").read_text().splitlines()
    masks = [line.split()[1] for line in lines if line.startswith(("SigBlk:", "SigIgn:"))]
    return not any(int(mask, 16) & 1 << (signal.SIGINT - 1) for mask in masks)


COMMANDS: dict[str, Sequence[str]] = {
    "build": ("build", "pets.zip", "--out", "new", "--workers", "2"),
    "near copies": ("build", "pets.zip", "--out", "new", "--dedup", "near", "--workers", "2"),
}


def started(folder: Path, command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "shardprep", *COMMANDS[command]],
        cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "SHARDPREP_CACHE": str(folder / f"cache-{time.monotonic_ns()}")},
        start_new_session=True,
    )  # fmt: skip


def has_server(process: subprocess.Popen[str]) -> Callable[[], bool]:
    def look() -> bool:
        return any(SERVER in line for line in in_group(process.pid).values())

    return look


@pytest.mark.parametrize("command", COMMANDS)
def test_a_server_of_workers_never_hears_of_it_from_its_first_moment(
    command: str, folder: Path
) -> None:
    with started(folder, command) as process:
        wait_until(has_server(process))
        servers = [number for number, line in in_group(process.pid).items() if SERVER in line]
        assert servers
        assert not any(map(hears_interrupts, servers))
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    (line,) = errors.splitlines()
    assert line.startswith("interrupted")
