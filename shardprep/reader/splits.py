"""From "train[:90%]+validation" to records of shards. Pure; counts come from the manifest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from shardprep.errors import DatasetError
from shardprep.reader.argument_kinds import Count, Kind, Number, text
from shardprep.reader.arguments import check_fields, check_position, checking

if TYPE_CHECKING:
    from shardprep.dataset.manifest import Manifest, Split

_SLICE = re.compile(r"(?P<split>\w+)(\[(?P<start>-?\d{1,18}%?)?:(?P<stop>-?\d{1,18}%?)?\])?")

_WHOLE = 100
"""Percent."""


@dataclass(frozen=True, slots=True)
class ShardSlice:
    """A run of records of one shard."""

    shard: str
    skip: int
    """Records before the first wanted one."""
    take: int
    """Wanted records, at least 1."""


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
        """Check the fields; raise DatasetError where one means nothing."""
        check_fields("reader.EvenSplit", self)
        check_position("reader.EvenSplit", index=self.index, number=self.number)


AnySplit = Annotated[str, Kind(text, ("a text such as 'train[:90%]+validation'",))] | EvenSplit


def is_training(split: AnySplit) -> bool:
    """Tell whether a split is one for training, which both readers shuffle by default."""
    return (split if isinstance(split, str) else split.split).startswith("train")


@checking("reader.even_splits")
def even_splits(split: str, n: Count, *, drop_remainder: bool = False) -> tuple[EvenSplit, ...]:
    """Return `n` parts of a split that together are the whole, as `tfds.even_splits` cuts them.

    The first ones have a record more where it does not come out even; `drop_remainder` leaves
    these records out, so that all are of one size. DatasetError where `n` is below 1.
    """
    return tuple(EvenSplit(split, i, n, drop_remainder) for i in range(n))


def select(manifest: Manifest, split: AnySplit) -> list[ShardSlice]:
    """Return the records that a split expression means, in its order.

    A percentage is rounded to the nearest record, so that [:P%] and [P%:] are the whole; negative
    positions count from the end, and those beyond an end mean that end, as in Python. DatasetError
    where it is malformed, has a percentage beyond 100, names an unknown split or selects nothing.
    """
    expression = split if isinstance(split, str) else split.split
    found: list[ShardSlice] = []
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
        if match["split"] not in manifest.splits:
            raise DatasetError(
                manifest.name,
                f"has no split {match['split']!r}",
                f"it has {', '.join(manifest.splits)}",
            )
        of = manifest.splits[match["split"]]
        start = _position(match["start"], 0, of.num_records)
        stop = _position(match["stop"], of.num_records, of.num_records)
        found.extend(cut(_whole(of), start, stop))
    if isinstance(split, EvenSplit):
        found = part_of(found, split.index, split.number, drop_remainder=split.drop_remainder)
    if not found:
        counts = ", ".join(f"{name} {s.num_records:,}" for name, s in manifest.splits.items())
        what = repr(expression) if isinstance(split, str) else str(split)
        raise DatasetError(manifest.name, f"{what} selects no record", f"it has {counts}")
    return found


def part_of(
    slices: list[ShardSlice], index: int, number: int, *, drop_remainder: bool = False
) -> list[ShardSlice]:
    """Return one of so many parts of the records; the first ones may have a record more."""
    total = sum(one.take for one in slices)
    wanted = part_range(total, index, number, drop_remainder=drop_remainder)
    return cut(slices, wanted.start, wanted.stop)


def part_range(num_records: int, index: int, number: int, *, drop_remainder: bool = False) -> slice:
    """Return which positions are in one of so many parts; as `part_of`."""
    size, more = divmod(num_records, number)
    more = 0 if drop_remainder else more
    start = size * index + min(index, more)
    return slice(start, start + size + (index < more))


def cut(slices: list[ShardSlice], start: int, stop: int) -> list[ShardSlice]:
    """Return the records from `start` to before `stop`."""
    found = []
    before = 0
    for one in slices:
        low = max(start - before, 0)
        high = min(stop - before, one.take)
        if low < high:
            found.append(ShardSlice(one.shard, one.skip + low, high - low))
        before += one.take
    return found


def _whole(split: Split) -> list[ShardSlice]:
    return [ShardSlice(one.name, 0, one.num_records) for one in split.shards]


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
