"""The result of a benchmark. Values only."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of one pipeline."""

    first_batch_s: float
    """Seconds from nothing to the first batch; the other figures do not count it."""
    num_images: int
    elapsed_s: float
    cpu_s: float
    """Seconds of all cores together."""


@dataclass(frozen=True, slots=True)
class Way:
    """The rounds of one pipeline."""

    name: str
    """Name in `shardprep.benchmark.pipelines.PIPELINES`."""
    problem: str = ""
    """Why it cannot run here; then there are no rounds."""
    yields: str = ""
    """The dtype of its images."""
    peak_bytes: int = 0
    """Most bytes of memory that its process has held, libraries included."""
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
        """Seconds to the first batch, median of the rounds."""
        return self._median(lambda one: one.first_batch_s)

    def _median(self, value: Callable[[Round], float]) -> float:
        return statistics.median(map(value, self.rounds)) if self.rounds else 0.0


Span = tuple[float, float]
"""Start and end, seconds."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Times when each kind of work was going on, while a pause stood in for training."""

    way: str
    num_images: int
    """Images trained on from the start of the first step to the start of the last."""
    elapsed_s: float
    """Seconds from the start of the first step to the start of the last."""
    read: tuple[Span, ...]
    decode: tuple[Span, ...]
    train: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of a measurement."""

    batch_size: int = 64
    seconds: float = 2.0
    """Seconds that a pipeline is measured for in each round."""
    rounds: int = 3
    timelines: bool = False
    """Whether timelines are traced as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """The records that were read, and how fast each pipeline was."""

    path: Path
    split: str
    num_records: int
    num_bytes: int
    """Bytes of the shards that were read."""
    settings: Settings
    num_cores: int
    ways: tuple[Way, ...]
    timelines: tuple[Timeline, ...] = ()
    step_s: float = 0.0
    """Seconds of a step in the timelines."""

    def bytes_s(self, way: Way) -> float:
        """Return the bytes of shards a second of a pipeline."""
        return way.images_s * self.num_bytes / self.num_records
