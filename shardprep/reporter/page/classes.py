"""The sections on targets, boxes and masks: counts by class and split, and distributions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset.describe import component_columns, read_components
from shardprep.dataset.item_table import TARGET_COLUMNS
from shardprep.dataset.schema import (
    BOX_LABEL,
    CLASS_PREFIX,
    LABELS,
    MASK,
    OBJECTS,
    TARGET,
    TEXT,
    TEXTS,
)
from shardprep.errors import counted
from shardprep.reporter.findings.labels import TINY, Boxes, dropped_objects, lengths
from shardprep.reporter.findings.quality import NUM_BINS, histogram
from shardprep.reporter.page import charts
from shardprep.reporter.page.html import Html, block, joined, more, section, table, tag
from shardprep.reporter.record_columns import Contents, Numbers
from shardprep.reporter.report_data import ReportData

_FIRST, _LAST = 30, 10
"""Number of largest and smallest classes shown if there are more than `_MOST_CLASSES`."""
_MOST_CLASSES = 50
_MOST_LISTED = 2_000
_MOST_SPELLED = 8
"""Maximum number of classes whose co-occurrence is shown as a table. For more, it is a chart."""
_MOST_TOGETHER = 30
_MOST_NUMBERS = 24
"""Maximum number of components of a vector whose distribution is shown."""
_CELLS = 32
_LEAST_LIMIT = 16
"""Minimum upper end of the chart of box sizes, in pixels."""


def targets(report: ReportData) -> Html | None:
    """Return the section on targets, or None if the dataset has no target."""
    contents = report.contents
    target = contents.schema.target
    if not contents.schema.has_target:
        return None
    if contents.schema.target_lists:
        return section("classes", "Targets", *_several(contents))
    if target == TARGET:
        numbers = contents.written[TARGET].to_numpy().astype(np.float64)
        shown = _distribution(contents, numbers, "numbers to learn")
        return section("classes", "Target", *shown)
    if target == TEXT:
        sizes = pc.utf8_length(contents.written[TEXT]).to_numpy().astype(np.float64)
        shown = _distribution(contents, sizes, "length of texts in characters")
        return section("classes", "Texts", *shown)
    parts = [_classes(contents)]
    if target == LABELS and len(contents.schema.labels) > 1:
        parts.append(_together(contents))
    elif 1 < len(contents.schema.labels) <= _MOST_CLASSES:
        parts.append(_weights(contents))
    return section("classes", "Classes", *parts)


def _several(contents: Contents) -> Iterator[Html]:
    schema, splits = contents.schema, list(contents.manifest.splits)
    rows = pa.table({name: contents.written[name] for name in TARGET_COLUMNS.names})
    if schema.target == TEXTS:
        numbers = pc.list_value_length(rows[TEXTS]).to_numpy().astype(np.float64)
        yield from _distribution(contents, numbers, "texts of an image")
    facts, shown = read_components(schema, rows), 0
    for name, values in component_columns(schema, rows).items():
        short = name.removeprefix(CLASS_PREFIX)
        missing = facts[short].num_missing
        yield tag("h3", tag("bdi", short), f" · {missing:,} missing" if missing else "")
        if name in schema.class_features:
            places = pc.fill_null(values, -1).to_numpy()
            labels = schema.features[name].labels
            known = [places[(contents.split == i) & (places >= 0)] for i in range(len(splits))]
            counts = np.stack([np.bincount(one, minlength=len(labels)) for one in known], axis=1)
            yield from class_table(labels, splits, counts.tolist(), "images")
        elif shown < _MOST_NUMBERS:
            shown += 1
            yield from _distribution(contents, values.to_numpy().astype(np.float64), short)


def _classes(contents: Contents) -> Html:
    manifest, names = contents.manifest, contents.schema.labels
    splits = list(manifest.splits)
    counts = [[manifest.splits[split].label_counts[name] for split in splits] for name in names]
    totals = [sum(row) for row in counts]
    entropy = -sum(n / sum(totals) * math.log(n / sum(totals)) for n in totals if n)
    number = counted(len(names), "class")
    facts = (
        f"{number}, as even as {math.exp(entropy):,.1f} of equal size." if any(totals) else number
    )
    unlabelled = {name: one.num_unlabelled for name, one in manifest.splits.items()}
    parts = [tag("p", facts, class_="dim"), *class_table(names, splits, counts, "images")]
    if any(unlabelled.values()):
        listed = ", ".join(f"{count:,} in {name}" for name, count in unlabelled.items() if count)
        parts.append(tag("p", f"Without a target: {listed}."))
    return joined(*parts)


def class_table(
    names: Sequence[str],
    splits: Sequence[str],
    counts: Sequence[Sequence[int]],
    unit: str,
    further: Mapping[str, Sequence[str | int]] = MappingProxyType({}),
    *,
    has_colours: bool = False,
) -> list[Html]:
    """Return a legend, a table of classes, largest first, and notes.

    `counts` is indexed [class][split]. `further` has the cells of additional columns by title.
    """
    totals = [sum(row) for row in counts]
    order = sorted(range(len(names)), key=lambda i: (-totals[i], i))
    even = sum(totals) / max(sum(map(bool, totals)), 1)
    most = max(totals, default=0)

    def row(i: int, *, has_bar: bool) -> tuple[str | int, ...]:
        few = "few" if 0 < totals[i] < even / 2 else "none" if not totals[i] else ""
        bar: tuple[str, ...] = ()
        if has_bar:
            text = f"{names[i]}: {totals[i]:,} {unit}"
            parts = dict(zip(splits, counts[i], strict=True))
            bar = (charts.stacked_bar(parts, most, splits, text),)
        name = joined(charts.chip(i), tag("bdi", names[i])) if has_colours else tag("bdi", names[i])
        return (name, i, *bar, *counts[i], totals[i], *(one[i] for one in further.values()), few)

    is_long = len(names) > _MOST_CLASSES
    shown = [*order[:_FIRST], *order[-_LAST:]] if is_long else order
    titles = ("class", "label", "", *splits, "all", *further, "note")
    rows = [row(i, has_bar=True) for i in shown]
    parts = [charts.legend(splits), table(titles, rows, class_="full sortable")]
    if is_long:
        listed = [row(i, has_bar=False) for i in order[:_MOST_LISTED]]
        between = len(names) - _FIRST - _LAST
        text = f"the {_FIRST} largest and the {_LAST} smallest are shown; {between:,} more"
        titles = ("class", "label", *splits, "all", *further, "note")
        parts.append(more(text, table(titles, listed, class_="sortable")))
    if any(0 < total < even / 2 for total in totals):
        parts.append(tag("p", f"few: less than half of an even share of the {unit}.", class_="dim"))
    return parts


def _weights(contents: Contents) -> Html:
    splits = contents.manifest.splits
    first = splits.get("train") or next(iter(splits.values()))
    counts = [first.label_counts[name] for name in contents.schema.labels]
    used = sum(map(bool, counts))
    weights = {i: round(sum(counts) / (used * count), 4) for i, count in enumerate(counts) if count}
    return more("class weights of train", block(f"model.fit(…, class_weight={weights})"))


def _together(contents: Contents) -> Html:
    names, splits = contents.schema.labels, contents.manifest.splits.values()
    totals = [sum(split.label_counts[name] for split in splits) for name in names]
    chosen = sorted(sorted(range(len(names)), key=lambda i: (-totals[i], i))[:_MOST_TOGETHER])
    place = {label: i for i, label in enumerate(chosen)}
    counts = np.zeros((len(chosen), len(chosen)), np.int64)
    for own in contents.classes:
        here = [place[label] for label in own if label in place]
        for row in here:
            counts[row, here] += 1
    np.fill_diagonal(counts, 0)
    title = "Images in which two classes occur together"
    if len(chosen) <= _MOST_SPELLED:
        rows = [(names[label], *counts[i].tolist()) for i, label in enumerate(chosen)]
        chart = table(("", *(names[label] for label in chosen)), rows)
    else:
        ends = (f"label {chosen[0]}", f"{chosen[-1]}")
        chart = charts.grid(title, counts.tolist(), (*ends, f"{chosen[0]}", f"{chosen[-1]}"))
    pairs = [
        (f"{names[chosen[i]]} and {names[chosen[j]]}", int(counts[i, j]))
        for i, j in zip(*np.triu_indices(len(chosen), 1), strict=True)
        if counts[i, j]
    ]
    pairs.sort(key=lambda pair: -pair[1])
    sizes = np.bincount([len(own) for own in contents.classes])
    numbers = [(f"{i:,}", int(number)) for i, number in enumerate(sizes.tolist()) if number]
    return tag(
        "div",
        tag("div", tag("h3", title), chart),
        tag("div", tag("h3", "Most often together"), table(("classes", "images"), pairs[:20])),
        tag("div", tag("h3", "Classes of an image"), table(("classes", "images"), numbers[:20])),
        class_="cols",
    )


def _distribution(contents: Contents, values: Numbers, what: str) -> list[Html]:
    known = np.flatnonzero(np.isfinite(values))
    values = values[known]
    if not len(known):
        return [tag("p", "No record has a target.")]
    low, high = float(values.min()), float(values.max())
    distribution = histogram(contents, known, values, (low, high if high > low else low + 1))
    rows: list[tuple[str | int, ...]] = []
    for i, name in enumerate(contents.splits):
        own = values[contents.split[known] == i]
        if len(own):
            spread = [f"{one:.4g}" for one in np.quantile(own, (0, 0.05, 0.5, 0.95, 1))]
            rows.append((name, len(own), *spread))
    return [
        charts.legend(list(distribution.counts)),
        charts.histogram_chart(what, distribution, contents.splits),
        table(("split", "images", "least", "5 %", "median", "95 %", "largest"), rows),
    ]


def boxes(report: ReportData) -> Html | None:
    """Return the section on counts, sizes and centres of objects, or None without objects."""
    contents = report.contents
    schema, annotations = contents.schema, contents.manifest.annotations
    if not any(name.startswith(f"{OBJECTS}/") for name in schema.annotations):
        return None
    per_image = contents.written["num_objects"].fill_null(0).to_numpy()
    empty, reasons = int((per_image == 0).sum()), dropped_objects(contents)
    clipped = sum(split.num_clipped for split in annotations.values())
    summary = (
        f"{counted(int(per_image.sum()), 'object')} in {len(contents) - empty:,} of "
        f"{counted(len(contents), 'image')}; {empty:,} without one. {clipped:,} clipped at the "
        f"edge of the image, {reasons.total():,} left out."
    )
    parts = [tag("p", summary, class_="dim")]
    counts = {name: split.objects for name, split in annotations.items()}
    names = schema.features[BOX_LABEL].labels if BOX_LABEL in schema.features else ()
    known = {name: split for name, split in counts.items() if split is not None and split.objects}
    if names and known:
        rows = [[split.objects[name] for split in known.values()] for name in names]
        images = {"images": [sum(split.images[name] for split in known.values()) for name in names]}
        parts += class_table(names, [*known], rows, "objects", images, has_colours=True)
    most = int(per_image.max(initial=0))
    a_bin = most // NUM_BINS + 1
    num_bins = most // a_bin + 1
    distribution = histogram(
        contents, np.arange(len(contents)), per_image.astype(float), (0, a_bin * num_bins), num_bins
    )
    chart = charts.histogram_chart("objects in an image", distribution, contents.splits)
    figures = [_titled("Objects in an image", chart, "The height is a share of a split.")]
    if report.measured is not None and len(report.measured.boxes):
        figures += _measured(contents, report.measured.boxes)
    if reasons:
        listed = table(("reason", "objects"), sorted(reasons.items()))
        figures.append(tag("div", tag("h3", "Left out"), listed))
    return section("boxes", "Boxes", *parts, tag("div", *figures, class_="cols"))


def _measured(contents: Contents, boxes: Boxes) -> Iterator[Html]:
    sized = boxes[(boxes["size"] > 0).all(axis=1)]
    if len(sized):
        sides = np.sqrt(lengths(sized).prod(axis=1).clip(0))
        limit = float(np.ceil(np.quantile(sides, 0.99, method="higher")))
        sizes = histogram(contents, sized["record"], sides, (0.0, max(limit, _LEAST_LIMIT)))
        low, middle, high = (f"{one:,.0f}" for one in np.quantile(sides, (0.05, 0.5, 0.95)))
        yield _titled(
            "Sizes of boxes",
            charts.histogram_chart("sizes of boxes", sizes, contents.splits, (TINY, True)),
            "The root of their area in pixels of the stored image. Nine of ten are "
            f"{low} to {high}, the median is {middle}; the largest count in the last bar.",
        )
    corners = boxes["corners"].astype(np.float64)
    centres = ((corners[:, :2] + corners[:, 2:]) / 2 * _CELLS).astype(np.int64)
    row, column = centres.clip(0, _CELLS - 1).T
    flat = np.bincount(row * _CELLS + column, minlength=_CELLS**2).reshape(_CELLS, _CELLS)
    yield _titled(
        "Centres of boxes",
        charts.grid("Centres of boxes in their images", flat[::-1].tolist(), ("0", "1", "1", "0")),
        "As a share of the sides of the stored image, from its upper left corner. Stronger: more "
        "boxes.",
    )


def _titled(title: str, chart: Html, caption: str) -> Html:
    return tag("div", tag("h3", title), charts.captioned(chart, caption))


def masks(report: ReportData) -> Html | None:
    """Return the section on the pixels of each class in masks; None without class masks."""
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
    total = max(sum(map(sum, pixels)) + ignored, 1)
    summary = (
        f"{total:,} pixels in {counted(len(contents), 'mask')}, {ignored / total:.1%} of them "
        "ignored: padding, and pixels without a class in the source. "
        f"{counted(uniform, 'mask')} of one value."
    )
    further: dict[str, Sequence[str | int]] = {
        "share, %": [f"{100 * sum(row) / total:.2f}" for row in pixels],
        "images": [sum(one.images[name] for one in known.values()) for name in names],
    }
    listed = class_table(names, [*known], pixels, "pixels", further, has_colours=True)
    return section("masks", "Masks", tag("p", summary, class_="dim"), *listed)
