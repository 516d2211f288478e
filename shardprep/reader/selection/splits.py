"""From "train[:90%]+validation" to record numbers. Pure; counts come from the manifest.

A record's number counts through the shards of the dataset, in the order of the manifest, from 0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from shardprep.errors import DatasetError
from shardprep.reader.validators import (
    Count,
    Number,
    check_position,
    validated,
    validated_fields,
)

if TYPE_CHECKING:
    from shardprep.dataset.manifest import Manifest

_SLICE = re.compile(r"(?P<split>\w+)(\[(?P<start>-?\d{1,18}%?)?:(?P<stop>-?\d{1,18}%?)?\])?")

_WHOLE = 100
"""Percent."""


@validated_fields("reader.EvenSplit")
@dataclass(frozen=True, slots=True)
class EvenSplit:
    """One of several equal parts of a split; `reader.load` takes it in place of a text."""

    split: str
    index: Number
    """From 0."""
    number: Count
    """Number of all parts."""
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        """Raise DatasetError where there is no such part."""
        check_position("reader.EvenSplit", index=self.index, number=self.number)


@validated("reader.even_splits")
def even_splits(split: str, n: Count, *, drop_remainder: bool = False) -> tuple[EvenSplit, ...]:
    """Return `n` parts of a split that together are the whole, as `tfds.even_splits` cuts them.

    The first ones have a record more where it does not come out even; `drop_remainder` leaves
    these records out, so that all are of one size. DatasetError where `n` is below 1.
    """
    return tuple(EvenSplit(split, i, n, drop_remainder) for i in range(n))


def split_ranges(manifest: Manifest, split: str | EvenSplit) -> list[range]:
    """Return the record numbers that a split expression means, in its order; no range is empty.

    A percentage is rounded to the nearest record, so that [:P%] and [P%:] are the whole; negative
    positions count from the end, and those beyond an end mean that end, as in Python. DatasetError
    where it is malformed, has a percentage beyond 100, names an unknown split or selects nothing.
    """
    expression = split if isinstance(split, str) else split.split
    stops = accumulate(one.num_records for one in manifest.splits.values())
    every = {
        name: range(stop - one.num_records, stop)
        for (name, one), stop in zip(manifest.splits.items(), stops, strict=True)
    }
    found: list[range] = []
    for part in expression.split("+"):
        match = _SLICE.fullmatch(part.strip())
        if not match:
            raise DatasetError(
                manifest.name, f"{part!r} is no split", 'write "train", "train[:90%]" or "a+b"'
            )
        for position in (match["start"], match["stop"]):
            if position and position.endswith("%") and abs(int(position[:-1])) > _WHOLE:
                raise DatasetError(
                    manifest.name, f"{part!r} is no split", "a percentage is from -100% to 100%"
                )
        if match["split"] not in every:
            raise DatasetError(
                manifest.name,
                f"has no split {match['split']!r}",
                f"it has {', '.join(every)}",
            )
        whole = every[match["split"]]
        start = _position(match["start"], 0, len(whole))
        found.append(whole[start : _position(match["stop"], len(whole), len(whole))])
    if isinstance(split, EvenSplit):
        total = sum(map(len, found))
        wanted = part_range(total, split.index, split.number, drop_remainder=split.drop_remainder)
        found = _cut(found, wanted)
    found = [one for one in found if one]
    if not found:
        counts = ", ".join(f"{name} {s.num_records:,}" for name, s in manifest.splits.items())
        what = repr(expression) if isinstance(split, str) else str(split)
        raise DatasetError(manifest.name, f"{what} selects no record", f"it has {counts}")
    return found


def part_range(num_records: int, index: int, number: int, *, drop_remainder: bool = False) -> slice:
    """Return which positions are in one of so many parts; the first ones may have a record more."""
    size, more = divmod(num_records, number)
    more = 0 if drop_remainder else more
    start = size * index + min(index, more)
    return slice(start, start + size + (index < more))


def _cut(ranges: list[range], wanted: slice) -> list[range]:
    """Return what stands at some positions of ranges that follow each other."""
    found, before = [], 0
    for one in ranges:
        found.append(one[max(wanted.start - before, 0) : max(wanted.stop - before, 0)])
        before += len(one)
    return found


def _position(text: str | None, default: int, num_records: int) -> int:
    if text is None:
        return default
    if text.endswith("%"):
        percent = int(text[:-1])
        number = round(num_records * (percent if percent >= 0 else 100 + percent) / 100)
    else:
        number = int(text)
        number += num_records if number < 0 else 0
    return min(max(number, 0), num_records)
