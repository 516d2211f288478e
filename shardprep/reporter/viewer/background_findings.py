"""Findings of a dataset, computed in a background thread while the first pages are shown."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.reporter.findings.finding import Finding

if TYPE_CHECKING:
    from shardprep.reporter.findings.copies import Copies
    from shardprep.reporter.record_columns import Contents
    from shardprep.reporter.report import Report

Ints = np.ndarray[Any, np.dtype[Any]]

_END_S = 0.5
"""Time that `close` waits for the thread."""
_KINDS: dict[str, Callable[[Copies], bool]] = {
    "leaks": lambda one: one.kind == "exact" and one.is_leak,
    "near-leaks": lambda one: one.kind == "near" and one.is_leak,
    "duplicates": lambda one: one.kind == "exact" and not one.is_leak,
    "near-duplicates": lambda one: one.kind == "near" and not one.is_leak,
    "label-conflicts": lambda one: one.is_conflict,
}
"""Kind of finding → whether a group of copies belongs to it."""


@dataclass(frozen=True, slots=True)
class FindingIndex:
    """Findings of a dataset."""

    findings: tuple[Finding, ...]
    """Findings without keys, most harmful first."""
    numbers: dict[str, Ints]
    """Kind of finding → its items: copies by group, other findings worst first."""
    copies: tuple[Copies, ...]
    num_measured: int
    """Number of records whose pixels an earlier report measured."""
    groups: dict[int, tuple[int, ...]]
    """Record → indices into `copies` of its groups."""
    problem: str = ""
    """Error if the findings could not be computed, else ""."""


class BackgroundFindings:
    """Findings that are computed once, in a thread. Callers of `get` wait for them."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._made: Future[FindingIndex] = Future()
        self._lock = threading.Lock()
        self._work: threading.Thread | None = None

    def begin(self) -> None:
        """Start the thread, unless it was started. Called after the first page is ready."""
        with self._lock:
            if self._work is None:
                self._work = threading.Thread(target=self._make, name="shardprep-findings")
                self._work.start()

    def close(self) -> None:
        """Wait for the thread for a short time. It stops when it reads its next column."""
        if self._work is not None:
            self._work.join(_END_S)

    def _make(self) -> None:
        try:
            # Imported late, so that the first page does not wait for it.
            from shardprep.reporter.report import known_report

            # A copy of the contents, so that columns which only findings need are freed again.
            known = _known(known_report(self._contents.anew()))
        except Exception as error:  # contradictory documents: pages are shown all the same
            known = FindingIndex((), {}, (), 0, {}, str(error) or type(error).__name__)
        self._made.set_result(known)

    @property
    def is_made(self) -> bool:
        return self._made.done()

    def get(self) -> FindingIndex:
        """Return the findings; blocks until they are ready."""
        self.begin()
        return self._made.result()

    def numbers(self, name: str) -> Ints:
        """Return the items of a kind of finding; empty if it was not found."""
        return self.get().numbers.get(name, np.empty(0, np.int64))


def _known(report: Report) -> FindingIndex:
    groups: defaultdict[int, tuple[int, ...]] = defaultdict(tuple)
    for place, group in enumerate(report.copies):
        for number in group.numbers:
            groups[number] += (place,)
    return FindingIndex(
        tuple(replace(one, keys=()) for one in report.findings),
        {one.name: _numbers(report, one) for one in report.findings},
        report.copies,
        report.num_measured,
        dict(groups),
    )


def _numbers(report: Report, finding: Finding) -> Ints:
    if finding.name in _KINDS:
        is_of = _KINDS[finding.name]
        members = [number for one in report.copies if is_of(one) for number in one.numbers]
        return np.array([*dict.fromkeys(members)], np.int64)
    for quality in report.qualities:
        if quality.name == finding.name:
            return np.array(quality.found, np.int64)
    contents, wanted = report.contents, pa.array(finding.keys, pa.string())
    columns = (contents.written["key"], contents.left_out["key"])
    matches = [pc.is_in(one, value_set=wanted).to_numpy() for one in columns] if len(wanted) else []
    return np.flatnonzero(np.concatenate([np.zeros(0, bool), *matches]))
