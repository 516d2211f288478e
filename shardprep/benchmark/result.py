"""The result of a benchmark: values, and a plot of bars and timelines, drawn by Matplotlib."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from shardprep.benchmark.pipelines import PIPELINES
from shardprep.dataset.card import Card
from shardprep.errors import OptionName, RecipeError, counted

_OURS, _OTHERS, _FAINT = "#0b6e99", "#b9c4cc", "#8a979f"
_ROWS = {"Read": "#d08a1d", "Decode": "#5b8c3e", "Train": "#0b6e99"}
_WIDTH, _BARS_HEIGHT, _TIMELINE_HEIGHT, _DPI = 9.0, 3.2, 1.65, 150
_GAP_S = 2e-4
"""Longest pause between two spans that is not drawn, in seconds."""


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
    """Reason why it cannot run here; `rounds` is then empty."""
    yields: str = ""
    """Dtype of its images."""
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


Span = tuple[float, float]
"""Start and end in seconds."""


def union(spans: Iterable[Span], gap_s: float = 0.0) -> list[Span]:
    """Return the union of spans as sorted spans; those at most `gap_s` apart are joined."""
    joined: list[Span] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if joined and start - joined[-1][1] <= gap_s:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


@dataclass(frozen=True, slots=True)
class Timeline:
    """Seconds of reading, decoding and training, from the start of the first step.

    The host sleeps while an accelerator would train.
    """

    way: str
    read: tuple[Span, ...]
    decode: tuple[Span, ...]
    train: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of a measurement."""

    batch_size: int = 64
    seconds: float = 2.0
    """Duration of the measurement of a pipeline in each round."""
    rounds: int = 3
    timelines: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Benchmark(Card):
    """The speed of several pipelines that read the same split."""

    path: str
    """The dataset: a folder."""
    split: str
    """The split that was read."""
    num_records: int
    """Number of records that were read."""
    num_bytes: int
    """Size of the records that were read."""
    settings: Settings
    """Settings of the measurement."""
    num_cores: int
    """Number of cores that the process may use."""
    ways: tuple[Way, ...]
    """The pipelines, in the order of the table."""
    timelines: tuple[Timeline, ...] = ()
    """With `--plot`: timelines of reading, decoding and training of some pipelines."""
    step_s: float = 0.0
    """Duration of a training step in the timelines."""

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


def check_plot(path: Path) -> None:
    """Raise RecipeError if `write_plot` would fail, to be called before anything is measured."""
    if importlib.util.find_spec("matplotlib") is None:
        what, hint = "needs matplotlib, which is not installed", "pip install 'shardprep[plot]'"
    elif path.suffix.lower() != ".png":
        what, hint = f"{path} is not a .png file", "give a file that ends in .png"
    elif not path.absolute().parent.is_dir():
        what, hint = f"the folder {path.parent} does not exist", "create it first"
    else:
        return
    raise RecipeError(OptionName("plot"), what, hint)


def write_plot(result: Benchmark, path: Path) -> None:
    """Write bars of the rates, and the timelines below them, as a PNG."""
    from matplotlib.figure import Figure

    heights = [_BARS_HEIGHT, *(_TIMELINE_HEIGHT for _ in result.timelines)]
    figure = Figure(figsize=(_WIDTH, sum(heights)), dpi=_DPI, layout="constrained")
    axes = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    _draw_bars(axes[0], result)
    for ax, timeline in zip(axes[1:], result.timelines, strict=True):
        _draw_timeline(ax, timeline, result.settings.batch_size)
        ax.set_xlim(0, max(one.train[-1][1] for one in result.timelines) * 1e3)
    if result.timelines:
        ax.set_xlabel(
            f"milliseconds; {result.step_s * 1e3:.0f} ms a batch represent training on an "
            "accelerator, which leaves the cores free"
        )
    for ax in axes:
        ax.set_frame_on(False)
        ax.tick_params(axis="y", length=0)
        ax.tick_params(axis="x", colors=_FAINT)
    figure.savefig(path, format="png")


def _draw_bars(ax: Any, result: Benchmark) -> None:
    ways = [way for way in result.ways if way.rounds][::-1]
    names = [way.title for way in ways]
    colours = [_OURS if name.startswith("reader.") else _OTHERS for name in names]
    bars = ax.barh(names, [way.images_s for way in ways], color=colours)
    labels = [f"{way.images_s:,.0f}   first batch {way.first_batch_s:.2f} s" for way in ways]
    ax.bar_label(bars, labels, padding=5)
    ax.margins(x=0.3)
    cores = counted(result.num_cores, "core")
    title = f"Images a second, {Path(result.path).parent.name} {result.split}, {cores}"
    ax.set_title(title, loc="left", fontweight="bold")
    ax.set_xticks([])


def _draw_timeline(ax: Any, timeline: Timeline, batch_size: int) -> None:
    # Steps are not joined. An edge makes spans visible that are shorter than a pixel.
    rows = (union(timeline.read, _GAP_S), union(timeline.decode, _GAP_S), timeline.train)
    for position, (row, colour) in enumerate(zip(rows, _ROWS.values(), strict=True)):
        bars = [(start * 1e3, (end - start) * 1e3) for start, end in row]
        edge = "white" if row is timeline.train else colour
        ax.broken_barh(bars, (-position - 0.36, 0.72), color=colour, edgecolor=edge, linewidth=0.4)
    ax.set_yticks([0, -1, -2], list(_ROWS))
    busy = sum(end - start for start, end in timeline.train) / timeline.train[-1][1]
    rate = batch_size * (len(timeline.train) - 1) / timeline.train[-1][0]
    title = (
        f"{PIPELINES[timeline.way].title}: {rate:,.0f} images/s, training {busy:.0%} of the time"
    )
    ax.set_title(title, loc="left", fontsize="medium")
