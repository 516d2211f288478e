"""The result of a benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from shardprep.benchmark.pipelines import PIPELINES
from shardprep.dataset.card import Card
from shardprep.errors import counted


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement of one pipeline."""

    first_batch_s: float
    """Seconds from the start to the first batch; not part of the other figures."""
    num_images: int
    elapsed_s: float
    cpu_s: float
    """Processor seconds of all cores."""


@dataclass(frozen=True, slots=True)
class Way:
    """One pipeline, and its measurements."""

    name: str
    """Name of the pipeline: naive, tuned, load or dataset."""
    problem: str = ""
    """Reason why the pipeline cannot run here; `rounds` is then empty."""
    yields: str = ""
    """Dtype of the images that the pipeline yields."""
    peak_bytes: int = 0
    """Peak memory of its process, libraries included; 0 if the system is not Linux."""
    rounds: tuple[Round, ...] = ()
    """Measurements, one for each round."""
    images_s: float = 0.0
    """Images per second after the first batch, median of the rounds."""
    images_s_core: float = 0.0
    """Images per processor second, median of the rounds."""
    first_batch_s: float = 0.0
    """Seconds to the first batch, median of the rounds."""

    @classmethod
    def measured(cls, name: str, rounds: Sequence[Round], yields: str, peak_bytes: int) -> Self:
        """Return a pipeline with the medians of its rounds."""
        return cls(
            name,
            yields=yields,
            peak_bytes=peak_bytes,
            rounds=tuple(rounds),
            images_s=statistics.median(one.num_images / one.elapsed_s for one in rounds),
            images_s_core=statistics.median(
                one.num_images / max(one.cpu_s, 1e-9) for one in rounds
            ),
            first_batch_s=statistics.median(one.first_batch_s for one in rounds),
        )

    @property
    def title(self) -> str:
        return PIPELINES[self.name].title


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of a measurement."""

    batch_size: int = 64
    seconds: float = 2.0
    """Duration of the measurement of a pipeline in each round."""
    rounds: int = 3


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Benchmark(Card):
    """The speed of several pipelines that read the same split."""

    path: str
    """Folder of the dataset."""
    split: str
    """The split that was read."""
    num_records: int
    """Number of records that were read."""
    num_bytes: int
    """Size of the records that were read, in bytes."""
    settings: Settings
    """Settings of the measurement."""
    num_cores: int
    """Number of cores that the process may use."""
    ways: tuple[Way, ...]
    """The pipelines, in the order of the table."""

    def facts(self) -> dict[str, Any]:
        return {
            "at": self.path,
            "read": f"{self.split}: {counted(self.num_records, 'image')}",
            "images/s": {
                way.name: f"{way.images_s:,.0f}" if way.rounds else f"not run: {way.problem}"
                for way in self.ways
            },
            "cores": self.num_cores,
        }
