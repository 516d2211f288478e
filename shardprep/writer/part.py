"""The part of a build: part I of N has every N-th shard, so that the parts are a partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_Shard = TypeVar("_Shard")


@dataclass(frozen=True, slots=True)
class Part:
    """One of the equal parts in which a build is done, apart from each other."""

    number: int
    """1 to count."""
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def of(self, shards: Sequence[_Shard]) -> Sequence[_Shard]:
        """Return the shards of this part, none where there are fewer shards than parts."""
        return shards[self.number - 1 :: self.count]


WHOLE = Part(1, 1)


def numbers_of(shards: Iterable[int], count: int) -> str:
    """Return which of `count` parts have the shards with these places, as "2,5,7-9".

    The places count from 0; array jobs take what is returned as it is.
    """
    numbers = sorted({place % count + 1 for place in shards})
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
