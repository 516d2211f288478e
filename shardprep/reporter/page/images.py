"""The sections with pictures: gallery, copies, wrong labels, quality, originals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardprep.errors import counted
from shardprep.reporter.findings.copies import Copies, Part
from shardprep.reporter.findings.quality import OF_ORIGINALS, Quality
from shardprep.reporter.page import charts, pictures
from shardprep.reporter.page.html import (
    Html,
    capitalized,
    joined,
    key,
    pairs,
    picture,
    section,
    table,
    tag,
)
from shardprep.reporter.page.pictures import (
    MOST_GROUPS,
    MOST_OF_GROUP,
    NO_CLASS,
    Pictures,
    copy_facts,
    copy_group,
)
from shardprep.reporter.record_columns import Contents, Ints
from shardprep.reporter.report_data import ReportData
from shardprep.storage.space import megabytes

_SIDE = 112
"""Size of a picture in CSS pixels."""
_CELLS = 32


def gallery(report: ReportData, drawn: Pictures) -> Html | None:
    """Return the section with sample and mean images of classes, or None without images."""
    if not any(drawn.gallery.values()):
        return None
    names = report.contents.schema.labels
    parts = []
    for label, numbers in drawn.gallery.items():
        title: str = "Images" if not report.pictured else "without a class"
        items = []
        if label != NO_CLASS:
            title = names[label]
            mean = drawn.means.get(label)
            if mean is not None:
                image = picture(mean.data, f"mean of the images of {title}", _SIDE)
                items.append(tag("figure", image, tag("figcaption", "mean of all"), class_="mean"))
        items += [_picture(report, drawn, number) for number in numbers]
        parts += [tag("h3", tag("bdi", title)), tag("div", *items, class_="pics")]
    number, seed = report.options.thumbs, report.options.seed
    summary = f"Drawn by seed {seed}; open one for its facts."
    if report.pictured:
        summary = f"{number:,} of each class, drawn by seed {seed}; open one for its facts."
    if 0 < len(report.pictured) < len(names):
        summary += f" The {len(report.pictured):,} largest of {len(names):,} classes."
    shown = [pictures.switch(report.contents.schema)] if drawn.overlays else []
    return section("gallery", "Gallery", tag("p", summary, class_="dim"), *shown, *parts)


def _picture(
    report: ReportData,
    drawn: Pictures,
    number: int,
    caption: str = "",
    turn: int = 0,
    parts: Sequence[Part] = (),
) -> Html:
    contents = report.contents
    place = contents.place(number)
    thumbnail = drawn.thumbnails.get(number)
    image, marked = tag("p", "no picture"), None
    if thumbnail is not None:
        tiny = "tiny" if max(thumbnail.width, thumbnail.height) < _SIDE // 2 else None
        image = picture(thumbnail.data, place.title, _SIDE, tiny)
        marked = None if caption else drawn.overlays.get(number)
        if marked is not None:
            over = pictures.overlay(contents, number, marked, thumbnail)
            image = tag("span", image, *over, class_="shot")
        if turn or parts:
            lines = [pictures.drawn_parts(parts, thumbnail)] if parts else []
            image = tag("span", image, *lines, class_=f"shot t{turn}")
    height, width = int(contents.height[number]), int(contents.width[number])
    form, size = contents.written["original_format"][number], contents.original_bytes[number]
    original = f"{width:,} × {height:,} {form.as_py() or ''}, {int(size):,} bytes"
    facts = pictures.facts(contents, number, marked, ("original", original))
    listed = pairs([("key", key(place.key)), *facts])
    own = place.key.rpartition("/")[2] if report.pictured else place.label or place.key
    shown = tag("span", caption or own, class_="cap")
    return tag("details", tag("summary", image, shown), listed, class_="pic")


def copies(report: ReportData, drawn: Pictures) -> Html:
    """Return the section with the groups of copies, leaks first."""
    groups = sorted(report.copies, key=lambda one: (not one.is_leak, not one.is_conflict))
    near = "and near copies " if report.measured is not None else ""
    if not groups:
        text = f"✔ No copies {near}were found."
        return section("copies", "Leaks and copies", tag("p", text, class_="good"))
    leaks = sum(one.is_leak for one in groups)
    summary = (
        f"{counted(len(groups), 'group')} of copies {near}· {leaks:,} in more than one split. "
        "The first image of a group is the one that deduplication keeps; turned copies are shown "
        "like it, and a line surrounds what a cropped copy shows."
    )
    shown = [_group(report, drawn, one) for one in groups[:MOST_GROUPS]]
    rest = len(groups) - len(shown)
    if rest:
        shown.append(
            tag("p", f"{counted(rest, 'more group')}: shardprep report --json lists them all.")
        )
    listed = tag("div", *shown, class_="groups")
    return section("copies", "Leaks and copies", tag("p", summary, class_="dim"), listed)


def _group(report: ReportData, drawn: Pictures, group: Copies) -> Html:
    items = [
        _picture(
            report,
            drawn,
            number,
            copy_facts(report.contents, group, i),
            group.turns[i],
            group.parts[i],
        )
        for i, number in enumerate(group.numbers[:MOST_OF_GROUP])
    ]
    return copy_group(group, tag("div", *items, class_="pics"), MOST_OF_GROUP)


def wrong_labels(report: ReportData, drawn: Pictures) -> Html | None:
    """Return the section on labels that are probably wrong, or None without predictions."""
    if not report.options.predicted:
        return None
    items = [
        _picture(report, drawn, number, f"{given} → {likely} · {score:.2g}")
        for number, given, likely, score in report.wrong_labels[:MOST_GROUPS]
        if number in drawn.thumbnails
    ]
    what = "Given class → likely class · predicted probability of the given class."
    hint = "Correct the column label of the list; build … --relabel csv:wrong-labels.csv reads it."
    texts = f"{capitalized(report.options.predicted)}.", what, hint
    shown = *(tag("p", text, class_="dim") for text in texts), tag("div", *items, class_="pics")
    return section("wrong-labels", "Labels that are probably wrong", *shown)


def quality(report: ReportData, drawn: Pictures) -> Html | None:
    """Return the section on the measured pixel properties, or None if no property was measured."""
    shown = [one for one in report.qualities if one.name not in OF_ORIGINALS]
    if not shown:
        return None
    summary = (
        "Thresholds are opinions, and fine detail depends on the size of the images. Look at the "
        "pictures: they are the images nearest to each threshold or beyond it, worst first."
    )
    parts = [_property(report, drawn, one) for one in shown]
    legend = charts.legend(report.contents.splits)
    return section("quality", "Quality", tag("p", summary, class_="dim"), legend, *parts)


def _property(report: ReportData, drawn: Pictures, one: Quality) -> Html:
    name = "Aspect" if one.name == "odd-aspect" else one.name.capitalize()
    title = f"{name}: {counted(len(one.found), 'image')}"
    threshold = one.threshold, one.is_below
    chart = charts.histogram_chart(one.what, one.histogram, report.contents.splits, threshold)
    beyond = frozenset(one.found)
    items = [
        _picture(report, drawn, number, f"{value:.3g}{' · found' if number in beyond else ''}")
        for number, value in zip(one.nearest, one.values, strict=True)
        if number in drawn.thumbnails
    ]
    right = [tag("div", *items, class_="pics")] if items else []
    side = "below" if one.is_below else "above"
    figure = charts.captioned(chart, f"{capitalized(one.what)}; found {side} {one.threshold:g}.")
    return joined(tag("h3", title), tag("div", figure, *right, class_="cols"))


def originals(report: ReportData, drawn: Pictures) -> Html | None:
    """Return the section on sizes, aspects and formats of originals, or None without sizes."""
    contents = report.contents
    known = np.flatnonzero((contents.height > 0) & (contents.width > 0))
    if not len(known):
        return None
    rows: list[tuple[str | int, ...]] = []
    for title, values in (("width", contents.width), ("height", contents.height),
                          ("bytes", contents.original_bytes)):  # fmt: skip
        spread = np.quantile(values[known], (0, 0.05, 0.5, 0.95, 1), method="nearest")
        rows.append((title, *(int(one) for one in spread)))
    sizes = tag(
        "div",
        tag("h3", "Sizes"),
        table(("", "least", "5 %", "median", "95 %", "largest"), rows),
        tag("h3", "Formats"),
        table(("format", "images"), contents.formats.items()),
        tag("p", f"{megabytes(int(contents.original_bytes.sum()))} in all.", class_="dim"),
    )
    heat_map = tag("div", tag("h3", "Width and height in pixels"), _sizes(contents, known))
    parts = [_property(report, drawn, one) for one in report.qualities if one.name in OF_ORIGINALS]
    return section("originals", "Originals", tag("div", heat_map, sizes, class_="cols"), *parts)


def _sizes(contents: Contents, known: Ints) -> Html:
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
    counts, ends = flat.reshape(_CELLS, _CELLS).tolist(), ("0", f"{limit:,}") * 2
    title = "Originals by width (to the right) and height (upwards)"
    chart = charts.grid(title, counts, ends, marks)
    text = "Darker: more images. The 1 % with the longest sides are counted at the edge."
    if stored:
        text += f" The frame is the stored size, {stored[1]} × {stored[0]}."
    return charts.captioned(chart, text)
