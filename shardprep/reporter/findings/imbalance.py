"""Findings about left-out inputs, class sizes, properties that reveal a class, and split drift."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from shardprep.dataset.describe import LACKING
from shardprep.dataset.item_table import REJECTED, SKIPPED, with_status
from shardprep.dataset.schema import LABEL, LABELS
from shardprep.errors import counted, some_of
from shardprep.reporter.findings.finding import Finding, images, leaving_out

if TYPE_CHECKING:
    from shardprep.reporter.pixels.pixel_scan import ScanResult
    from shardprep.reporter.record_columns import Contents

Numbers = np.ndarray[Any, np.dtype[np.float64]]

TRAIN = "train"
_IMBALANCE = 10
"""Ratio of the largest to the smallest class from which imbalance is a finding."""
_TELLING = 0.9
"""A property reveals a class if an image of the class has more (or less) of it than an image of
another class with at least this probability. 0.5 is chance."""
_LEAST_IMAGES = 20
"""Classes and splits with fewer images are not compared."""
_DRIFT = 0.15
"""Distance of two distributions (0..1) from which two splits differ."""
_LEVEL = 1.95
"""Factor of the Kolmogorov-Smirnov bound at significance level 0.1 %."""


def input_findings(contents: Contents) -> Iterator[Finding]:
    """Yield findings about rejected, unused and partly damaged inputs."""
    totals = contents.manifest.totals
    if totals.num_rejected:
        keys = with_status(contents.left_out, REJECTED)["key"].to_pylist()
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in totals.rejected.items())
        what = f"{images(totals.num_rejected)} left out because of their bytes: {kinds}"
        number, of_all = totals.num_rejected, totals.num_written + totals.num_rejected
        flag = "--save-rejected rejected/"
        yield Finding("rejected", "warning", number, of_all, what, tuple(keys), flag)
    skipped = with_status(contents.left_out, SKIPPED)
    lacking = skipped.filter(pc.match_substring_regex(skipped["reason"], LACKING))
    if len(lacking):
        what = f"{images(len(lacking))} not used: the source gives no target or no split for them"
        keys = lacking["key"].to_pylist()
        yield Finding("not-used", "warning", len(lacking), totals.num_inputs, what, tuple(keys))
    damaged = np.flatnonzero(contents.written["reason"].is_valid().to_numpy())
    if len(damaged):
        what = f"{images(len(damaged))} of damaged or cut files: the decoded part is written"
        number, of_all = len(damaged), len(contents)
        finding = Finding("damaged", "warning", number, of_all, what)
        yield leaving_out(finding, contents, damaged.tolist())


def class_findings(contents: Contents) -> Iterator[Finding]:
    """Yield findings about unlabelled images, missing classes and imbalance."""
    manifest, names = contents.manifest, contents.schema.labels
    splits = manifest.splits
    if contents.schema.target and TRAIN in splits and splits[TRAIN].num_unlabelled > 0:
        first = contents.splits.index(TRAIN)
        out = np.flatnonzero((contents.split == first) & (contents.target_codes < 0)).tolist()
        what = f"{images(len(out))} of train without a target"
        of_all = splits[TRAIN].num_records
        finding = Finding("unlabelled", "warning", len(out), of_all, what)
        yield leaving_out(finding, contents, out)
    if contents.schema.target not in (LABEL, LABELS) or len(names) < 2:
        return
    counts = {name: sum(one.label_counts[name] for one in splits.values()) for name in names}
    if TRAIN in splits and any(splits[TRAIN].label_counts.values()):
        missing = [n for n in names if counts[n] and not splits[TRAIN].label_counts[n]]
        if missing:
            verb = "has" if len(missing) == 1 else "have"
            some = some_of(missing)
            what = f"{counted(len(missing), 'class')} {verb} no image in train: {some}"
            yield Finding("missing-classes", "serious", len(missing), len(names), what)
    sizes = sorted((count, name) for name, count in counts.items() if count)
    if sizes and sizes[-1][0] >= _IMBALANCE * sizes[0][0]:
        least = sum(sizes_of for sizes_of, _ in sizes) / len(sizes) / 2
        few = sum(count < least for count, _ in sizes)
        ratio = sizes[-1][0] / sizes[0][0]
        what = (
            f"the largest class, {sizes[-1][1]}, has {ratio:,.0f} times the images of the "
            f"smallest, {sizes[0][1]}; {few:,} of {len(sizes):,} have less than half of an even "
            "share"
        )
        yield Finding("imbalance", "warning", few, len(sizes), what)


def properties(contents: Contents, measured: ScanResult | None) -> dict[str, Numbers]:
    """Return properties of every record that should not reveal its class; NaN if unknown."""
    sides = (contents.width > 0) & (contents.height > 0)
    area = np.where(sides, contents.width * contents.height, np.nan)
    aspect = np.where(sides, contents.width / np.maximum(contents.height, 1), np.nan)
    by_name = {
        "size of the original": area,
        "aspect of the original": aspect,
        "file size by pixel": contents.original_bytes / area,
    }
    for name, field in (("brightness", "brightness"), ("fine detail", "sharpness"),
                        ("colour", "colour"), ("contrast", "contrast")):  # fmt: skip
        if measured is not None:
            values = np.full(len(contents), np.nan)
            decoded = measured.measures["decoded"]
            values[measured.numbers[decoded]] = measured.measures[field][decoded]
            by_name[name] = values
    return by_name


def property_findings(contents: Contents, known: Mapping[str, Numbers]) -> Iterator[Finding]:
    """Yield findings about classes that one property reveals, and splits that differ from train."""
    if contents.schema.target == LABEL and len(contents.schema.labels) > 1:
        telling = _telling(contents, known)
        if telling:
            shown = some_of([text for _, text in telling], 3)
            what = (
                f"a single number tells {counted(len(telling), 'class')} from all others: {shown}"
            )
            number = len(contents.schema.labels)
            yield Finding("class-property", "warning", len(telling), number, what)
    drifts = [*_class_drifts(contents), *sorted(_drifts(contents, known), reverse=True)]
    if drifts:
        shown = some_of([text for _, text in drifts], 3)
        what = f"splits differ from train: {shown} (distance of distributions, 0 to 1)"
        number = len(contents.splits) - 1
        yield Finding("drift", "warning", min(len(drifts), number), number, what)


def _telling(contents: Contents, known: Mapping[str, Numbers]) -> list[tuple[float, str]]:
    """Return strength and text of the best property for each revealed class, strongest first."""
    num_classes = len(contents.schema.labels)
    best: dict[int, tuple[float, str, bool]] = {}
    for name, values in known.items():
        usable = (contents.label >= 0) & (contents.label < num_classes) & ~np.isnan(values)
        label = contents.label[usable]
        if not len(label):
            continue
        ranks = _ranks(values[usable])
        counts = np.bincount(label, minlength=num_classes)
        sums = np.bincount(label, ranks, minlength=num_classes)
        for class_number in np.flatnonzero(counts >= _LEAST_IMAGES).tolist():
            own, others = int(counts[class_number]), len(label) - int(counts[class_number])
            if others < _LEAST_IMAGES:
                continue
            # Mann-Whitney U as a share of all pairs: how often the class has the larger value.
            share = (float(sums[class_number]) - own * (own + 1) / 2) / (own * others)
            strength = max(share, 1 - share)
            if strength > max(_TELLING, best.get(class_number, (0.0,))[0]):
                best[class_number] = (strength, name, share > 0.5)
    names = contents.schema.labels
    sentences = [
        (
            strength,
            (
                f"{names[class_number]} has {'more' if more else 'less'} {name} "
                f"in {strength:.0%} of pairs"
            ),
        )
        for class_number, (strength, name, more) in best.items()
    ]
    return sorted(sentences, reverse=True)


def _ranks(values: Numbers) -> Numbers:
    """Return the rank of each value from 1; equal values get their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    ranks: Numbers = (last - (counts - 1) / 2)[inverse]
    return ranks


def _drifts(contents: Contents, known: Mapping[str, Numbers]) -> Iterator[tuple[float, str]]:
    """Yield the significant distances of each split from train, by property."""
    if TRAIN not in contents.splits:
        return
    train = contents.split == contents.splits.index(TRAIN)
    for i, name in enumerate(contents.splits):
        for what, values in known.items() if name != TRAIN else ():
            in_train, in_split = values[train], values[contents.split == i]
            distance = _distance(in_train[~np.isnan(in_train)], in_split[~np.isnan(in_split)])
            if distance:
                yield distance, f"{name} in {what}, {distance:.2f}"


def _class_drifts(contents: Contents) -> Iterator[tuple[float, str]]:
    """Yield the significant distances of each split from train in class shares."""
    for name in contents.splits if TRAIN in contents.splits else ():
        distance = _class_distance(contents, name)
        if distance:
            yield distance, f"{name} in the shares of classes, {distance:.2f}"


def _distance(first: Numbers, second: Numbers) -> float:
    """Return the Kolmogorov-Smirnov distance of two samples, 0 if it may be chance."""
    if min(len(first), len(second)) < _LEAST_IMAGES:
        return 0.0
    both = np.sort(np.concatenate([first, second]))
    shares = [np.searchsorted(np.sort(x), both, "right") / len(x) for x in (first, second)]
    distance = float(np.abs(shares[0] - shares[1]).max())
    chance = _LEVEL * math.sqrt(1 / len(first) + 1 / len(second))
    return distance if distance > max(_DRIFT, chance) else 0.0


def _class_distance(contents: Contents, split: str) -> float:
    """Return the total variation of class shares from train to a split, 0 if it may be chance."""
    names = contents.schema.labels
    both = [contents.manifest.splits[first].label_counts for first in (TRAIN, split)]
    first, second = (np.array([counts[name] for name in names], float) for counts in both)
    if min(first.sum(), second.sum()) < _LEAST_IMAGES:
        return 0.0
    distance = float(np.abs(first / first.sum() - second / second.sum()).sum() / 2)
    chance = math.sqrt(len(names) * (1 / first.sum() + 1 / second.sum()))
    return distance if distance > max(_DRIFT, chance) else 0.0
