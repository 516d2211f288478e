"""Builds that nothing disturbs, and builds that are attacked until they are done."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.soak.attacks import ATTACKS, Blow, Target, drawn, possible
from tests.soak.clock import Clock
from tests.soak.place import Place
from tests.support.processes import has_started, is_gone, members, workers

_END_S = 60.0
"""Time limit for a build to end after a signal, and for its other processes to end after it."""
_MOST_TRIES = 5
_LINES = 6


class Undisturbed(NamedTuple):
    hashes: dict[str, str]
    start_s: float
    elapsed_s: float

    @property
    def work_s(self) -> float:
        return self.elapsed_s - self.start_s


@dataclass(frozen=True)
class Means:
    source: Path
    options: tuple[str, ...]
    folder: Path
    disk: Path | None
    clock: Clock | None
    stop_s: float
    say: Callable[[str], None]

    def start(self, place: Place) -> subprocess.Popen[str]:
        temporary = (self.disk or self.folder) / "tmp"
        shutil.rmtree(temporary, ignore_errors=True)  # as a machine does that starts anew
        temporary.mkdir()
        command = [sys.executable, "-m", "shardprep", "build", str(self.source)]
        environment = {**place.environment, "TMPDIR": str(temporary)}
        if self.clock is not None:
            environment |= self.clock.environment
        with self.printed(place).open("a") as errors:
            return subprocess.Popen(
                [*command, *self.options, "--out", place.out],
                env=environment, stdout=subprocess.DEVNULL, stderr=errors, text=True,
                start_new_session=True,
            )  # fmt: skip

    def printed(self, place: Place) -> Path:
        return self.folder / f"{place.name}.txt"


@dataclass
class Attacked:
    blows: list[Blow] = field(default_factory=list)
    num_builds: int = 0
    elapsed_s: float = 0.0
    faults: list[str] = field(default_factory=list)
    wrong_files: list[str] = field(default_factory=list)


def build_undisturbed(means: Means, place: Place, patience_s: float) -> Undisturbed:
    begun, start_s = time.monotonic(), 0.0
    process = means.start(place)
    try:
        while process.poll() is None:
            assert time.monotonic() < begun + patience_s, "the undisturbed build does not end"
            if not start_s and place.num_shards():
                start_s = time.monotonic() - begun
            time.sleep(0.05)
    finally:
        end(process)
    elapsed_s = time.monotonic() - begun
    assert process.returncode == 0, means.printed(place).read_text()
    return Undisturbed(place.hashes(), start_s or elapsed_s, elapsed_s)


def end(process: subprocess.Popen[str]) -> None:
    for number in members(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    process.wait()


def build_attacked(
    means: Means, place: Place, whole: Undisturbed, num_attacks: int, seed: int
) -> Attacked:
    """Attack builds at random moments, then wait for a complete dataset."""
    draw = random.Random(seed)
    kinds = drawn(
        possible(means.disk, means.clock, is_store=place.silence is not None), num_attacks, draw
    )
    # A build that is begun anew plans first: attacks that come faster would let none of them on.
    longest_gap_s = whole.start_s + 2 * whole.elapsed_s / max(1, num_attacks)
    siege = _Siege(means, place, whole, draw)
    try:
        return siege.to_the_end(kinds, longest_gap_s)
    finally:
        end(siege.process)


class _Siege:
    def __init__(self, means: Means, place: Place, whole: Undisturbed, draw: random.Random) -> None:
        self._means, self._place, self._whole, self._draw = means, place, whole, draw
        self._found = Attacked()
        self._seen_bytes = 0
        self._begun = time.monotonic()
        self.process = means.start(place)

    def to_the_end(self, kinds: Sequence[str], longest_gap_s: float) -> Attacked:
        for number, kind in enumerate(kinds, 1):
            self._run_for(self._draw.uniform(0, longest_gap_s))
            self._strike(kind)
            blow = self._found.blows[-1]
            self._means.say(
                f"{self._place.name} {number}/{len(kinds)}: {blow.at_s:.1f} s, "
                f"{blow.num_shards} shards: {kind}, {blow.detail}"
            )
        while True:
            self._wait_for(lambda: self._ended_within(1.0))
            self._take_end()
            if self.process.returncode == 0 or self._found.faults:
                break
            self.process = self._means.start(self._place)
        self._found.elapsed_s = time.monotonic() - self._begun
        return self._found

    def _wait_for(self, is_so: Callable[[], bool]) -> None:
        most_s = _END_S + 20 * self._whole.elapsed_s
        until = time.monotonic() + most_s
        while not is_so():
            if time.monotonic() > until:
                self._found.faults.append(f"hung: nothing has happened for {most_s:.0f} s")
                end(self.process)

    def _run_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._ended_within(left):
                self._go_on_if_ended()

    def _go_on_if_ended(self) -> None:
        """Start the next build if the last one has ended."""
        if self._ended_within(0):
            self._take_end()
            if self.process.returncode == 0:
                self._place.clear()
            self.process = self._means.start(self._place)

    def _ended_within(self, seconds: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.returncode is not None

    def _strike(self, kind: str) -> None:
        """Attack; if there is no target, attack the next build."""
        means, attack, detail, begun = self._means, ATTACKS[kind], "", 0.0
        for _ in range(_MOST_TRIES):
            self._go_on_if_ended()
            if attack.awaits_workers:
                self._await_workers()
            if attack.awaits_start:
                self._wait_for(lambda: has_started(self.process.pid) or self._ended_within(0.01))
            self._note_printed()
            target = Target(
                self.process, means.source, means.disk, means.clock, self._draw, means.stop_s,
                self._place.silence,
            )  # fmt: skip
            begun = time.monotonic()
            detail = attack.strike(target)
            if detail:
                break
        blow = Blow(kind, begun - self._begun, self._place.num_shards(), detail or "too late")
        blow.held_s = time.monotonic() - begun
        self._found.blows.append(blow)
        if attack.must_end and not self._ended_within(_END_S):
            self._found.faults.append(f"{kind}: the build has not ended within {_END_S:g} s")
            end(self.process)

    def _await_workers(self) -> None:
        """Wait until workers run, and a random time more."""
        self._wait_for(lambda: bool(workers(self.process.pid)) or self._ended_within(0.02))
        self._ended_within(self._draw.uniform(0, self._whole.work_s / 4))

    def _take_end(self) -> None:
        self._note_printed()
        code = self.process.returncode
        blow = self._found.blows[-1] if self._found.blows else None
        if blow is not None and blow.exit_code is None:
            blow.exit_code = code
        what = blow.kind if blow else "before any attack"
        if not self._are_gone():
            self._found.faults.append(f"{what}: processes are left after the end of the build")
            end(self.process)
        if code == 0:
            self._found.num_builds += 1
            hashes = self._place.hashes()
            self._found.wrong_files += sorted(
                name
                for name in hashes.keys() | self._whole.hashes.keys()
                if hashes.get(name) != self._whole.hashes.get(name)
            )
        elif blow is None or code not in ATTACKS[blow.kind].ends:
            last = blow.printed[-1] if blow and blow.printed else "nothing"
            self._found.faults.append(f"{what}: ended with {code}, and printed: {last}")

    def _are_gone(self) -> bool:
        until = time.monotonic() + _END_S
        while not is_gone(self.process.pid):
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def _note_printed(self) -> None:
        """Add the new lines of stderr to the last attack."""
        with self._means.printed(self._place).open("rb") as file:
            file.seek(self._seen_bytes)
            data = file.read()
        self._seen_bytes += len(data)
        lines = data.decode(errors="replace").splitlines()
        if any(line.startswith("Traceback") for line in lines):
            self._found.faults.append(f"a traceback was printed: {lines[-1]}")
        if self._found.blows:
            blow = self._found.blows[-1]
            blow.printed = [*blow.printed, *lines][-_LINES:]
