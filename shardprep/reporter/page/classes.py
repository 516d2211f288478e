"""The section on targets: classes and their co-occurrence, numbers or texts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from shardprep.dataset.schema import LABELS, TARGET, TEXT
from shardprep.reporter.findings.quality import histogram
from shardprep.reporter.page import charts
from shardprep.reporter.page.html import Html, block, joined, more, section, table, tag

if TYPE_CHECKING:
    from shardprep.reporter.record_columns import Contents
    from shardprep.reporter.report_data import ReportData

Ints = np.ndarray[Any, np.dtype[np.int64]]
Numbers = np.ndarray[Any, np.dtype[np.float64]]

_FIRST, _LAST = 30, 10
"""Number of largest and smallest classes shown if there are more than `_MOST_CLASSES`."""
_MOST_CLASSES = 50
_MOST_LISTED = 2_000
_MOST_SPELLED = 8
"""Maximum number of classes whose co-occurrence is a table instead of a chart."""
_MOST_TOGETHER = 30
"""Maximum number of classes whose co-occurrence is shown."""


def targets(report: ReportData) -> Html | None:
    """Return the section on targets, or None without targets."""
    contents = report.contents
    target = contents.schema.target
    if target is None:
        return None
    if target == TARGET:
        return section("classes", "Target", *_numbers(contents))
    if target == TEXT:
        return section("classes", "Texts", *_texts(contents))
    parts = [_classes(contents)]
    if target == LABELS and len(contents.schema.labels) > 1:
        parts.append(_together(contents))
    elif 1 < len(contents.schema.labels) <= _MOST_CLASSES:
        parts.append(_weights(contents))
    return section("classes", "Classes", *parts)


def _classes(contents: Contents) -> Html:
    manifest, names = contents.manifest, contents.schema.labels
    splits = list(manifest.splits)
    counts = [[manifest.splits[split].label_counts[name] for split in splits] for name in names]
    totals = [sum(row) for row in counts]
    entropy = -sum(n / sum(totals) * math.log(n / sum(totals)) for n in totals if n)
    number = f"{len(names):,} class{'es' * (len(names) != 1)}"
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
    """Return a table of counts per class, largest first, with a bar of the splits.

    Args:
        names: names of the classes, in label order.
        splits: names of the splits.
        counts: for each class, the count of each split.
        unit: the counted things, in the plural.
        further: additional columns by title, with a value for each class.
        has_colours: whether to show the colour of each class in the gallery.

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
        own = (one[i] for one in further.values())
        name = joined(charts.chip(i), tag("bdi", names[i])) if has_colours else tag("bdi", names[i])
        return (name, i, *bar, *counts[i], totals[i], *own, few)

    is_long = len(names) > _MOST_CLASSES
    shown = [*order[:_FIRST], *order[-_LAST:]] if is_long else order
    titles = ("class", "label", "", *splits, "all", *further, "note")
    rows = [row(i, has_bar=True) for i in shown]
    main = table(titles, rows, class_="full sortable")
    parts = [charts.legend(splits), main]
    if is_long:
        listed = [row(i, has_bar=False) for i in order[:_MOST_LISTED]]
        between = len(names) - _FIRST - _LAST
        text = f"the {_FIRST} largest and the {_LAST} smallest are shown; {between:,} more"
        titles = ("class", "label", *splits, "all", *further, "note")
        parts.append(more(text, table(titles, listed, class_="sortable")))
    if any(0 < total < even / 2 for total in totals):
        note = f"few: less than half of an even share of the {unit}."
        parts.append(tag("p", note, class_="dim"))
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
        here = [place[label_place] for label_place in own if label_place in place]
        for label_place in here:
            counts[label_place, here] += 1
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
    lengths = [(f"{i:,}", int(number)) for i, number in enumerate(sizes.tolist()) if number]
    return tag(
        "div",
        tag("div", tag("h3", title), chart),
        tag("div", tag("h3", "Most often together"), table(("classes", "images"), [*pairs[:20]])),
        tag("div", tag("h3", "Classes of an image"), table(("classes", "images"), [*lengths[:20]])),
        class_="cols",
    )


def _numbers(contents: Contents) -> list[Html]:
    values = contents.written["target"].to_numpy().astype(np.float64)
    known = np.flatnonzero(np.isfinite(values))
    return _distribution(contents, known, values[known], "numbers to learn")


def _texts(contents: Contents) -> list[Html]:
    lengths = pc.utf8_length(contents.written["text"]).to_numpy().astype(np.float64)
    known = np.flatnonzero(np.isfinite(lengths))
    return _distribution(contents, known, lengths[known], "length of texts in characters")


def _distribution(
    contents: Contents,
    known: Ints,
    values: Numbers,
    what: str,
) -> list[Html]:
    if not len(known):
        return [tag("p", "No record has a target.")]
    low, high = float(values.min()), float(values.max())
    bounds = (low, high if high > low else low + 1)
    distribution = histogram(contents, known, values, bounds)
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
