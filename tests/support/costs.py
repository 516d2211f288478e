"""What each test costs: kept from run to run, and shown at the end of a run.

Processor time is that of the test process, of the processes that it waited for, of programs, and of
the servers of workers and of objects with those that ended. It says more than a clock, which runs
on while other test processes have the processor. What outlives a test, as a browser does, is not
counted.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
from collections import defaultdict
from collections.abc import Collection, Generator, Mapping
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

_CACHE = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
_KEPT = Path(_CACHE, "shardprep-tests", "costs.json")
"""Outside of the clone: a clean clone starts with the costs of the clone before."""
_PROPERTY = "processor seconds"
_NUM_SHOWN = 25
_programs: list[float] = []
_servers: list[int] = []


class Cost(NamedTuple):
    cpu: float
    wall: float

    def plus(self, other: Cost) -> Cost:
        return Cost(self.cpu + other.cpu, self.wall + other.wall)


_Reports = Generator[None, pytest.TestReport, pytest.TestReport]
Costs = dict[str, Cost]
_NOTHING = Cost(0.0, 0.0)


def add_program(seconds: float) -> None:
    """Count the processor time of a program that another process started for this one."""
    _programs.append(seconds)


def add_server(pid: int) -> None:
    """Count what this child uses in the tests that ask it; otherwise the test that ends it pays."""
    _servers.append(pid)


def _spent() -> float:
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    server: Any = forkserver
    children = [server._forkserver._forkserver_pid, *_servers]
    own = sum(one.ru_utime + one.ru_stime for one in used)
    return own + sum(_programs) + sum(map(_by_server, children))


def _by_server(pid: int | None) -> float:
    """Return what a child has used until now; one that ended is waited for, and counted there."""
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        return sum(map(int, stat.rpartition(")")[2].split()[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


class Meter:
    """The part in each process that runs tests: the last report of a test says what it cost."""

    def __init__(self) -> None:
        self._before = 0.0

    def pytest_collection_finish(self) -> None:
        self._before = _spent()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> _Reports:
        report = yield
        if report.when != "teardown":  # which counts the whole test: to look costs a tenth of it
            return report
        now = _spent()
        report.user_properties.append((_PROPERTY, now - self._before))
        self._before = now
        return report


class Ledger:
    """The part in the process that sees all reports."""

    def __init__(self) -> None:
        self._costs: Costs = defaultdict(lambda: _NOTHING)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cpu = cast("float", dict(report.user_properties).get(_PROPERTY, 0.0))
        self._costs[report.nodeid] = self._costs[report.nodeid].plus(Cost(cpu, report.duration))

    def pytest_sessionfinish(self) -> None:
        with contextlib.suppress(OSError):  # a home that cannot be written to is no fault
            keep(self._costs)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self._costs) < _NUM_SHOWN:
            return
        for what, costs in (("files", by_file(self._costs)), ("tests", self._costs)):
            terminalreporter.section(f"seconds of processors and of a clock: {what}")
            for line in table(costs):
                terminalreporter.write_line(line)


def kept(path: Path = _KEPT) -> Costs:
    """Return what tests cost when they ran last, by their ids."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):  # none, or one that another run is writing
        return {}
    return {test: Cost(*cost) for test, cost in found.items()}


def keep(costs: Mapping[str, Cost], path: Path = _KEPT) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    begun = path.with_suffix(f".{os.getpid()}")
    begun.write_text(json.dumps({**kept(path), **costs}))
    begun.rename(path)


def longest(costs: Mapping[str, Cost]) -> list[str]:
    """Return the ids of the tests that were longest by a clock."""
    return sorted(costs, key=lambda test: -costs[test].wall)[:_NUM_SHOWN]


def begin_with(items: list[pytest.Item], tests: Collection[str]) -> None:
    """Put these tests first: no process has to wait for a long one at the end of a run.

    The order is otherwise kept, because tests of a file share what the file makes once.
    """
    items.sort(key=lambda item: item.nodeid not in tests)


def by_file(costs: Mapping[str, Cost]) -> Costs:
    found: Costs = defaultdict(lambda: _NOTHING)
    for test, cost in costs.items():
        file = test.partition("::")[0]
        found[file] = found[file].plus(cost)
    return found


def table(costs: Mapping[str, Cost]) -> list[str]:
    """Return the lines of the highest costs, and of their sum."""
    rows = sorted(costs.items(), key=lambda row: -row[1].cpu)[:_NUM_SHOWN]
    everything = Cost(*map(sum, zip(*costs.values(), strict=True)))
    return [
        f"{cost.cpu:8.1f}{cost.wall:8.1f}  {name}" for name, cost in (*rows, ("all", everything))
    ]
