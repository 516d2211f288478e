"""The arguments `path` and `split` of the readers, and the record numbers of a split.

The options of `load` are checked without NumPy, so it is imported where numbers are computed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from shardprep.errors import DatasetError, use_one_of
from shardprep.reader.validators import (
    Count,
    Kind,
    Location,
    Number,
    check_position,
    having,
    kind_of,
    like,
    number,
    text,
    validated,
    validated_fields,
)

if TYPE_CHECKING:
    from shardprep.dataset.manifest import Manifest
    from shardprep.reader.array_types import Ints
    from shardprep.reader.selection.selection import Selection

_THOUSAND = 1000
_SLICE = re.compile(r"(?P<split>\w+)(\[(?P<start>-?\d{1,18}%?)?:(?P<stop>-?\d{1,18}%?)?\])?")


@dataclass(frozen=True, slots=True)
class Mix:
    """Several datasets and their shares, as described in `reader.mix`."""

    paths: tuple[str | Path, ...]
    shares: tuple[int, ...]
    """Share of each dataset in thousandths. Their sum is 1,000."""

    def __str__(self) -> str:
        return self.named(map(str, self.paths))

    def named(self, names: Iterable[str]) -> str:
        """Return the shares with a name for each dataset: "0.7 a + 0.3 b"."""
        parts = zip(self.shares, names, strict=True)
        return " + ".join(f"{share / _THOUSAND:g} {name}" for share, name in parts)


def _shares(value: Any) -> dict[Any, float]:
    path, share = kind_of(Location), number(0)
    shares = {path.take(key): share.take(value[key]) for key in value}
    if not shares or not all(0 < one < math.inf for one in shares.values()):
        raise ValueError
    return shares


Shares = Annotated[
    Mapping[str | Path, float],
    Kind(_shares, ("a dict of paths and shares above 0, like {'tfrecords/a': 0.7, 'b': 0.3}",)),
]
Place = Location | Annotated[Mix, having(lambda value: isinstance(value, Mix), "a reader.mix(…)")]
"""The path or address of a dataset, or a mix."""


def mix_of(shares: Mapping[str | Path, float]) -> Mix:
    """Return a mix whose shares are thousandths, 1,000 together; DatasetError if one becomes 0."""
    total = sum(shares.values())
    exact = [_THOUSAND * share / total for share in shares.values()]
    rounded = [int(share) for share in exact]
    # The largest remainders are rounded up.
    by_remainder = sorted(range(len(exact)), key=lambda i: rounded[i] - exact[i])
    for i in by_remainder[: _THOUSAND - sum(rounded)]:
        rounded[i] += 1
    for (path, share), thousandths in zip(shares.items(), rounded, strict=True):
        if not thousandths:
            what = f"the share {share:g} of {path} is too small: it is rounded to 0 thousandths"
            raise DatasetError("reader.mix", what, "give a larger share, or leave this dataset out")
    return Mix(tuple(shares), tuple(rounded))


@validated_fields("reader.EvenSplit")
@dataclass(frozen=True, slots=True)
class EvenSplit:
    """One of `number` even parts of a split. Readers take such a part as `split`."""

    split: str
    index: Number
    """Number of this part, from 0."""
    number: Count
    """Number of parts."""
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        check_position("reader.EvenSplit", index=self.index, number=self.number)


@validated("reader.even_splits")
def even_splits(split: str, n: Count, *, drop_remainder: bool = False) -> tuple[EvenSplit, ...]:
    """Return `n` parts that divide a split, like `tfds.even_splits`.

    If the records cannot be divided evenly, each of the first parts has one record more; with
    `drop_remainder`, the surplus records are left out. DatasetError if `n` is below 1.
    """
    return tuple(EvenSplit(split, i, n, drop_remainder) for i in range(n))


if TYPE_CHECKING:
    AnySplit: TypeAlias = str | EvenSplit | Selection
else:
    AnySplit = (
        Annotated[str, Kind(text, ("a text such as 'train[:90%]+validation'",))]
        | EvenSplit
        | Annotated[Any, like("a reader.Selection", "numbers", "fingerprint")]
    )


def is_training(split: AnySplit) -> bool:
    """Return whether a split is shuffled by default: not if all names begin with val or test."""
    name = split.split if isinstance(split, EvenSplit) else getattr(split, "name", split)
    parts = str(name).partition(": ")[0].split("+")  # a condition follows the splits: `a == 'x+y'`
    return not all(part.strip().startswith(("val", "test")) for part in parts)


def numbers_of(manifest: Manifest, split: AnySplit) -> Ints:
    """Return int64[records], the record numbers of a split in its order.

    DatasetError if the split does not exist, belongs to another dataset, or is empty.
    """
    import numpy as np

    if isinstance(split, str | EvenSplit):
        ranges = split_ranges(manifest, split)
        return np.concatenate([np.arange(one.start, one.stop, dtype=np.int64) for one in ranges])
    split.check(manifest)
    return split.numbers


def as_selection(manifest: Manifest, split: AnySplit) -> Selection:
    """Return `split` as a `Selection`, without classes if it is new; errors as in `numbers_of`."""
    import numpy as np

    from shardprep.reader.selection.selection import Selection, sorted_unique

    if not isinstance(split, str | EvenSplit):
        split.check(manifest)
        return split
    numbers = sorted_unique(numbers_of(manifest, split))
    unknown, none = np.full(len(numbers), -1), np.empty((0, 2), np.int64)
    return Selection(str(split), manifest.sha256, numbers, unknown, none)


def split_ranges(manifest: Manifest, split: str | EvenSplit) -> list[range]:
    """Return the record numbers of a split in its order, as ranges that are not empty.

    A percentage is rounded to the nearest record, so [:P%] and [P%:] divide the split. As in
    Python, negative bounds of a slice count from the end, and bounds beyond an end mean that end.
    DatasetError if the expression is malformed, names an unknown split, or selects no record.
    """
    expression = split if isinstance(split, str) else split.split
    stops = accumulate(entry.num_records for entry in manifest.splits.values())
    splits = {
        name: range(stop - entry.num_records, stop)
        for (name, entry), stop in zip(manifest.splits.items(), stops, strict=True)
    }
    ranges: list[range] = []
    for part in expression.split("+"):
        match = _SLICE.fullmatch(part.strip())
        if not match:
            hint = 'write "train", "train[:90%]" or "a+b"'
            raise DatasetError(manifest.name, f"{part!r} is not a split", hint)
        for position in (match["start"], match["stop"]):
            if position and position.endswith("%") and abs(int(position[:-1])) > 100:
                hint = "use a percentage from -100% to 100%"
                raise DatasetError(manifest.name, f"{part!r} is not a split", hint)
        if match["split"] not in splits:
            what = f"has no split {match['split']!r}"
            raise DatasetError(manifest.name, what, use_one_of(match["split"], splits))
        whole = splits[match["split"]]
        start = _position(match["start"], 0, len(whole))
        ranges.append(whole[start : _position(match["stop"], len(whole), len(whole))])
    if isinstance(split, EvenSplit):
        ranges = _part(ranges, split)
    ranges = [one for one in ranges if one]
    if not ranges:
        counts = ", ".join(f"{name} {s.num_records:,}" for name, s in manifest.splits.items())
        what = repr(expression) if isinstance(split, str) else str(split)
        raise DatasetError(manifest.name, f"{what} selects no record", f"select from {counts}")
    return ranges


def _part(ranges: list[range], split: EvenSplit) -> list[range]:
    size, more = divmod(sum(map(len, ranges)), split.number)
    more = 0 if split.drop_remainder else more
    start = size * split.index + min(split.index, more)
    stop = start + size + (split.index < more)
    parts, before = [], 0
    for one in ranges:
        parts.append(one[max(start - before, 0) : max(stop - before, 0)])
        before += len(one)
    return parts


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
