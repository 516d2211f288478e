"""Measurements: whole processes, interleaved runs and medians."""

from __future__ import annotations

import math
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


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure of a script. It is declared, so that it is known without a run."""

    name: str
    bar: str = ""
    """Bound of the value, such as ">= 2.2" or "< 20 s"; "" without a bound."""
    unit: str = ""
    """Unit of the value; "" for a ratio."""

    def came_to(self, value: float, detail: str = "") -> Row:
        """Return the row of a run; `detail` has the figures that `value` was computed from."""
        return Row(self, value, detail)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    measure: Measure
    value: float
    """NaN if one of the compared programs cannot run; `detail` then says so."""
    detail: str

    @property
    def holds(self) -> bool:
        """Whether the value is within the bar of the measure; True without a bar."""
        if not self.measure.bar:
            return True
        sign, number = self.measure.bar.split()[:2]
        limit = float(number)
        return {
            ">=": self.value >= limit,
            "<=": self.value <= limit,
            "<": self.value < limit,
        }[sign]

    @property
    def shown(self) -> str:
        """The value and its unit, such as "1.25" or "310 MB"; "–" for NaN."""
        if math.isnan(self.value):
            return "–"
        size = abs(self.value)
        digits = 0 if size >= 100 else 1 if size >= 10 else 2
        return f"{self.value:,.{digits}f} {self.measure.unit}".strip()


@dataclass(frozen=True, slots=True)
class Cost:
    """Time of one run."""

    wall_s: float
    cpu_s: float
    """Processor seconds; for a program, including the children that it waited for."""


def installed_environment(root: Path = ROOT) -> dict[str, str]:
    """Return environment variables for a program that imports the package of checkout `root`."""
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join(paths),
    }  # fmt: skip
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed has its bytecode as well
    return environment


def run(command: Sequence[object], cwd: Path, root: Path = ROOT) -> Cost:
    """Run a program to its end, and return its cost; it imports the package of checkout `root`."""
    environment = installed_environment(root)
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
    return Cost(wall, usage.ru_utime + usage.ru_stime)


def shardprep(cwd: Path, *arguments: object) -> Cost:
    """Run the command line as a user does: a whole process, imports included."""
    return run([sys.executable, "-m", "shardprep", *arguments], cwd)


def built(out: Path, source: Path, *options: object) -> Path:
    """Build a source into the new folder `out`; return the folder of the dataset."""
    out.mkdir()
    shardprep(out, "build", source, "--out", out, *options)
    return next(path.parent for path in out.glob("*/*/manifest.json"))


def timed(work: Callable[[], object]) -> Cost:
    """Call `work` in this process, and return its cost."""
    wall, cpu = time.perf_counter(), own_cpu_s()
    work()
    return Cost(time.perf_counter() - wall, own_cpu_s() - cpu)


def interleaved(ways: Mapping[str, Callable[[], Cost]], rounds: int) -> dict[str, Cost]:
    """Return the median cost of each way; each of `rounds` rounds calls all ways once, in turn.

    Files of earlier calls are synced before each call, so that no way pays for another one.
    """
    found: dict[str, list[Cost]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            os.sync()
            found[name].append(way())
    return {
        name: Cost(
            statistics.median(cost.wall_s for cost in costs),
            statistics.median(cost.cpu_s for cost in costs),
        )
        for name, costs in found.items()
    }


def own_cpu_s() -> float:
    """Return the processor seconds of this process alone."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
