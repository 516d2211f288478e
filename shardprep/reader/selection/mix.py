"""Several datasets in fixed shares, which readers take where they take the path of a dataset."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from shardprep.errors import DatasetError
from shardprep.reader.validators import Kind, Location, having, kind_of, number

_THOUSAND = 1000


@dataclass(frozen=True, slots=True)
class Mix:
    """The result of `reader.mix`, which describes it."""

    paths: tuple[str | Path, ...]
    shares: tuple[int, ...]
    """Share of each dataset in thousandths. Their sum is 1,000."""
    stop: Literal["first"] | None

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


def mix_of(shares: Mapping[str | Path, float], stop: Literal["first"] | None) -> Mix:
    """Return a mix with shares rounded to thousandths, whose sum is 1,000.

    DatasetError if a share is rounded to 0.
    """
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
            raise DatasetError("reader.mix", what, "give a larger share, or leave it out")
    return Mix(tuple(shares), tuple(rounded), stop)
