"""The items of a dataset by number, and the items that match a filter.

Records have the first numbers, in record order. Rejected and skipped inputs follow, in the order of
the item table. The mask of each filter condition is cached, so that another page or an additional
condition is cheap.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any, TypeVar
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset.item_table import SKIPPED
from shardprep.dataset.schema import BOX, BOX_LABEL, LABELS, Schema
from shardprep.reporter.record_columns import STATUSES, Contents, coded
from shardprep.reporter.viewer.background_findings import BackgroundFindings

Ints = np.ndarray[Any, np.dtype[Any]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

Made = TypeVar("Made")
NO_CLASS = "none"
"""Value of `label` for images without a class."""
_MOST_CONDITIONS, _MOST_SELECTIONS = 16, 4
"""Number of masks (1 byte per item) and selections (4 bytes per item) to cache."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions that items must match; "" matches all items."""

    split: str = ""
    status: str = ""
    """`written`, `rejected` or `skipped`."""
    label: str = ""
    """Class number, or `NO_CLASS`."""
    object: str = ""
    """Class number of objects or mask values."""
    finding: str = ""
    """Kind of finding."""
    key: str = ""
    """Part of the key; case is ignored."""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Filter:
        """Return the filter of an address's query."""
        return cls(**{one.name: query.get(one.name, "") for one in fields(cls)})

    def fits(self, schema: Schema) -> bool:
        """Return whether the dataset has the classes or annotations that the filter needs."""
        return not (self.label and not schema.labels) and not (
            self.object and not schema.annotation_labels
        )

    @property
    def conditions(self) -> dict[str, str]:
        pairs = ((one.name, getattr(self, one.name)) for one in fields(self))
        return {name: value for name, value in pairs if value}

    def address(self, path: str, **more: str | int) -> str:
        """Return the address of a page with this filter."""
        query = urlencode({**self.conditions, **more}, errors="replace")
        return f"{path}?{query}" if query else path


class ItemList:
    """The items of a dataset. Safe to use from many threads."""

    def __init__(self, contents: Contents, findings: BackgroundFindings) -> None:
        self.contents = contents
        self.findings = findings
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
        """Return the number of objects of a record as text; "" in a dataset without boxes."""
        if BOX not in self.contents.schema.features:
            return ""
        count = self.contents.written.value("num_objects", number) or 0
        return f"{count:,} object{'s' * (count != 1)}"

    def reason(self, number: int) -> str:
        """Return the reason why an input was left out."""
        return self.contents.others.value("reason", number - self.num_records) or "left out"

    def row(self, number: int) -> dict[str, Any]:
        """Return all columns of an item."""
        contents = self.contents
        if number < self.num_records:
            return contents.items.row(contents.written.numbers.item(number))
        return contents.items.row(contents.others.numbers.item(number - self.num_records))

    @cached_property
    def split(self) -> Ints:
        """Index of each item's split, −1 without a split."""
        codes, names = coded(self.contents.others.read("split"))
        places = {name: i for i, name in enumerate(self.contents.splits)}
        of_name = np.array([places.get(name or "", -1) for name in names], np.int16)
        return np.concatenate([self.contents.split.astype(np.int16), of_name[codes]])

    @cached_property
    def status(self) -> Ints:
        """Index into `STATUSES` for each item."""
        contents = self.contents
        codes: Ints = contents.status[self._rows]
        return codes

    @cached_property
    def _rows(self) -> Ints:
        return np.concatenate([self.contents.written.numbers, self.contents.others.numbers])

    @cached_property
    def _keys(self) -> pa.ChunkedArray:
        return self.contents.items.column("key")

    @cached_property
    def _labels(self) -> tuple[Ints, Ints]:
        """Item and class of each pair of an item and one of its classes."""
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
        """Whether each item is an image without a class."""
        mask: Mask = self.status != STATUSES.index(SKIPPED)
        mask[self._labels[0]] = False
        return mask

    @cached_property
    def _objects(self) -> tuple[Ints, Ints]:
        """Item and class of each pair of an item and a class of its objects or mask."""
        contents, number = self.contents, len(self.contents.schema.annotation_labels)
        if BOX_LABEL in contents.schema.features:
            return _distinct(*_pairs(contents.written.read("object_labels")), number)
        column = contents.written.read("mask_pixels").combine_chunks()
        numbers = np.repeat(np.arange(len(column)), np.diff(column.offsets.to_numpy()))
        return _distinct(numbers, column.keys.to_numpy()[: len(numbers)], number)

    def selected(self, wanted: Filter) -> Ints:
        """Return the matching items, int32, ascending, or in the order of the finding."""
        return self._alone(self._selections, wanted)

    def counts(self, wanted: Filter) -> dict[str, Counter[str]]:
        """Return the number of matching items for each value of each condition.

        The other conditions of the filter stay in effect.
        """
        return self._alone(self._tallies, wanted)

    def _alone(self, work: Callable[[Filter], Made], wanted: Filter) -> Made:
        """Return `work(wanted)`, one call at a time, to limit the memory for masks."""
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
    """Return the list index and the value of each value in a column of lists."""
    column = lists.combine_chunks()
    values = pc.list_flatten(column).to_numpy(zero_copy_only=False)
    return pc.list_parent_indices(column).to_numpy(), values


def _distinct(numbers: Ints, classes: Ints, number: int) -> tuple[Ints, Ints]:
    """Return the distinct pairs of item and class, int32, with classes in 0..`number` − 1."""
    known = (classes >= 0) & (classes < number)
    single = np.unique(numbers[known].astype(np.int64) * number + classes[known])
    return (single // max(number, 1)).astype(np.int32), (single % max(number, 1)).astype(np.int32)


def _holding(keys: pa.ChunkedArray, part: str) -> Mask:
    """Return whether each key contains `part`, ignoring case."""
    matches = pc.match_substring(keys, part.encode(errors="replace").decode(), ignore_case=True)
    mask: Mask = pc.fill_null(matches, False).to_numpy()  # noqa: FBT003 - of pyarrow
    return mask
