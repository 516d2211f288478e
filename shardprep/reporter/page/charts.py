"""Charts as inline SVG, without a library or a script. CSS classes give the colours of splits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from shardprep.image.drawing import INK, class_colour
from shardprep.reporter.findings.quality import Histogram
from shardprep.reporter.page.html import Html, more, table, tag

_WIDTH, _HEIGHT = 420, 130
"""Size of a histogram in SVG units."""
_AXIS = 20
_MOST_ROWS = 10
"""Approximate number of rows in a histogram's table. Neighbouring bins are merged."""


def split_class(splits: Sequence[str], name: str) -> str:
    """Return the CSS class that gives a split its colour, the same on the whole page."""
    known = {"train": 0, "validation": 1, "test": 2}
    others = [one for one in splits if one not in known]
    return f"s{known[name] if name in known else 3 + others.index(name) % 3}"


def legend(splits: Sequence[str]) -> Html:
    """Return the legend of split colours."""
    dots = [tag("span", class_=f"dot {split_class(splits, one)}") for one in splits]
    items = [tag("li", dot, name) for dot, name in zip(dots, splits, strict=True)]
    return tag("ul", *items, class_="legend")


def hex_colour(label: int) -> str:
    """Return the colour of a class as "#rrggbb", as on contact sheets; −1 means no class."""
    red, green, blue = class_colour(label) if label >= 0 else INK
    return f"#{red:02x}{green:02x}{blue:02x}"


def chip(label: int) -> Html:
    """Return a square in the colour of a class; −1 means no class."""
    square = tag("rect", width=1, height=1, fill=hex_colour(label))
    return tag("svg", square, viewBox="0 0 1 1", class_="chip", aria_hidden="true")


def stacked_bar(
    counts: Mapping[str, int], most: int, splits: Sequence[str], label: str, height: int = 12
) -> Html:
    """Return a bar with one part per split. A sum of counts equal to `most` fills the width."""
    at, parts = 0.0, []
    for name, count in counts.items():
        width = count / max(most, 1) * 100
        if count:
            css = split_class(splits, name)
            parts.append(tag("rect", x=at, y=0, width=width, height=10, class_=css))
        at += width
    return tag(
        "svg",
        tag("title", label),
        *parts,
        viewBox="0 0 100 10",
        preserveAspectRatio="none",
        width="100%",
        height=height,
        role="img",
        class_="bar",
    )


def histogram_chart(
    title: str,
    histogram: Histogram,
    splits: Sequence[str],
    threshold: tuple[float, bool] | None = None,
) -> Html:
    """Return a chart of shares by split, with a table. `threshold`: (value to mark, `is_below`)."""
    shares = {
        name: [count / max(sum(counts), 1) for count in counts]
        for name, counts in histogram.counts.items()
    }
    top = max(map(max, shares.values()), default=0) or 1
    bars = []
    for name, split_shares in shares.items():
        step = _WIDTH / len(split_shares)
        points = [f"M0 {_HEIGHT}"]
        for i, share in enumerate(split_shares):
            y = _HEIGHT - share / top * (_HEIGHT - 8)
            points.append(f"L{i * step:.6g} {y:.4g}H{(i + 1) * step:.6g}")
        points.append(f"V{_HEIGHT}Z")
        bars.append(tag("path", d="".join(points), class_=f"area {split_class(splits, name)}"))
    mark: list[Html] = []
    if threshold is not None:
        value, is_below = threshold
        x = (value - histogram.low) / (histogram.high - histogram.low) * _WIDTH
        x = min(max(x, 1.0), _WIDTH - 1.0)
        mark = [
            tag("line", x1=x, x2=x, y1=0, y2=_HEIGHT, class_="limit"),
            tag(
                "text", f"{'<' if is_below else '>'} {value:g}", x=x + (4 if x < 330 else -4), y=11,
                class_="limit", text_anchor="start" if x < 330 else "end",
            ),
        ]  # fmt: skip
    middle = (histogram.low + histogram.high) / 2
    ticks = [
        tag("text", f"{value:g}", x=x, y=_HEIGHT + 15, text_anchor=anchor)
        for value, x, anchor in (
            (histogram.low, 0, "start"), (middle, _WIDTH / 2, "middle"),
            (histogram.high, _WIDTH, "end"),
        )
    ]  # fmt: skip
    chart = tag(
        "svg",
        tag("title", f"Histogram of {title}"),
        *bars,
        tag("line", x1=0, x2=_WIDTH, y1=_HEIGHT, y2=_HEIGHT, class_="axis"),
        *mark,
        *ticks,
        viewBox=f"-2 0 {_WIDTH + 4} {_HEIGHT + _AXIS}",
        role="img",
        class_="chart",
    )
    return tag("div", chart, more("numbers", _histogram_table(histogram)))


def _histogram_table(histogram: Histogram) -> Html:
    names = list(histogram.counts)
    num_bins = len(next(iter(histogram.counts.values()), ()))
    width = (histogram.high - histogram.low) / max(num_bins, 1)
    merged = max(1, num_bins // _MOST_ROWS)
    rows: list[tuple[str | int, ...]] = []
    for start in range(0, num_bins, merged):
        low, high = histogram.low + start * width, histogram.low + (start + merged) * width
        sums = [sum(histogram.counts[name][start : start + merged]) for name in names]
        if any(sums):
            rows.append((f"{low:.4g} to {high:.4g}", *sums))
    return table(("values", *names), rows)


def grid(
    title: str,
    counts: Sequence[Sequence[int]],
    labels: tuple[str, str, str, str],
    marks: Sequence[Html] = (),
) -> Html:
    """Return a heat map: higher counts are darker, and row 0 is at the bottom.

    `labels` are the texts at both ends of the x axis, then of the y axis. `marks` are drawn on top,
    with the side of a cell as unit.
    """
    rows, columns = len(counts), len(counts[0])
    most = max(map(max, counts), default=0) or 1
    cells = []
    for y, row in enumerate(counts):
        for x, count in enumerate(row):
            if count:
                shade = 1 + math.floor(8.99 * math.log1p(count) / math.log1p(most + 1e-9))
                css = f"h{min(shade, 9)}"
                cells.append(tag("rect", class_=css, x=x, y=rows - 1 - y, width=1, height=1))
    ratio = 300 / max(rows, columns)
    width, height = columns * ratio, rows * ratio
    words = [
        tag("text", labels[0], x=46, y=height + 20),
        tag("text", labels[1], x=46 + width, y=height + 20, text_anchor="end"),
        tag("text", labels[2], x=42, y=height + 4, text_anchor="end"),
        tag("text", labels[3], x=42, y=14, text_anchor="end"),
    ]
    return tag(
        "svg",
        tag("title", title),
        tag("rect", x=46, y=4, width=width, height=height, class_="frame"),
        tag("g", *cells, *marks, transform=f"translate(46 4) scale({ratio:.6g})"),
        *words,
        viewBox=f"0 0 {width + 50:.6g} {height + 26:.6g}",
        role="img",
        class_="chart square",
    )


def captioned(chart: Html, caption: str) -> Html:
    """Return a chart with a caption below it."""
    return tag("figure", chart, tag("figcaption", caption))
