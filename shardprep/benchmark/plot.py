"""A benchmark as a picture: bars of images a second, and timelines of read, decode and train.

Matplotlib is an extra (`pip install 'shardprep[plot]'`) and is imported here alone, to draw.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardprep.benchmark.pipelines import PIPELINES
from shardprep.benchmark.result import union
from shardprep.errors import RecipeError, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardprep.benchmark.result import Benchmark, Span, Timeline

_OURS, _OTHERS, _INK, _FAINT = "#0b6e99", "#b9c4cc", "#22303a", "#8a979f"
_ROWS = {"Read": "#d08a1d", "Decode": "#5b8c3e", "Train": "#0b6e99"}
_WIDTH, _BARS_HEIGHT, _TIMELINE_HEIGHT, _DPI = 9.0, 3.7, 1.65, 150
"""Inches, and pixels of an inch."""
_GAP_S = 2e-4
"""Seconds of the longest pause between two images that is not drawn: finding the next one."""


def check_plot(path: Path) -> None:
    """Check that a picture can be written there, before anything is measured for it.

    Raises:
        RecipeError: matplotlib is not installed, or the file is no .png.

    """
    if importlib.util.find_spec("matplotlib") is None:
        raise RecipeError(
            "--plot", "needs matplotlib, which is not installed", "pip install 'shardprep[plot]'"
        )
    if path.suffix.lower() != ".png":
        raise RecipeError("--plot", f"{path} is no .png", "name a file that ends in .png")
    if not path.absolute().parent.is_dir():
        raise RecipeError("--plot", f"there is no folder {path.parent}", "make it first")


def write_plot(found: Benchmark, path: Path) -> None:
    """Write the picture, a PNG."""
    from matplotlib.figure import Figure

    rows = [_BARS_HEIGHT, *(_TIMELINE_HEIGHT for _ in found.timelines)]
    figure = Figure(figsize=(_WIDTH, sum(rows)), dpi=_DPI, facecolor="white")
    figure.set_layout_engine("constrained", w_pad=0.15, h_pad=0.12)
    axes = figure.subplots(len(rows), 1, height_ratios=rows, squeeze=False)[:, 0]
    _bars(axes[0], found)
    longest = max((one.train[-1][1] for one in found.timelines), default=0.0)
    for ax, timeline in zip(axes[1:], found.timelines, strict=True):
        _timeline(ax, timeline, longest)
    if found.timelines:
        axes[1].annotate(
            f"{found.step_s * 1e3:.0f} ms a batch stand in for training on an accelerator, "
            "which leaves the cores alone",
            (0, 1), (0, 22), xycoords="axes fraction", textcoords="offset points",
            color=_INK, fontsize=11, fontweight="bold",
        )  # fmt: skip
        axes[-1].set_xlabel("milliseconds", color=_FAINT)
    figure.savefig(path, format="png")


def _bars(ax: Any, found: Benchmark) -> None:
    ways = [way for way in found.ways if way.rounds][::-1]
    names = [way.title for way in ways]
    colours = [_OURS if name.startswith("reader.") else _OTHERS for name in names]
    bars = ax.barh(names, [way.images_s for way in ways], color=colours, height=0.62)
    labels = [f"{way.images_s:,.0f}   first batch {way.first_batch_s:.2f} s" for way in ways]
    ax.bar_label(bars, labels, padding=5, color=_INK, fontsize=9)
    ax.set_xlim(0, max((way.images_s for way in ways), default=1.0) * 1.3)
    cores = counted(found.num_cores, "core")
    title = f"Images a second, {Path(found.path).parent.name} {found.split}, {cores}"
    ax.set_title(title, loc="left", color=_INK, fontsize=11, fontweight="bold")
    ax.tick_params(axis="x", labelbottom=False, length=0)
    _plain(ax)


def _timeline(ax: Any, timeline: Timeline, longest: float) -> None:
    spans: list[Sequence[Span]] = [timeline.read, timeline.decode, timeline.train]
    for place, (name, row) in enumerate(zip(_ROWS, spans, strict=True)):
        colour = _ROWS[name]
        # Steps stay apart; what is shorter than a pixel is drawn as wide as one.
        parts = row if name == "Train" else union(row, _GAP_S)
        bars = [(start * 1e3, (end - start) * 1e3) for start, end in parts]
        edge = ("white", 0.8) if name == "Train" else (colour, 0.4)
        ax.broken_barh(
            bars, (-place - 0.36, 0.72), facecolors=colour, edgecolor=edge[0], linewidth=edge[1]
        )
    ax.set_yticks([0, -1, -2], list(_ROWS))
    ax.set_xlim(0, longest * 1e3)
    busy = sum(end - start for start, end in timeline.train) / timeline.train[-1][1]
    rate = timeline.num_images / timeline.elapsed_s
    ax.set_title(
        f"{PIPELINES[timeline.way].title}: {rate:,.0f} images/s, training {busy:.0%} of the time",
        loc="left", color=_INK, fontsize=10,
    )  # fmt: skip
    _plain(ax)


def _plain(ax: Any) -> None:
    for side in ("top", "right", "left", "bottom"):
        ax.spines[side].set_visible(False)
    ax.tick_params(axis="y", length=0, labelcolor=_INK)
    ax.tick_params(axis="x", colors=_FAINT)
