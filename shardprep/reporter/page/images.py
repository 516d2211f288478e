"""The sections with pictures: gallery, copies, quality, originals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from shardprep.reporter.findings.copies import Copies
from shardprep.reporter.findings.quality import Quality
from shardprep.reporter.page import boxes, charts
from shardprep.reporter.page.html import Html, code, joined, key, picture, section, table, tag
from shardprep.reporter.pixels.page_pictures import MOST_GROUPS, MOST_OF_GROUP, NO_CLASS, Pictures
from shardprep.storage.space import megabytes

if TYPE_CHECKING:
    from shardprep.reporter.report_data import ReportData

_SIDE = 112
"""Size of a picture in CSS pixels."""
_CELLS = 32
"""Number of cells per side in the chart of original sizes."""


def gallery(report: ReportData, pictures: Pictures) -> Html | None:
    """Return the section with some images of every class, and the mean of all its images."""
    if not any(pictures.gallery.values()):
        return None
    names = report.contents.schema.labels
    parts = []
    for label, numbers in pictures.gallery.items():
        title: str = "Images" if not report.pictured else "without a class"
        items = []
        if label != NO_CLASS:
            title = names[label]
            mean = pictures.means.get(label)
            if mean is not None:
                image = picture(mean.data, f"mean of the images of {title}", _SIDE)
                caption = tag("figcaption", "mean of all")
                items.append(tag("figure", image, caption, class_="mean"))
        items += [_picture(report, pictures, number) for number in numbers]
        parts += [tag("h3", tag("bdi", title)), tag("div", *items, class_="pics")]
    number, seed = report.options.thumbs, report.options.seed
    summary = f"Drawn by seed {seed}; open one for its facts."
    if report.pictured:
        summary = f"{number:,} of each class, drawn by seed {seed}; open one for its facts."
    if 0 < len(report.pictured) < len(names):
        summary += f" The {len(report.pictured):,} largest of {len(names):,} classes."
    shown = [boxes.switch(report.contents.schema)] if pictures.overlays else []
    return section("gallery", "Gallery", tag("p", summary, class_="dim"), *shown, *parts)


def _picture(report: ReportData, pictures: Pictures, number: int, caption: str = "") -> Html:
    """Return a picture that opens to the facts about its record."""
    contents = report.contents
    place = contents.place(number)
    thumbnail = pictures.thumbnails.get(number)
    image, marked = tag("p", "no picture"), None
    if thumbnail is not None:
        tiny = "tiny" if max(thumbnail.width, thumbnail.height) < _SIDE // 2 else None
        alt = f"{place.label}: {place.key}" if place.label else place.key
        image = picture(thumbnail.data, alt, _SIDE, tiny)
        marked = None if caption else pictures.overlays.get(number)
        if marked is not None:
            drawn = boxes.overlay(contents, number, marked, thumbnail)
            image = tag("span", image, *drawn, class_="shot")
    height, width = int(contents.height[number]), int(contents.width[number])
    form, size = contents.written["original_format"][number], contents.original_bytes[number]
    facts = (
        ("key", key(place.key)),
        ("split", place.split),
        *((("target", place.label or "none"),) if contents.schema.target else ()),
        *(boxes.facts(contents, number, marked) if marked is not None else ()),
        ("original", f"{width:,} × {height:,} {form.as_py() or ''}, {int(size):,} bytes"),
        ("shard", f"{place.shard}, record {place.shard_record:,}"),
        ("read it", code(f'reader.Dataset(path, "{place.split}")[{place.record}]')),
    )
    listed = tag("dl", *(joined(tag("dt", name), tag("dd", value)) for name, value in facts))
    own = place.key.rpartition("/")[2] if report.pictured else place.label or place.key
    shown = tag("span", caption or own, class_="cap")
    return tag("details", tag("summary", image, shown), listed, class_="pic")


def copies(report: ReportData, pictures: Pictures) -> Html:
    """Return the section with the groups of copies, leaks first."""
    groups = sorted(report.copies, key=lambda one: (not one.is_leak, not one.is_conflict))
    near = "and near copies " if report.measured is not None else ""
    if not groups:
        text = f"✔ No copies {near}were found."
        return section("copies", "Leaks and copies", tag("p", text, class_="good"))
    leaks = sum(one.is_leak for one in groups)
    summary = (
        f"{len(groups):,} group{'s' * (len(groups) != 1)} of copies {near}· {leaks:,} in more than "
        "one split. The first image of a group is the one that deduplication keeps."
    )
    shown = [_group(report, pictures, one) for one in groups[:MOST_GROUPS]]
    rest = len(groups) - len(shown)
    if rest:
        shown.append(tag("p", f"{rest:,} more groups: shardprep report --json lists them all."))
    return section(
        "copies", "Leaks and copies", tag("p", summary, class_="dim"),
        tag("div", *shown, class_="groups"),
    )  # fmt: skip


def _group(report: ReportData, pictures: Pictures, group: Copies) -> Html:
    contents = report.contents
    items = []
    for number, bits in list(zip(group.numbers, group.bits, strict=True))[:MOST_OF_GROUP]:
        place = contents.place(number)
        label = f" · {place.label}" if place.label else ""
        distance = f" · {bits} bits" if group.kind == "near" and number != group.numbers[0] else ""
        caption = joined(tag("span", place.split, class_="split"), label, distance)
        items.append(_picture(report, pictures, number, caption))
    kind = "copies, byte for byte" if group.kind == "exact" else "near copies"
    where = " and ".join(group.splits)
    conflict = "; their targets differ" if group.is_conflict else ""
    sign = "✖ leak: " if group.is_leak else ""
    title = f"{sign}{len(group.numbers):,} {kind}, in {where}{conflict}"
    more = len(group.numbers) - len(items)
    rest = [tag("p", f"and {more:,} more", class_="dim")] if more else []
    return tag(
        "div", tag("h3", title), tag("div", *items, class_="pics"), *rest,
        class_="group leak" if group.is_leak else "group",
    )  # fmt: skip


_TITLES = {
    "dark": "Dark",
    "light": "Light",
    "flat": "Flat",
    "blurry": "Blurry",
    "grey": "Grey",
    "odd-aspect": "Aspect",
    "enlarged": "Enlarged",
}
_OF_ORIGINALS = ("odd-aspect", "enlarged")


def quality(report: ReportData, pictures: Pictures) -> Html | None:
    """Return the section with the histogram and the worst images of each pixel property."""
    shown = [one for one in report.qualities if one.name not in _OF_ORIGINALS]
    if not shown:
        return None
    summary = (
        "Thresholds are opinions, and fine detail depends on the size of the images. Look at the "
        "pictures: they are the images nearest to each threshold or beyond it, worst first."
    )
    parts = [_property(report, pictures, one) for one in shown]
    legend = charts.legend(report.contents.splits)
    return section("quality", "Quality", tag("p", summary, class_="dim"), legend, *parts)


def _property(report: ReportData, pictures: Pictures, measurement: Quality) -> Html:
    number = len(measurement.found)
    title = f"{_TITLES[measurement.name]}: {number:,} image{'s' * (number != 1)}"
    chart = charts.histogram_chart(
        measurement.what,
        measurement.histogram,
        report.contents.splits,
        (measurement.threshold, measurement.is_below),
    )
    beyond = frozenset(measurement.found)
    items = [
        _picture(report, pictures, number, f"{value:.3g}{' · found' if number in beyond else ''}")
        for number, value in zip(measurement.nearest, measurement.values, strict=True)
        if number in pictures.thumbnails
    ]
    right = [tag("div", *items, class_="pics")] if items else []
    side = "below" if measurement.is_below else "above"
    what = f"{measurement.what[:1].upper()}{measurement.what[1:]}"
    text = f"{what}; found {side} {measurement.threshold:g}."
    figure = tag("figure", chart, tag("figcaption", text))
    return joined(tag("h3", title), tag("div", figure, *right, class_="cols"))


def originals(report: ReportData, pictures: Pictures) -> Html | None:
    """Return the section on sizes, aspects and formats of the originals."""
    contents = report.contents
    known = np.flatnonzero((contents.height > 0) & (contents.width > 0))
    if not len(known):
        return None
    formats = [(name, count) for name, count in contents.formats.items()]
    rows: list[tuple[str | int, ...]] = []
    for title, values in (("width", contents.width), ("height", contents.height),
                          ("bytes", contents.original_bytes)):  # fmt: skip
        spread = np.quantile(values[known], (0, 0.05, 0.5, 0.95, 1), method="nearest")
        rows.append((title, *(int(one) for one in spread)))
    parts = [
        tag(
            "div",
            tag("div", tag("h3", "Width and height in pixels"), _sizes(report, known)),
            tag(
                "div",
                tag("h3", "Sizes"),
                table(("", "least", "5 %", "median", "95 %", "largest"), rows),
                tag("h3", "Formats"),
                table(("format", "images"), [*formats]),
                tag("p", f"{megabytes(int(contents.original_bytes.sum()))} in all.", class_="dim"),
            ),
            class_="cols",
        )
    ]
    parts += [
        _property(report, pictures, one) for one in report.qualities if one.name in _OF_ORIGINALS
    ]
    return section("originals", "Originals", *parts)


def _sizes(report: ReportData, known: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Html:
    """Return the heat map of original widths and heights, with the stored size as a frame."""
    contents = report.contents
    width, height = contents.width[known], contents.height[known]
    stored = contents.schema.image_size
    limit = int(np.quantile(np.maximum(width, height), 0.99, method="nearest"))
    limit = max(limit, max(stored, default=1) if stored else 1) * 17 // 16 + 1
    bins = [np.minimum(one * _CELLS // limit, _CELLS - 1) for one in (height, width)]
    flat = np.bincount(bins[0] * _CELLS + bins[1], minlength=_CELLS**2)
    marks: Sequence[Html] = ()
    if stored:
        high, wide = (side / limit * _CELLS for side in stored)
        marks = [tag("rect", x=0, y=_CELLS - high, width=wide, height=high, class_="mark")]
    ends = ("0", f"{limit:,}", "0", f"{limit:,}")
    chart = charts.grid(
        "Originals by width (to the right) and height (upwards)",
        flat.reshape(_CELLS, _CELLS).tolist(), ends, marks,
    )  # fmt: skip
    text = "Darker: more images. The 1 % with the longest sides are counted at the edge."
    if stored:
        text += f" The frame is the stored size, {stored[1]} × {stored[0]}."
    return charts.captioned(chart, text)
