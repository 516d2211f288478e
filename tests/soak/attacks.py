"""Attacks on a build in a soak, each by its name, and what a build may do about it."""

import contextlib
import errno
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.soak.clock import Clock
from tests.support.processes import members, servers, workers

_DAY_S = 24 * 3600
_SHORT_S = 1.0
_LEFT_BYTES = 4 << 20
"""Memory left to a worker: less than the stack of a thread. With no memory at all,
`threading.Thread.start` can wait forever (CPython 3.11)."""
_STORM_S = 3.0


@dataclass
class Target:
    process: subprocess.Popen[str]
    source: Path
    disk: Path | None
    clock: Clock | None
    draw: random.Random
    stop_s: float
    silence: Callable[[float], None] | None = None
    """Stops all answers of the store for some seconds."""

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    def pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.is_over:
            time.sleep(0.02)


class Attack(NamedTuple):
    strike: Callable[[Target], str]
    """Attacks and undoes the attack. Returns a description, or "" if there was no target."""
    ends: frozenset[int] = frozenset()
    """Exit codes with which the build may end. It may also continue."""
    must_end: bool = False
    awaits_workers: bool = False
    awaits_start: bool = False
    """Whether the attack waits until the interpreter has started."""


@dataclass
class Blow:
    kind: str
    at_s: float
    num_shards: int
    detail: str = ""
    held_s: float = 0.0
    """Duration of the attack itself, such as the pause of a process."""
    exit_code: int | None = None
    printed: list[str] = field(default_factory=list)
    """Lines of stderr until the next attack."""


def _signalled(numbers: Sequence[int], number: signal.Signals) -> int:
    sent = 0
    for one in numbers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, number)
            sent += 1
    return sent


def _kill(choose: Callable[[Target], list[int]]) -> Callable[[Target], str]:
    def strike(target: Target) -> str:
        killed = _signalled(choose(target), signal.SIGKILL)
        return f"SIGKILL to {killed}" if killed else ""

    return strike


def _kill_again_and_again(target: Target) -> str:
    """Kill workers repeatedly, as a system does that is short of memory."""
    sent = 0
    until = time.monotonic() + _STORM_S
    while time.monotonic() < until and not target.is_over:
        sent += _signalled(workers(target.process.pid), signal.SIGKILL)
        target.pause(target.draw.uniform(0.1, 0.4))
    return f"SIGKILL to {sent}" if sent else ""


def _stop(choose: Callable[[Target], list[int]]) -> Callable[[Target], str]:
    def strike(target: Target) -> str:
        chosen = choose(target)
        stopped = _signalled(chosen, signal.SIGSTOP)
        if not stopped:
            return ""
        target.pause(target.stop_s)
        _signalled(chosen, signal.SIGCONT)
        return f"SIGSTOP to {stopped} for {target.stop_s:g} s"

    return strike


def _workers(target: Target) -> list[int]:
    return sorted(workers(target.process.pid))


def _one_worker(target: Target) -> list[int]:
    found = _workers(target)
    return [target.draw.choice(found)] if found else []


def _server(target: Target) -> list[int]:
    return servers(target.process.pid)


def _driver(target: Target) -> list[int]:
    return [target.process.pid]


def _all(target: Target) -> list[int]:
    return members(target.process.pid)


def _told(number: signal.Signals) -> Callable[[Target], str]:
    def strike(target: Target) -> str:
        return number.name if _signalled(_driver(target), number) else ""

    return strike


def _fill_disk(target: Target) -> str:
    """Keep the disk full until the build ends, or for `stop_s`."""
    assert target.disk is not None
    filler = target.disk / "filler"
    begun = time.monotonic()
    pages = 0
    with filler.open("wb") as file:
        # What the build removes is taken as well.
        while time.monotonic() < begun + target.stop_s and not target.is_over:
            status = os.statvfs(target.disk)
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), pages * 4096, status.f_bavail * 4096)
                pages += status.f_bavail
            time.sleep(0.01)
    filler.unlink()
    return f"{errno.errorcode[errno.ENOSPC]} for {time.monotonic() - begun:.1f} s"


def _take_source_away(target: Target) -> str:
    away, seconds = target.source.with_suffix(".away"), target.draw.uniform(0.05, 1.0)
    target.source.rename(away)
    try:
        target.pause(seconds)
    finally:
        away.rename(target.source)
    return f"away for {seconds:.2f} s"


def _set_clock_back(target: Target) -> str:
    assert target.clock is not None
    days = target.draw.randint(1, 400)
    target.clock.set_off(-days * _DAY_S)
    return f"{days} days back"


def _starve_worker(target: Target) -> str:
    """Limit the memory of a worker for a moment."""
    for number in _one_worker(target):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            pages = int(Path(f"/proc/{number}/statm").read_text().split()[0])
            before = resource.prlimit(number, resource.RLIMIT_AS)
            most = pages * resource.getpagesize() + _LEFT_BYTES
            resource.prlimit(number, resource.RLIMIT_AS, (most, before[1]))
            target.pause(_SHORT_S)
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(number, resource.RLIMIT_AS, before)
            return f"{most >> 20:,} MB for {_SHORT_S:g} s"
    return ""


def _silence_store(target: Target) -> str:
    assert target.silence is not None
    target.silence(target.stop_s)
    return f"no answer for {target.stop_s:g} s"


ATTACKS = {
    "worker killed": Attack(_kill(_one_worker), awaits_workers=True),
    "all workers killed": Attack(_kill(_workers), awaits_workers=True),
    "server of workers killed": Attack(_kill(_server), awaits_workers=True),
    "workers killed repeatedly": Attack(_kill_again_and_again, frozenset({1}), awaits_workers=True),
    "driver killed": Attack(_kill(_driver), frozenset({-signal.SIGKILL}), must_end=True),
    "all processes killed": Attack(_kill(_all), frozenset({-signal.SIGKILL}), must_end=True),
    "interrupted": Attack(
        _told(signal.SIGINT), frozenset({130, -signal.SIGINT}), must_end=True, awaits_start=True
    ),
    "asked to end": Attack(_told(signal.SIGTERM), frozenset({-signal.SIGTERM}), must_end=True),
    "worker paused": Attack(_stop(_one_worker), awaits_workers=True),
    "driver paused": Attack(_stop(_driver)),
    "all processes paused": Attack(_stop(_all)),
    "disk full": Attack(_fill_disk, frozenset({1})),
    "source removed for a while": Attack(_take_source_away, frozenset({1}), awaits_workers=True),
    "clock set back": Attack(_set_clock_back),
    "worker short of memory": Attack(_starve_worker, awaits_workers=True),
    "store silent": Attack(_silence_store),
}


def possible(target_disk: Path | None, clock: Clock | None, *, is_store: bool) -> list[str]:
    lacking = set()
    if target_disk is None:
        lacking.add("disk full")
    if clock is None:
        lacking.add("clock set back")
    if not is_store:
        lacking.add("store silent")
    return [kind for kind in ATTACKS if kind not in lacking]


def drawn(kinds: Sequence[str], number: int, draw: random.Random) -> list[str]:
    """Return `number` attacks in random order, each kind equally often."""
    found: list[str] = []
    while len(found) < number:
        found += draw.sample(kinds, len(kinds))
    return found[:number]
