"""How everything here is measured: ways interleaved, medians, whole processes."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    measure: str
    value: float
    bar: str
    """What it must come to: ">= 2.2", "< 20 s"."""
    detail: str = ""
    """The figures that the value is made of."""
    unit: str = ""

    @property
    def holds(self) -> bool:
        """Whether the value is on the right side of the bar."""
        sign, number = self.bar.split()[:2]
        limit = float(number.rstrip("%"))
        return self.value >= limit if sign == ">=" else self.value <= limit


@dataclass(frozen=True)
class Cost:
    """What one run of a program took."""

    wall_s: float
    cpu_s: float
    """Of the program and all its children."""
    peak_bytes: int
    """Of its largest process."""


def run(command: Sequence[object], cwd: Path) -> Cost:
    """Run a program to its end."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    start = time.perf_counter()
    process = subprocess.Popen(
        list(map(str, command)), cwd=cwd, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    said = process.stderr.read() if process.stderr else b""
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{said.decode()}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def interleaved(ways: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Return the median of each way over so many rounds; every round runs all ways in turn."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(way())
    return {name: statistics.median(values) for name, values in found.items()}


def own_cpu_s() -> float:
    """Return the processor seconds of this process alone."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
