"""What a benchmark has found. Values only."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WAYS = {
    "naive": "naive tf.data",
    "tuned": "tuned tf.data",
    "tfds": "tfds",
    "load": "reader.load",
    "dataset": "reader.Dataset",
}
"""Name → how it is called in a table."""

TRACED = ("naive", "load")
"""The ways whose timelines are drawn, above each other."""


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of one way."""

    first_batch_s: float
    """From nothing to the first batch; what follows does not count it."""
    num_images: int
    elapsed_s: float
    cpu_s: float
    """Of all cores together."""


@dataclass(frozen=True, slots=True)
class Way:
    """What came of one way."""

    name: str
    problem: str = ""
    """Why it cannot run here; then there are no rounds."""
    yields: str = ""
    """The dtype of its images."""
    peak_bytes: int = 0
    """The most memory its process has held, libraries included."""
    rounds: tuple[Round, ...] = ()

    @property
    def images_s(self) -> float:
        """Images a second after the first batch, median of the rounds."""
        return self._median(lambda one: one.num_images / one.elapsed_s)

    @property
    def images_s_core(self) -> float:
        """Images for each second that one core was at work, median of the rounds."""
        return self._median(lambda one: one.num_images / max(one.cpu_s, 1e-9))

    @property
    def first_batch_s(self) -> float:
        """Median of the rounds."""
        return self._median(lambda one: one.first_batch_s)

    def _median(self, value: Callable[[Round], float]) -> float:
        return statistics.median(map(value, self.rounds)) if self.rounds else 0.0


Span = tuple[float, float]
"""Start and end, seconds."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each kind of work was going on while a small network was trained."""

    way: str
    num_images: int
    """That were trained on from the start of the first step to the start of the last."""
    elapsed_s: float
    """From the one to the other."""
    read: tuple[Span, ...]
    decode: tuple[Span, ...]
    train: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to measure."""

    batch_size: int = 64
    seconds: float = 2.0
    """That a way is measured for in each round."""
    rounds: int = 3
    timelines: bool = False
    """Trace the ways of `TRACED` as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """What was read, and how fast."""

    path: Path
    split: str
    num_records: int
    num_bytes: int
    """Of the shards that were read."""
    settings: Settings
    num_cores: int
    ways: tuple[Way, ...]
    timelines: tuple[Timeline, ...] = ()
    step_s: float = 0.0
    """What a step takes in the timelines."""

    def bytes_s(self, way: Way) -> float:
        """Return the bytes of shards a second."""
        return way.images_s * self.num_bytes / self.num_records
