"""The result of a benchmark. Values only."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from shardprep.dataset.card import Card

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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
    """One way to read."""

    name: str
    """Name of the way: naive, tuned, tfds, load or dataset."""
    problem: str = ""
    """Reason for which it cannot run here; then there are no rounds."""
    yields: str = ""
    """Dtype of its images."""
    peak_bytes: int = 0
    """The most memory its process has held, libraries included; 0 where the system is not Linux."""
    rounds: tuple[Round, ...] = ()
    """Measurements, one a round."""
    images_s: float = 0.0
    """Images a second after the first batch, median of the rounds."""
    images_s_core: float = 0.0
    """Images for each second that one core was at work, median of the rounds."""
    bytes_s: float = 0.0
    """Bytes of shards a second, median of the rounds."""
    first_batch_s: float = 0.0
    """Seconds to the first batch, median of the rounds."""

    @classmethod
    def measured(
        cls, name: str, rounds: Sequence[Round], yields: str, peak_bytes: int, image_bytes: float
    ) -> Self:
        """Return the medians of rounds; an image has so many bytes of the shards, on average."""
        images_s = statistics.median(one.num_images / one.elapsed_s for one in rounds)
        return cls(
            name,
            yields=yields,
            peak_bytes=peak_bytes,
            rounds=tuple(rounds),
            images_s=images_s,
            images_s_core=statistics.median(
                one.num_images / max(one.cpu_s, 1e-9) for one in rounds
            ),
            bytes_s=images_s * image_bytes,
            first_batch_s=statistics.median(one.first_batch_s for one in rounds),
        )

    @property
    def title(self) -> str:
        """Name for people: "naive tf.data"."""
        from shardprep.benchmark.pipelines import PIPELINES

        return PIPELINES[self.name].title


Span = tuple[float, float]
"""Start and end, seconds."""


def union(spans: Iterable[Span], gap_s: float = 0.0) -> list[Span]:
    """Return, in order, the times when any span was running; a pause of a gap or less counts."""
    found: list[Span] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if found and start - found[-1][1] <= gap_s:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Benchmark(Card):
    """The speed of several ways to read a split."""

    path: str
    """The dataset: a folder."""
    split: str
    """The split that was read."""
    num_records: int
    """Records of the shards that were read."""
    num_bytes: int
    """Size of the shards that were read."""
    settings: Settings
    """Settings of the measurement."""
    num_cores: int
    """Cores that the process may use."""
    ways: tuple[Way, ...]
    """Ways to read, in the order of the table."""
    timelines: tuple[Timeline, ...] = ()
    """Timelines, with `--plot`."""
    step_s: float = 0.0
    """Duration of a training step in the timelines."""

    def facts(self) -> dict[str, Any]:
        """Return the dataset, and images a second of each way to read."""
        return {
            "at": self.path,
            "read": f"{self.split}: {self.num_records:,} images",
            "images/s": {
                way.name: f"{way.images_s:,.0f}" if way.rounds else f"not run: {way.problem}"
                for way in self.ways
            },
            "cores": self.num_cores,
        }
