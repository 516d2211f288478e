"""The items of a dataset by number, its findings, and the items that match a filter.

Records have the first numbers, in record order. Rejected and skipped inputs follow, in the order of
the item table. The matches of recent filter conditions are cached. Findings are computed in a
thread while the first pages are shown.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset.item_table import SKIPPED
from shardprep.dataset.schema import BOX, BOX_LABEL, LABELS, Schema
from shardprep.errors import counted
from shardprep.reporter.findings.finding import Finding
from shardprep.reporter.record_columns import STATUSES, Contents, coded

if TYPE_CHECKING:
    from shardprep.reporter.findings.copies import Copies
    from shardprep.reporter.report import Report

Ints = np.ndarray[Any, np.dtype[Any]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

Made = TypeVar("Made")
NO_CLASS = "none"
"""Value of `label` for images without a class."""
_MOST_CONDITIONS, _MOST_SELECTIONS = 16, 4
"""Maximum number of masks (1 byte per item) and of selections (4 bytes per item) to cache."""
_END_S = 0.5


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions of a search. An item must meet all of them. The value "" sets no condition."""

    split: str = ""
    status: str = ""
    label: str = ""
    """Class number, or `NO_CLASS`."""
    object: str = ""
    """Class number that an object of the image, or a pixel of its mask, must have."""
    finding: str = ""
    key: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Filter:
        return cls(**{one.name: query.get(one.name, "") for one in fields(cls)})

    def fits(self, schema: Schema) -> bool:
        """Return False for a class of images or objects in a dataset without such classes."""
        return not (self.label and not schema.labels) and not (
            self.object and not schema.annotation_labels
        )

    @property
    def conditions(self) -> dict[str, str]:
        pairs = ((one.name, getattr(self, one.name)) for one in fields(self))
        return {name: value for name, value in pairs if value}

    def address(self, path: str, **more: str | int) -> str:
        query = urlencode({**self.conditions, **more}, errors="replace")
        return f"{path}?{query}" if query else path


@dataclass(frozen=True, slots=True)
class FindingIndex:
    """Findings of a dataset, and the items of each finding."""

    findings: tuple[Finding, ...]
    """Findings without keys, most harmful first."""
    numbers: dict[str, Ints]
    """Kind of finding → its items: by group for copies, worst first for quality, else ascending."""
    copies: tuple[Copies, ...]
    num_measured: int
    groups: dict[int, tuple[int, ...]]
    """Record → its groups, as indexes into `copies`."""
    problem: str = ""
    """The error if the findings could not be computed, or ""."""


class BackgroundFindings:
    """The findings of a dataset, computed once, in a thread."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._made: Future[FindingIndex] = Future()
        self._lock = threading.Lock()
        self._work: threading.Thread | None = None

    def begin(self) -> None:
        """Start the thread, if it is not started. Call this when the first page is ready."""
        with self._lock:
            if self._work is None:
                self._work = threading.Thread(target=self._make, name="shardprep-findings")
                self._work.start()

    def close(self) -> None:
        """Wait up to 0.5 s for the thread. It ends at its next read of the closed item table."""
        if self._work is not None:
            self._work.join(_END_S)

    def _make(self) -> None:
        try:
            # Imported late, so that the first page does not wait for this import.
            from shardprep.reporter.report import known_report

            # With a copy of the contents, columns that only findings need are freed afterwards.
            known = _known(known_report(self._contents.anew()))
        except Exception as error:  # contradictory documents; pages are shown without findings
            known = FindingIndex((), {}, (), 0, {}, str(error) or type(error).__name__)
        self._made.set_result(known)

    @property
    def is_made(self) -> bool:
        return self._made.done()

    def get(self) -> FindingIndex:
        """Return the findings. Start the thread if needed, and wait for its result."""
        self.begin()
        return self._made.result()

    def numbers(self, name: str) -> Ints:
        """Return the items of the finding called `name`; empty without such a finding."""
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
    copies = [one for one in report.copies if one.finding == finding.name]
    if finding.name == "label-conflicts":
        copies = [one for one in report.copies if one.is_conflict]
    if copies:
        members = dict.fromkeys(number for one in copies for number in one.numbers)
        return np.array([*members], np.int64)
    for quality in report.qualities:
        if quality.name == finding.name:
            return np.array(quality.found, np.int64)
    contents, wanted = report.contents, pa.array(finding.keys, pa.string())
    columns = (contents.written["key"], contents.left_out["key"])
    matches = [pc.is_in(one, value_set=wanted).to_numpy() for one in columns] if len(wanted) else []
    return np.flatnonzero(np.concatenate([np.zeros(0, bool), *matches]))


class ItemList:
    """The items of a dataset. Safe to use from many threads."""

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self.findings = BackgroundFindings(contents)
        self.num_records = len(contents)
        self._lock = threading.Lock()
        self._mask = lru_cache(_MOST_CONDITIONS)(self._fitting)
        self._selections = lru_cache(_MOST_SELECTIONS)(self._selected)
        self._tallies = lru_cache(_MOST_SELECTIONS)(self._tallied)

    def __len__(self) -> int:
        return self.num_records + len(self.contents.others)

    def key(self, number: int) -> str:
        if number < self.num_records:
            return self.contents.key(number)
        return self.contents.others.value("key", number - self.num_records) or ""

    def objects_text(self, number: int) -> str:
        if BOX not in self.contents.schema.features:
            return ""
        return counted(self.contents.written.value("num_objects", number) or 0, "object")

    def reason(self, number: int) -> str:
        return self.contents.others.value("reason", number - self.num_records) or "left out"

    def row(self, number: int) -> dict[str, Any]:
        contents = self.contents
        if number < self.num_records:
            return contents.items.row(contents.written.numbers.item(number))
        return contents.items.row(contents.others.numbers.item(number - self.num_records))

    @cached_property
    def split(self) -> Ints:
        """Index into `Contents.splits` for each item; −1 for an item without a split."""
        codes, names = coded(self.contents.others.read("split"))
        places = {name: i for i, name in enumerate(self.contents.splits)}
        of_name = np.array([places.get(name or "", -1) for name in names], np.int16)
        return np.concatenate([self.contents.split.astype(np.int16), of_name[codes]])

    @cached_property
    def status(self) -> Ints:
        codes: Ints = self.contents.status[self._rows]
        return codes

    @cached_property
    def _rows(self) -> Ints:
        return np.concatenate([self.contents.written.numbers, self.contents.others.numbers])

    @cached_property
    def _keys(self) -> pa.ChunkedArray:
        return self.contents.items.column("key")

    @cached_property
    def _labels(self) -> tuple[Ints, Ints]:
        contents, number = self.contents, len(self.contents.schema.labels)
        if contents.schema.target == LABELS:
            written, others = (
                _pairs(one.read("labels")) for one in (contents.written, contents.others)
            )
            numbers = np.concatenate([written[0], others[0] + self.num_records])
            return _distinct(numbers, np.concatenate([written[1], others[1]]), number)
        rest = pc.fill_null(contents.others.read("label"), -1).to_numpy()
        label = np.concatenate([contents.label, rest])
        known = np.flatnonzero((label >= 0) & (label < number))
        return known.astype(np.int32), label[known].astype(np.int32)

    @cached_property
    def _is_classless(self) -> Mask:
        mask: Mask = self.status != STATUSES.index(SKIPPED)
        mask[self._labels[0]] = False
        return mask

    @cached_property
    def _objects(self) -> tuple[Ints, Ints]:
        contents, number = self.contents, len(self.contents.schema.annotation_labels)
        if BOX_LABEL in contents.schema.features:
            return _distinct(*_pairs(contents.written.read("object_labels")), number)
        column = contents.written.read("mask_pixels").combine_chunks()
        numbers = np.repeat(np.arange(len(column)), np.diff(column.offsets.to_numpy()))
        return _distinct(numbers, column.keys.to_numpy()[: len(numbers)], number)

    def selected(self, wanted: Filter) -> Ints:
        """Return the numbers of the matching items, ascending or in the order of the finding."""
        return self._alone(self._selections, wanted)

    def counts(self, wanted: Filter) -> dict[str, Counter[str]]:
        """Return condition → value → number of items that have it and meet all other conditions."""
        return self._alone(self._tallies, wanted)

    def _alone(self, work: Callable[[Filter], Made], wanted: Filter) -> Made:
        """Return `work(wanted)`. One call runs at a time, to limit the memory for masks."""
        if wanted.finding:
            self.findings.get()  # waits here, without the lock
        with self._lock:
            return work(wanted)

    def _selected(self, wanted: Filter) -> Ints:
        mask = self._all(wanted)
        if wanted.finding:
            numbers = self.findings.numbers(wanted.finding)
            return numbers[mask[numbers]].astype(np.int32)
        return np.flatnonzero(mask).astype(np.int32)

    def _all(self, wanted: Filter) -> Mask:
        mask = np.ones(len(self), bool)
        for name, value in wanted.conditions.items():
            mask &= self._mask(name, value)
        return mask

    def _fitting(self, name: str, value: str) -> Mask:
        """Return whether each item matches one condition. An invalid value matches no item."""
        if name == "split":
            splits = self.contents.splits
            return self.split == splits.index(value) if value in splits else self._none()
        if name == "status":
            return self.status == STATUSES.index(value) if value in STATUSES else self._none()
        if name == "key":
            matches: Mask = _holding(self._keys, value)[self._rows]
            return matches
        mask = self._none()
        if name == "finding":
            mask[self.findings.numbers(value)] = True
        elif name == "label" and value == NO_CLASS:
            mask |= self._is_classless
        elif value.isascii() and value.isdigit():
            numbers, classes = self._labels if name == "label" else self._objects
            mask[numbers[classes == min(int(value), 2**31 - 1)]] = True
        return mask

    def _none(self) -> Mask:
        return np.zeros(len(self), bool)

    def _tallied(self, wanted: Filter) -> dict[str, Counter[str]]:
        contents = self.contents
        counters = {name: Counter[str]() for name in ("split", "status", "label", "object")}
        masks = {name: self._all(replace(wanted, **{name: ""})) for name in counters}
        places = np.bincount(self.split[masks["split"]] + 1, minlength=len(contents.splits) + 1)
        counters["split"].update(dict(zip(contents.splits, places[1:].tolist(), strict=True)))
        counts = np.bincount(self.status[masks["status"]], minlength=len(STATUSES)).tolist()
        counters["status"].update(dict(zip(STATUSES, counts, strict=True)))
        if contents.schema.labels:
            counters["label"] += _counted(masks["label"], self._labels)
            counters["label"][NO_CLASS] = int((masks["label"] & self._is_classless).sum())
        if contents.schema.annotation_labels:
            counters["object"] += _counted(masks["object"], self._objects)
        return counters


def _counted(mask: Mask, pairs: tuple[Ints, Ints]) -> Counter[str]:
    numbers, classes = pairs
    return Counter({str(i): n for i, n in enumerate(np.bincount(classes[mask[numbers]]).tolist())})


def _pairs(lists: pa.ChunkedArray) -> tuple[Ints, Ints]:
    """Return the row of each value in a column of lists, and the values."""
    column = lists.combine_chunks()
    values = pc.list_flatten(column).to_numpy(zero_copy_only=False)
    return pc.list_parent_indices(column).to_numpy(), values


def _distinct(numbers: Ints, classes: Ints, number: int) -> tuple[Ints, Ints]:
    """Return the distinct pairs of item and class, int32, with classes in 0..`number` − 1."""
    known = (classes >= 0) & (classes < number)
    single = np.unique(numbers[known].astype(np.int64) * number + classes[known])
    return (single // max(number, 1)).astype(np.int32), (single % max(number, 1)).astype(np.int32)


def _holding(keys: pa.ChunkedArray, part: str) -> Mask:
    matches = pc.match_substring(keys, part.encode(errors="replace").decode(), ignore_case=True)
    mask: Mask = pc.fill_null(matches, False).to_numpy()  # noqa: FBT003 - of pyarrow
    return mask
