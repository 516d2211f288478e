"""Findings about left-out inputs, classes, labels, objects and masks, and differences of splits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from shardprep.dataset.describe import LACKING
from shardprep.dataset.item_table import REJECTED, SKIPPED, with_status
from shardprep.dataset.manifest import NO_IMAGE
from shardprep.dataset.schema import ALL_POINTS, LABEL, LABELS, MASK
from shardprep.errors import counted, some_of
from shardprep.reporter.findings.finding import Finding, Severity, leaving_out
from shardprep.reporter.record_columns import Contents, Ints, Numbers

if TYPE_CHECKING:
    from shardprep.reporter.pixels import ScanResult

Boxes = np.ndarray[Any, Any]

TRAIN = "train"
_IMBALANCE = 10
"""Ratio of the largest to the smallest class from which imbalance is a finding."""
_TELLING = 0.9
"""A property reveals a class if images of the class have more (or less) of it than other images, in
more than this share of pairs. 0.5 is chance."""
_LEAST_IMAGES = 20
_DRIFT = 0.15
"""Distance of two distributions (0..1) above which a split is reported as different from train."""
_LEVEL = 1.95
"""Factor of the Kolmogorov-Smirnov bound at significance level 0.1 %."""
_IGNORED = 0.5
"""An image is reported if more than this share of its mask pixels is ignored."""
TINY = 8
"""Side in pixels of a square; boxes of less area are tiny."""
_SAME = 0.9
"""Two boxes are nearly equal if their intersection over union is above this."""
_MOST_PAIRS = 5_000_000
"""Maximum number of box pairs to compare per block: an image may have a million equal boxes."""
_AT_ONCE = 1 << 10
_SLACK = 1e-6  # tolerance of probabilities, as in cleanlab


def input_findings(contents: Contents) -> Iterator[Finding]:
    """Yield findings about inputs that were rejected, not used, or written although damaged."""
    totals = contents.manifest.totals
    if totals.num_rejected:
        number, of_all = totals.num_rejected, totals.num_written + totals.num_rejected
        keys = tuple(with_status(contents.left_out, REJECTED)["key"].to_pylist())
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in totals.rejected.items())
        what = f"{counted(number, 'image')} left out because of their bytes: {kinds}"
        flag = "--save-rejected rejected/"
        yield Finding("rejected", "warning", number, of_all, what, keys, flag)
    skipped = with_status(contents.left_out, SKIPPED)
    lacking = skipped.filter(pc.match_substring_regex(skipped["reason"], LACKING))
    if number := len(lacking):
        why = "the source gives no target or no split for them"
        what = f"{counted(number, 'image')} not used: {why}"
        keys = tuple(lacking["key"].to_pylist())
        yield Finding("not-used", "warning", number, totals.num_inputs, what, keys)
    damaged = np.flatnonzero(contents.written["reason"].is_valid().to_numpy())
    if number := len(damaged):
        what = f"{counted(number, 'image')} of damaged or cut files: the decoded part is written"
        finding = Finding("damaged", "warning", number, len(contents), what)
        yield leaving_out(finding, contents, damaged.tolist())


def class_findings(contents: Contents) -> Iterator[Finding]:
    """Yield findings about unlabelled images, missing classes and imbalance."""
    manifest, names = contents.manifest, contents.schema.labels
    splits = manifest.splits
    if contents.schema.has_target and TRAIN in splits and splits[TRAIN].num_unlabelled > 0:
        first = contents.splits.index(TRAIN)
        out = np.flatnonzero((contents.split == first) & (contents.target_codes < 0)).tolist()
        what = f"{counted(len(out), 'image')} of train without a target"
        finding = Finding("unlabelled", "warning", len(out), splits[TRAIN].num_records, what)
        yield leaving_out(finding, contents, out)
    if contents.schema.target not in (LABEL, LABELS) or len(names) < 2:
        return
    counts = {name: sum(one.label_counts[name] for one in splits.values()) for name in names}
    if TRAIN in splits and any(splits[TRAIN].label_counts.values()):
        missing = [n for n in names if counts[n] and not splits[TRAIN].label_counts[n]]
        if missing:
            verb = "has" if len(missing) == 1 else "have"
            classes = counted(len(missing), "class")
            what = f"{classes} {verb} no image in train: {some_of(missing)}"
            yield Finding("missing-classes", "serious", len(missing), len(names), what)
    sizes = sorted((count, name) for name, count in counts.items() if count)
    if sizes and sizes[-1][0] >= _IMBALANCE * sizes[0][0]:
        (smallest, rare), (largest, common) = sizes[0], sizes[-1]
        half = sum(count for count, _ in sizes) / len(sizes) / 2
        few = sum(count < half for count, _ in sizes)
        what = (
            f"the largest class, {common}, has {largest / smallest:,.0f} times the images of the "
            f"smallest, {rare}; {few:,} of {len(sizes):,} have less than half of an even share"
        )
        yield Finding("imbalance", "warning", few, len(sizes), what)


class WrongLabel(NamedTuple):
    """A label that is probably wrong. `score` is the predicted probability of class `given`."""

    number: int
    given: str
    likely: str
    score: float


def wrong_labels(contents: Contents, predicted: Numbers) -> list[WrongLabel]:
    """Return the labels that are probably wrong, lowest score first.

    `predicted` is `ReportOptions.predictions`. The method is confident learning (Northcutt et al.
    2021, arXiv:1911.00068). The result equals cleanlab's
    `find_label_issues(…, filter_by="confident_learning")`, sorted by self-confidence.
    """
    numbers = np.flatnonzero(~np.isnan(predicted[:, 0]))
    given, predicted, names = contents.label[numbers], predicted[numbers], contents.schema.labels
    rows, best = np.arange(len(numbers)), predicted.argmax(axis=1)
    scores = predicted[rows, given]
    counts = np.bincount(given, minlength=len(names))
    means = np.bincount(given, scores, minlength=len(names)) / np.maximum(counts, 1)
    # A class is predicted with confidence at or above the mean probability of its labelled images.
    least = np.where(counts > 0, np.maximum(means - _SLACK, _SLACK), np.inf)
    is_confident = predicted >= least
    num_confident = is_confident.sum(axis=1)
    likely = np.where(num_confident > 1, best, is_confident.argmax(axis=1))
    is_wrong = (num_confident > 0) & (likely != given) & (predicted[rows, best] > scores + _SLACK)
    places = np.flatnonzero(is_wrong)
    return [
        WrongLabel(int(numbers[i]), names[given[i]], names[likely[i]], float(scores[i]))
        for i in places[np.argsort(scores[places], kind="stable")].tolist()
    ]


def wrong_label_findings(
    contents: Contents, predicted: Numbers | None, wrong: Sequence[WrongLabel]
) -> Iterator[Finding]:
    """Yield a finding about the labels in `wrong`, if any; `predicted` has the checked images."""
    if predicted is not None and wrong:
        pairs = Counter(f"{one.given} → {one.likely}" for one in wrong).most_common()
        counts = some_of([f"{count:,} {pair}" for pair, count in pairs])
        what = f"{counted(len(wrong), 'image')} with a label that is probably wrong: {counts}"
        of_all = int((~np.isnan(predicted[:, 0])).sum())
        finding = Finding("wrong-labels", "warning", len(wrong), of_all, what)
        yield leaving_out(finding, contents, [one.number for one in wrong])


def _properties(contents: Contents, measured: ScanResult | None) -> dict[str, Numbers]:
    """Return name → values by record (NaN: unknown) of properties that must not reveal classes."""
    sides = (contents.width > 0) & (contents.height > 0)
    area = np.where(sides, contents.width * contents.height, np.nan)
    aspect = np.where(sides, contents.width / np.maximum(contents.height, 1), np.nan)
    by_name = {
        "size of the original": area,
        "aspect of the original": aspect,
        "file size by pixel": contents.original_bytes / area,
    }
    if measured is not None:
        decoded = measured.measures["decoded"]
        for name in ("brightness", "sharpness", "colour", "contrast"):
            values = np.full(len(contents), np.nan)
            values[measured.numbers[decoded]] = measured.measures[name][decoded]
            by_name["fine detail" if name == "sharpness" else name] = values
    return by_name


def property_findings(contents: Contents, measured: ScanResult | None) -> Iterator[Finding]:
    """Yield findings about classes revealed by one property, and splits that differ from train."""
    known = _properties(contents, measured)
    if contents.schema.target == LABEL and len(contents.schema.labels) > 1:
        telling = _telling(contents, known)
        if telling:
            classes, number = counted(len(telling), "class"), len(contents.schema.labels)
            shown = some_of([text for _, text in telling], 3)
            what = f"a single number tells {classes} from all others: {shown}"
            yield Finding("class-property", "warning", len(telling), number, what)
    drifts = [*_class_drifts(contents), *sorted(_drifts(contents, known), reverse=True)]
    if drifts:
        shown = some_of([text for _, text in drifts], 3)
        what = f"splits differ from train: {shown} (distance of distributions, 0 to 1)"
        number = len(contents.splits) - 1
        yield Finding("drift", "warning", min(len(drifts), number), number, what)


def _telling(contents: Contents, known: Mapping[str, Numbers]) -> list[tuple[float, str]]:
    """Return (strength, text) of the best property for each revealed class, strongest first."""
    num_classes = len(contents.schema.labels)
    best: dict[int, tuple[float, str, bool]] = {}
    for name, values in known.items():
        usable = (contents.label >= 0) & (contents.label < num_classes) & ~np.isnan(values)
        label = contents.label[usable]
        if not len(label):
            continue
        # Ranks count from 1; equal values get their mean rank.
        _, inverse, equal = np.unique(values[usable], return_inverse=True, return_counts=True)
        ranks = (equal.cumsum() - (equal - 1) / 2)[inverse]
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
    sentences = []
    for class_number, (strength, name, is_more) in best.items():
        more = f"{contents.schema.labels[class_number]} has {'more' if is_more else 'less'} {name}"
        sentences.append((strength, f"{more} in {strength:.0%} of pairs"))
    return sorted(sentences, reverse=True)


def _drifts(contents: Contents, known: Mapping[str, Numbers]) -> Iterator[tuple[float, str]]:
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
    for name in contents.splits if TRAIN in contents.splits else ():
        distance = _class_distance(contents, name)
        if distance:
            yield distance, f"{name} in the shares of classes, {distance:.2f}"


def _distance(first: Numbers, second: Numbers) -> float:
    """Return the Kolmogorov-Smirnov distance of two samples; 0 if small or possibly chance."""
    if min(len(first), len(second)) < _LEAST_IMAGES:
        return 0.0
    both = np.sort(np.concatenate([first, second]))
    shares = [np.searchsorted(np.sort(x), both, "right") / len(x) for x in (first, second)]
    distance = float(np.abs(shares[0] - shares[1]).max())
    chance = _LEVEL * math.sqrt(1 / len(first) + 1 / len(second))
    return distance if distance > max(_DRIFT, chance) else 0.0


def _class_distance(contents: Contents, split: str) -> float:
    """Return the total variation distance of class shares from train; 0 if small or chance."""
    names = contents.schema.labels
    both = [contents.manifest.splits[first].label_counts for first in (TRAIN, split)]
    first, second = (np.array([counts[name] for name in names], float) for counts in both)
    if min(first.sum(), second.sum()) < _LEAST_IMAGES:
        return 0.0
    distance = float(np.abs(first / first.sum() - second / second.sum()).sum() / 2)
    chance = math.sqrt(len(names) * (1 / first.sum() + 1 / second.sum()))
    return distance if distance > max(_DRIFT, chance) else 0.0


def annotation_findings(contents: Contents, measured: ScanResult | None) -> Iterator[Finding]:
    """Yield the findings about objects, keypoints and masks."""
    schema = contents.schema
    if not schema.annotations:
        return
    yield from _missing(contents)
    dropped = np.flatnonzero(contents.written["num_dropped"].fill_null(0).to_numpy()).tolist()
    yield from _lost(contents, "dropped-objects", "object", dropped, dropped_objects(contents))
    yield from _unmatched(contents)
    if {*ALL_POINTS} & schema.features.keys():
        rows = enumerate(contents.written["lost_points"].to_pylist())
        lost = {number: Counter(dict(counts)) for number, counts in rows if counts}
        reasons = sum(lost.values(), Counter[str]())
        yield from _lost(contents, "lost-keypoints", "keypoint", [*lost], reasons)
    if MASK in schema.features:
        yield from _masks(contents)
    if measured is not None and len(measured.boxes):
        yield from _boxes(contents, measured)


def _missing(contents: Contents) -> Iterator[Finding]:
    known = contents.manifest.annotations
    if TRAIN not in known:
        return
    missing, number = [], 0
    for in_splits, in_train in (
        ([one.objects for one in known.values()], known[TRAIN].objects),
        ([one.masks for one in known.values()], known[TRAIN].masks),
    ):
        if in_train is not None:
            number += len(in_train.images)
            missing += [
                name
                for name, count in in_train.images.items()
                if not count and any(one.images[name] for one in in_splits if one is not None)
            ]
    if missing:
        verb = "has" if len(missing) == 1 else "have"
        classes = f"{counted(len(missing), 'class')} of objects or masks"
        what = f"{classes} {verb} none in train: {some_of(missing)}"
        yield Finding("missing-object-classes", "serious", len(missing), number, what)


def _lost(
    contents: Contents, name: str, unit: str, numbers: Sequence[int], reasons: Counter[str]
) -> Iterator[Finding]:
    if numbers:
        listed = ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()))
        lost = f"lost {counted(reasons.total(), unit)} in the build: {listed}"
        what, keys = f"{counted(len(numbers), 'image')} {lost}", contents.keys_of(numbers)
        yield Finding(name, "warning", len(numbers), len(contents), what, keys)


def dropped_objects(contents: Contents) -> Counter[str]:
    """Return the number of objects that the build left out, by reason."""
    reasons: Counter[str] = Counter()
    for counts in contents.manifest.annotations.values():
        reasons.update(counts.dropped)
    return reasons


def _unmatched(contents: Contents) -> Iterator[Finding]:
    unmatched = contents.manifest.unmatched
    if unmatched is None:
        return
    if unmatched.objects:
        number = sum(unmatched.objects.values())
        known = contents.manifest.annotations.values()
        num_stored = sum(one.objects.num_objects for one in known if one.objects)
        total = number + num_stored + dropped_objects(contents).total()
        reasons = ", ".join(f"{count:,} for {why}" for why, count in unmatched.objects.items())
        verb = "belongs" if number == 1 else "belong"
        what = f"{counted(number, 'annotated object')} {verb} to no image: {reasons}"
        severity: Severity = "warning" if NO_IMAGE in unmatched.objects else "note"
        yield Finding("unmatched-objects", severity, number, total, what)
    if number := unmatched.num_unlisted:
        verb = "is" if number == 1 else "are"
        unlisted = f"{counted(number, 'image')} that no annotation lists"
        what = f"{unlisted} {verb} stored as images without objects"
        yield Finding("unlisted-images", "note", number, len(contents), what)


def _masks(contents: Contents) -> Iterator[Finding]:
    ignored = contents.schema.features[MASK].ignored
    masks = [dict(one or ()) for one in contents.written["mask_pixels"].to_pylist()]
    is_idle = [one.get(ignored, 0) > _IGNORED * max(sum(one.values()), 1) for one in masks]
    idle = [number for number, is_one in enumerate(is_idle) if is_one]
    uniform = [
        number
        for number, one in enumerate(masks)
        # Ignored pixels may be padding, so they do not count as a value of the image.
        if len(one) == 1 or (len(one.keys() - {ignored}) == 1 and not is_idle[number])
    ]
    of_one_value = f"{'masks' if len(uniform) > 1 else 'a mask'} of one value, all over the image"
    for name, numbers, text in (
        ("uniform-masks", uniform, of_one_value),
        ("ignored-pixels", idle, "more than half of the mask ignored: of no class"),
    ):
        if numbers:
            what = f"{counted(len(numbers), 'image')} with {text}"
            keys = contents.keys_of(numbers)
            yield Finding(name, "note", len(numbers), len(contents), what, keys)


def _boxes(contents: Contents, measured: ScanResult) -> Iterator[Finding]:
    boxes = measured.boxes
    same, tiny = twice(boxes), boxes["record"][is_tiny(boxes)]
    pairs = f"{counted(len(same), 'pair')} of boxes of a class that are nearly the same"
    some = f"{len(tiny):,} box{'es' * (len(tiny) != 1)} of less than {TINY} × {TINY} stored pixels"
    rules: tuple[tuple[str, Severity, Ints, str], ...] = (
        ("duplicate-boxes", "warning", same, pairs),
        ("tiny-boxes", "note", tiny, some),
    )
    for name, severity, records, text in rules:
        numbers = np.unique(records).tolist()
        if number := len(numbers):
            what = f"{counted(number, 'image')} {'has' if number == 1 else 'have'} {text}"
            keys = contents.keys_of(numbers)
            yield Finding(name, severity, number, len(measured.numbers), what, keys)


def twice(boxes: Boxes) -> Ints:
    """Return the record number of each pair of nearly equal boxes of one class."""
    blocks = boxes["record"] // _AT_ONCE
    return np.concatenate(
        [
            near_duplicates(part["record"], part["label"], part["corners"].astype(np.float64))
            for part in np.split(boxes, np.flatnonzero(np.diff(blocks)) + 1)
        ]
    )


def lengths(boxes: Boxes) -> Numbers:
    """Return the height and width of each box in pixels of the stored image, float[n, 2]."""
    corners = boxes["corners"].astype(np.float64)
    sides: Numbers = (corners[:, 2:] - corners[:, :2]) * boxes["size"]
    return sides


def is_tiny(boxes: Boxes) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return whether each box has less area than 8 x 8 stored pixels, bool[n]; False if unknown."""
    is_small: np.ndarray[Any, np.dtype[np.bool_]] = lengths(boxes).prod(axis=1) < TINY**2
    return is_small & (boxes["size"] > 0).all(axis=1)


def near_duplicates(image: Ints, label: Ints, boxes: Numbers) -> Ints:
    """Return the image number of each pair of nearly equal boxes with the same image and class.

    `boxes`, float[n, 4], are ymin, xmin, ymax, xmax. A box is compared only with boxes that begin
    less than a tenth of its height below its top; others overlap too little. The search ends
    after about `_MOST_PAIRS` comparisons.
    """
    order = np.lexsort((boxes[:, 0], label, image))
    image, label, boxes = image[order], label[order], boxes[order]
    height = boxes[:, 2] - boxes[:, 0]
    area = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    first = np.arange(len(boxes))
    num_compared = 0
    images = [image[:0]]
    for step in range(1, len(boxes)):
        first = first[first + step < len(boxes)]
        second = first + step
        is_near = (
            (image[first] == image[second])
            & (label[first] == label[second])
            & (boxes[second, 0] - boxes[first, 0] < (1 - _SAME) * height[first])
        )
        first, second = first[is_near], second[is_near]
        num_compared += len(first)
        if not len(first) or num_compared > _MOST_PAIRS:
            break
        low = np.maximum(boxes[first, :2], boxes[second, :2])
        high = np.minimum(boxes[first, 2:], boxes[second, 2:])
        common = (high - low).clip(0).prod(axis=1)
        images.append(image[first[common > _SAME * (area[first] + area[second] - common)]])
    return np.concatenate(images)
