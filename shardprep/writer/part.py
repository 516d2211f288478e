"""The share of a build that one machine is given: part I of N has every N-th shard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_Shard = TypeVar("_Shard")


@dataclass(frozen=True, slots=True)
class Part:
    """One of the equal parts of a build, which machines do independently."""

    number: int
    """From 1 to `count`."""
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def of(self, shards: Sequence[_Shard]) -> Sequence[_Shard]:
        """Return the shards of this part, none where there are fewer shards than parts."""
        return shards[self.number - 1 :: self.count]


WHOLE = Part(1, 1)


def numbers_of(shards: Iterable[int], count: int) -> str:
    """Return the numbers of the parts, of `count`, that hold some shards, as "2,5,7-9".

    Shards are counted from 0, parts from 1. Array jobs take the text as it is.
    """
    numbers = sorted({shard % count + 1 for shard in shards})
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
