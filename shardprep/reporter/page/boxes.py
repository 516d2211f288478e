"""Boxes and masks on the page: counts, sizes, positions, and overlays of the pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from shardprep.dataset.describe import TINY
from shardprep.dataset.schema import BOX, BOX_LABEL, MASK, OBJECT_MASK, OBJECTS, Schema
from shardprep.image.drawing import Thumbnail
from shardprep.reporter.findings.object_findings import lengths
from shardprep.reporter.findings.quality import NUM_BINS, histogram
from shardprep.reporter.page import charts
from shardprep.reporter.page.classes import class_table
from shardprep.reporter.page.html import Html, joined, picture, section, table, tag
from shardprep.reporter.pixels.page_pictures import MOST_BOXES, Overlay

if TYPE_CHECKING:
    from shardprep.reporter.record_columns import Contents
    from shardprep.reporter.report_data import ReportData

_CELLS = 32
"""Number of cells per side in the chart of box centres."""
_MOST_NAMES, _MOST_LETTERS = 5, 40
"""Maximum number of classes named for a picture, and maximum length of a name."""
_MOST_LEGEND = 30
"""Maximum number of classes in the legend of the gallery."""
_LEAST_LIMIT = 16
"""Minimum upper end of the chart of box sizes, in pixels."""


def boxes(report: ReportData) -> Html | None:
    """Return the section on objects: counts, sizes, centres. None without objects."""
    contents = report.contents
    schema = contents.schema
    if not any(name.startswith(f"{OBJECTS}/") for name in schema.annotations):
        return None
    per_image = contents.written["num_objects"].fill_null(0).to_numpy()
    total, empty = int(per_image.sum()), int((per_image == 0).sum())
    clipped = sum(split.num_clipped for split in contents.manifest.annotations.values())
    reasons: Counter[str] = Counter()
    for split in contents.manifest.annotations.values():
        reasons.update(split.dropped)
    summary = (
        f"{total:,} object{'s' * (total != 1)} in {len(contents) - empty:,} of {len(contents):,} "
        f"images; {empty:,} without one. {clipped:,} clipped at the edge of the image, "
        f"{reasons.total():,} left out."
    )
    parts = [tag("p", summary, class_="dim")]
    counts = {name: split.objects for name, split in contents.manifest.annotations.items()}
    names = schema.features[BOX_LABEL].labels if BOX_LABEL in schema.features else ()
    known = {name: split for name, split in counts.items() if split is not None and split.objects}
    if names and known:
        table_ = [[split.objects[name] for split in known.values()] for name in names]
        images = {"images": [sum(split.images[name] for split in known.values()) for name in names]}
        parts += class_table(names, [*known], table_, "objects", images, has_colours=True)
    everywhere = np.arange(len(contents))
    most = int(per_image.max(initial=0))
    a_bin = most // NUM_BINS + 1
    bounds = (0, a_bin * (most // a_bin + 1))
    distribution = histogram(
        contents, everywhere, per_image.astype(float), bounds, bounds[1] // a_bin
    )
    chart = charts.histogram_chart("objects in an image", distribution, contents.splits)
    figures = [_titled("Objects in an image", chart, "The height is a share of a split.")]
    if report.measured is not None and len(report.measured.boxes):
        figures += _measured(report)
    if reasons:
        rows: list[tuple[str | int, ...]] = [*sorted(reasons.items())]
        figures.append(tag("div", tag("h3", "Left out"), table(("reason", "objects"), rows)))
    return section("boxes", "Boxes", *parts, tag("div", *figures, class_="cols"))


def _measured(report: ReportData) -> Iterator[Html]:
    contents = report.contents
    if report.measured is None:
        return
    known = report.measured.boxes
    sized = known[(known["size"] > 0).all(axis=1)]
    if len(sized):
        sides = np.sqrt(lengths(sized).prod(axis=1).clip(0))
        limit = float(np.ceil(np.quantile(sides, 0.99, method="higher")))
        bounds = (0.0, max(limit, _LEAST_LIMIT))
        sizes = histogram(contents, sized["record"], sides, bounds)
        low, middle, high = (f"{one:,.0f}" for one in np.quantile(sides, (0.05, 0.5, 0.95)))
        yield _titled(
            "Sizes of boxes",
            charts.histogram_chart("sizes of boxes", sizes, contents.splits, (TINY, True)),
            "The root of their area in pixels of the stored image. Nine of ten are "
            f"{low} to {high}, the median is {middle}; the largest count in the last bar.",
        )
    corners = known["corners"].astype(np.float64)
    centres = ((corners[:, :2] + corners[:, 2:]) / 2 * _CELLS).astype(np.int64)
    row, column = centres.clip(0, _CELLS - 1).T
    flat = np.bincount(row * _CELLS + column, minlength=_CELLS**2).reshape(_CELLS, _CELLS)
    yield _titled(
        "Centres of boxes",
        charts.grid("Centres of boxes in their images", flat[::-1].tolist(), ("0", "1", "1", "0")),
        "As a share of the sides of the stored image, from its upper left corner. Stronger: more "
        "boxes.",
    )


def _titled(title: str, chart: Html, said: str) -> Html:
    return tag("div", tag("h3", title), charts.captioned(chart, said))


def masks(report: ReportData) -> Html | None:
    """Return the section on masks: pixels of each class. None without class masks."""
    contents = report.contents
    feature = contents.schema.features.get(MASK)
    counts = {name: one.masks for name, one in contents.manifest.annotations.items()}
    known = {name: one for name, one in counts.items() if one is not None}
    if feature is None or not known:
        return None
    names = feature.labels
    pixels = [[one.pixels[name] for one in known.values()] for name in names]
    ignored = sum(one.num_ignored for one in known.values())
    uniform = sum(one.num_uniform for one in known.values())
    alike = f"{uniform:,} mask{'s' * (uniform != 1)} of one value"
    classed = sum(map(sum, pixels))
    total = max(classed + ignored, 1)
    summary = (
        f"{total:,} pixels in {len(contents):,} masks, {ignored / total:.1%} of them ignored: "
        f"padding, and pixels without a class in the source. {alike}."
    )
    further: dict[str, Sequence[str | int]] = {
        "share, %": [f"{100 * sum(row) / total:.2f}" for row in pixels],
        "images": [sum(one.images[name] for one in known.values()) for name in names],
    }
    listed = class_table(names, [*known], pixels, "pixels", further, has_colours=True)
    return section("masks", "Masks", tag("p", summary, class_="dim"), *listed)


def classes_of(contents: Contents, number: int, marked: Overlay) -> frozenset[int]:
    """Return the classes of the objects and the mask of a record, −1 for ignored pixels."""
    schema = contents.schema
    classes = {label for label in marked.labels if label >= 0}
    if MASK in schema.features:
        ignored = schema.features[MASK].ignored
        values = dict(contents.written.value("mask_pixels", number) or ())
        classes |= {-1 if value == ignored else value for value in values}
    return frozenset(classes)


def switch(schema: Schema, classes: frozenset[int] | None = None) -> Html:
    """Return the checkbox that shows and hides overlays, without a script, and its legend.

    The legend names `classes` (−1 for ignored pixels), or all classes of the dataset if None.
    """
    words = {
        "boxes": BOX in schema.features and OBJECT_MASK not in schema.features,
        "masks": any(one.kind == "mask" for one in schema.annotations.values()),
    }
    what = " and ".join(word for word, is_there in words.items() if is_there)
    box = tag("input", type="checkbox", id="marks", checked="")
    lists = [one.labels for one in schema.annotations.values() if len(one.labels) > 1]
    names = max(lists, key=len, default=())
    wanted = [i for i in range(len(names)) if classes is None or i in classes]
    shown = [tag("li", charts.chip(i), tag("bdi", _short(names[i]))) for i in wanted[:_MOST_LEGEND]]
    if len(wanted) > _MOST_LEGEND:
        shown.append(tag("li", f"and {len(wanted) - _MOST_LEGEND:,} more"))
    if MASK in schema.features and (classes is None or -1 in classes):
        shown.append(tag("li", charts.chip(-1), "ignored"))
    return joined(
        tag("p", tag("label", box, f" Show {what}"), class_="switch"),
        *([tag("ul", *shown, class_="legend")] if shown else []),
    )


def overlay(
    contents: Contents, number: int, marked: Overlay, thumbnail: Thumbnail
) -> Iterator[Html]:
    """Yield the overlays of a record's picture: masks, then boxes."""
    schema = contents.schema
    if marked.mask:
        is_of_classes = MASK in schema.features
        text = _mask_text(contents, number) if is_of_classes else _objects_text(marked, schema)
        yield picture(marked.mask, f"masks: {text}", max(thumbnail.width, thumbnail.height), "over")
    if marked.boxes:
        yield drawn_boxes(schema, marked, thumbnail.width, thumbnail.height)


def drawn_boxes(schema: Schema, marked: Overlay, width: int, height: int) -> Html:
    """Return the boxes of a record as SVG for a picture of `width` x `height` pixels."""
    paths: dict[int, list[str]] = {}
    for label, (top, left, bottom, right) in marked.boxes:
        corner, side = f"M{left:g} {top:g}", f"{right - left:.4g}"
        paths.setdefault(label, []).append(f"{corner}h{side}v{bottom - top:.4g}h-{side}z")
    drawn = [
        tag("path", d="".join(parts), stroke=charts.hex_colour(max(label, 0)))
        for label, parts in sorted(paths.items())
    ]
    title = tag("title", f"boxes: {_objects_text(marked, schema)}")
    return tag("svg", title, *drawn, viewBox=f"0 0 {width} {height}", role="img", class_="over")


def facts(contents: Contents, number: int, marked: Overlay) -> Iterator[tuple[str, str | Html]]:
    """Yield titles and texts on the objects and the mask of a record."""
    schema = contents.schema
    if any(name.startswith(f"{OBJECTS}/") for name in schema.annotations):
        more = len(marked.labels) - MOST_BOXES
        note = f"; the {MOST_BOXES} largest are drawn" if more > 0 else ""
        yield "objects", f"{_objects_text(marked, schema) or 'none'}{note}"
    if MASK in schema.features:
        yield "mask", _mask_text(contents, number)


def _objects_text(marked: Overlay, schema: Schema) -> str:
    """Return the number of objects of each class as text, most frequent first."""
    names = schema.features[BOX_LABEL].labels if BOX_LABEL in schema.features else ()
    counts = Counter(marked.labels)
    order = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    parts = [f"{_named(label, names)} × {count:,}" for label, count in order[:_MOST_NAMES]]
    rest = len(order) - len(parts)
    return ", ".join(parts) + (f" and {rest:,} more classes" if rest else "")


def _mask_text(contents: Contents, number: int) -> str:
    """Return the share of each class in the mask of a record as text, largest first."""
    feature = contents.schema.features[MASK]
    counts = dict(contents.written["mask_pixels"][number].as_py() or ())
    total = max(sum(counts.values()), 1)
    order = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    parts = [
        f"{'ignored' if value == feature.ignored else _named(value, feature.labels)}: "
        f"{count / total:.0%}"
        for value, count in order[:_MOST_NAMES]
    ]
    rest = len(order) - len(parts)
    return ", ".join(parts) + (f" and {rest:,} more" if rest else "")


def _named(label: int, names: Sequence[str]) -> str:
    return _short(names[label]) if 0 <= label < len(names) else "object"


def _short(name: str) -> str:
    return name if len(name) <= _MOST_LETTERS else f"{name[:_MOST_LETTERS]}…"
