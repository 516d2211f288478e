"""From "train[:90%]+validation" to records of shards. Pure; counts come from the manifest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardprep.errors import DatasetError

if TYPE_CHECKING:
    from shardprep.manifest import Manifest, Split

_SLICE = re.compile(r"(?P<split>\w+)(\[(?P<start>-?\d+%?)?:(?P<stop>-?\d+%?)?\])?")


@dataclass(frozen=True, slots=True)
class ShardSlice:
    """A run of records of one shard."""

    shard: str
    skip: int
    """Records before the first wanted one."""
    take: int
    """Wanted records, at least 1."""


def select(manifest: Manifest, text: str) -> list[ShardSlice]:
    """Return the records that a split expression means, in its order.

    A percentage is rounded to the nearest record, so that [:P%] and [P%:] are the whole; negative
    positions count from the end, and those beyond an end mean that end, as in Python.

    Raises:
        DatasetError: the expression is malformed, names an unknown split, or selects nothing.

    """
    found: list[ShardSlice] = []
    for part in text.split("+"):
        match = _SLICE.fullmatch(part.strip())
        if not match:
            raise DatasetError(
                manifest.name, f"{part!r} is no split", 'write "train", "train[:90%]" or "a+b"'
            )
        if match["split"] not in manifest.splits:
            raise DatasetError(
                manifest.name,
                f"has no split {match['split']!r}",
                f"it has {', '.join(manifest.splits)}",
            )
        split = manifest.splits[match["split"]]
        start = _position(match["start"], 0, split.num_records)
        stop = _position(match["stop"], split.num_records, split.num_records)
        found.extend(_cut(split, start, stop))
    if not found:
        counts = ", ".join(f"{name} {s.num_records:,}" for name, s in manifest.splits.items())
        raise DatasetError(manifest.name, f"{text!r} selects no record", f"it has {counts}")
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


def _cut(split: Split, start: int, stop: int) -> list[ShardSlice]:
    found = []
    before = 0
    for shard in split.shards:
        low = max(start - before, 0)
        high = min(stop - before, shard.num_records)
        if low < high:
            found.append(ShardSlice(shard.name, low, high - low))
        before += shard.num_records
    return found
