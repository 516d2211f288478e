"""Other processes: those that live, as /proc shows them, and what they have done so far."""

from __future__ import annotations

import contextlib
import glob
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def members(group: int) -> list[int]:
    """Return the living processes of a group."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, of = (place / "stat").read_text().rsplit(")", 1)[1].split()[:3]
            if int(of) == group and state != "Z":
                found.append(int(place.name))
    return found


def is_gone(group: int) -> bool:
    """Tell whether no process of a group lives."""
    return not members(group)


def workers(group: int) -> list[int]:
    """Return the processes that were forked from the server of the program of a group."""
    servers = {number for number in members(group) if _is_server(number)}
    return [number for number in servers if _parent(number) in servers]


def has_started(number: int) -> bool:
    """Tell whether a Python process has imported a compiled module that is not its own.

    The command line does so first of all, once it takes Ctrl-C; before, the interpreter looks for
    what is installed, and prints a traceback of that if it is interrupted.
    """
    with contextlib.suppress(OSError):
        maps = Path(f"/proc/{number}/maps").read_text()
        return re.search(r"/(site|dist)-packages/.*\.so$", maps, re.MULTILINE) is not None
    return False


def servers(group: int) -> list[int]:
    """Return the server that forks the workers of the program of a group, if it lives."""
    return [n for n in members(group) if _is_server(n) and not _is_server(_parent(n))]


def _is_server(number: int) -> bool:
    """Tell whether a process is a server, or was forked from one: those have its command line."""
    with contextlib.suppress(OSError):
        return "forkserver" in Path(f"/proc/{number}/cmdline").read_text()
    return False


def _parent(number: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return 0


def wait_until(is_so: Callable[[], Any], seconds: float = 120.0) -> None:
    """Wait for something that another process or thread does."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.01)


def written(folder: Path, pattern: str) -> list[Path]:
    """Return the files and folders below a folder to which another process writes.

    `Path.glob` fails, on Python 3.11 and 3.12, if a folder gets another name while it looks into
    it, as an unfinished dataset does at its end.
    """
    found = glob.glob(pattern, root_dir=folder, include_hidden=True)  # noqa: PTH207 - see above
    return [folder / name for name in found]
