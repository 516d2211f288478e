"""The findings on a dataset, made by a thread while the first pages are shown."""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardprep.reporter.findings.copies import Copies
    from shardprep.reporter.findings.finding import Finding
    from shardprep.reporter.record_columns import Contents
    from shardprep.reporter.report import Report

    Ints = np.ndarray[Any, np.dtype[Any]]

_END_S = 0.5
"""Seconds that `close` waits for the thread."""
_KINDS: dict[str, Callable[[Copies], bool]] = {
    "leaks": lambda one: one.kind == "exact" and one.is_leak,
    "near-leaks": lambda one: one.kind == "near" and one.is_leak,
    "duplicates": lambda one: one.kind == "exact" and not one.is_leak,
    "near-duplicates": lambda one: one.kind == "near" and not one.is_leak,
    "label-conflicts": lambda one: one.is_conflict,
}
"""Kind of finding → the groups of copies that it is about."""


@dataclass(frozen=True, slots=True)
class Known:
    """The findings."""

    findings: tuple[Finding, ...]
    """Those that harm most first, without their keys."""
    numbers: dict[str, Ints]
    """Kind of finding → its items: copies group by group, the worst of a quality first."""
    copies: tuple[Copies, ...]
    num_measured: int
    """Records whose pixels an earlier report has looked at."""
    groups: dict[int, tuple[int, ...]]
    """Record → the groups of copies that it is in, by their places in `copies`."""
    problem: str = ""
    """Why there are none: a document that says what cannot be; "" where they were made."""


class Knowledge:
    """The findings, once they are made; who asks before waits."""

    def __init__(self, contents: Contents) -> None:
        """Begin nothing yet."""
        self._contents = contents
        self._made: Future[Known] = Future()
        self._lock = threading.Lock()
        self._work: threading.Thread | None = None

    def begin(self) -> None:
        """Begin to make them, if nobody has: after the first page, which would wait for them."""
        with self._lock:
            if self._work is None:
                self._work = threading.Thread(target=self._make, name="shardprep-findings")
                self._work.start()

    def close(self) -> None:
        """Wait for the thread for a short time; it stops at its next column."""
        if self._work is not None:
            self._work.join(_END_S)

    def _make(self) -> None:
        try:
            # The first page does not wait for what makes them.
            from shardprep.reporter.report import known_report

            # What is read for them is let go of afterwards: pages need less.
            known = _known(known_report(self._contents.anew()))
        except Exception as error:  # of documents that contradict each other: pages are shown yet
            known = Known((), {}, (), 0, {}, str(error) or type(error).__name__)
        self._made.set_result(known)

    @property
    def is_made(self) -> bool:
        """Whether nobody has to wait any more."""
        return self._made.done()

    def get(self) -> Known:
        """Return the findings; waits until they are made."""
        self.begin()
        return self._made.result()

    def numbers(self, name: str) -> Ints:
        """Return the items of a kind of finding, none where it was not found."""
        return self.get().numbers.get(name, np.empty(0, np.int64))


def _known(report: Report) -> Known:
    groups: defaultdict[int, tuple[int, ...]] = defaultdict(tuple)
    for place, one in enumerate(report.copies):
        for number in one.numbers:
            groups[number] += (place,)
    return Known(
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
    for one in report.qualities:
        if one.name == finding.name:
            return np.array(one.found, np.int64)
    contents, wanted = report.contents, pa.array(finding.keys, pa.string())
    columns = (contents.written["key"], contents.left_out["key"])
    found = [pc.is_in(one, value_set=wanted).to_numpy() for one in columns] if len(wanted) else []
    return np.flatnonzero(np.concatenate([np.zeros(0, bool), *found]))
