"""Findings about boxes and masks: dropped objects, tiny or duplicate boxes, ignored pixels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from shardprep.dataset.describe import TINY, near_duplicates
from shardprep.dataset.manifest import NO_IMAGE
from shardprep.dataset.schema import MASK
from shardprep.errors import counted, some_of
from shardprep.reporter.findings.finding import Finding, Severity, images
from shardprep.reporter.findings.imbalance import TRAIN

if TYPE_CHECKING:
    from shardprep.reporter.pixels.pixel_scan import ScanResult
    from shardprep.reporter.record_columns import Contents

Ints = np.ndarray[Any, np.dtype[np.int64]]
Boxes = np.ndarray[Any, Any]

_IGNORED = 0.5
"""Share of ignored mask pixels from which an image is a finding."""
_AT_ONCE = 1 << 10
"""Number of records whose boxes are compared at a time."""


def annotation_findings(contents: Contents, measured: ScanResult | None) -> Iterator[Finding]:
    """Yield the findings about boxes and masks."""
    schema = contents.schema
    if not schema.annotations:
        return
    yield from _missing(contents)
    yield from _dropped(contents)
    yield from _unmatched(contents)
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
        classes = f"{len(missing):,} class{'es' * (len(missing) != 1)}"
        what = f"{classes} of objects or masks {verb} none in train: {some_of(missing)}"
        yield Finding("missing-object-classes", "serious", len(missing), number, what)


def _dropped(contents: Contents) -> Iterator[Finding]:
    numbers = np.flatnonzero(contents.written["num_dropped"].fill_null(0).to_numpy())
    if not len(numbers):
        return
    reasons: Counter[str] = Counter()
    for counts in contents.manifest.annotations.values():
        reasons.update(counts.dropped)
    listed = ", ".join(f"{count:,} for {reason}" for reason, count in sorted(reasons.items()))
    total = reasons.total()
    what = (
        f"{images(len(numbers))} lost {total:,} object{'s' * (total != 1)} in the build: {listed}"
    )
    keys = contents.keys_of(numbers.tolist())
    yield Finding("dropped-objects", "warning", len(numbers), len(contents), what, keys)


def _unmatched(contents: Contents) -> Iterator[Finding]:
    unmatched = contents.manifest.unmatched
    if unmatched is None:
        return
    if unmatched.objects:
        number = sum(unmatched.objects.values())
        known = contents.manifest.annotations.values()
        num_stored = sum(one.objects.num_objects for one in known if one.objects)
        total = number + num_stored + sum(sum(one.dropped.values()) for one in known)
        reasons = ", ".join(f"{count:,} for {why}" for why, count in unmatched.objects.items())
        verb = "belongs" if number == 1 else "belong"
        what = f"{counted(number, 'annotated object')} {verb} to no image: {reasons}"
        severity: Severity = "warning" if NO_IMAGE in unmatched.objects else "note"
        yield Finding("unmatched-objects", severity, number, total, what)
    if number := unmatched.num_unlisted:
        verb = "is" if number == 1 else "are"
        what = f"{images(number)} that no annotation lists {verb} stored as images without objects"
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
    if uniform:
        masks_of = "masks" if len(uniform) > 1 else "a mask"
        what = f"{images(len(uniform))} with {masks_of} of one value, all over the image"
        keys = contents.keys_of(uniform)
        yield Finding("uniform-masks", "note", len(uniform), len(contents), what, keys)
    if idle:
        what = f"{images(len(idle))} with more than half of the mask ignored: of no class"
        keys = contents.keys_of(idle)
        yield Finding("ignored-pixels", "note", len(idle), len(contents), what, keys)


def _boxes(contents: Contents, measured: ScanResult) -> Iterator[Finding]:
    boxes = measured.boxes
    number = len(measured.numbers)
    same = twice(boxes)
    if len(same):
        pairs = f"{len(same):,} pair{'s' * (len(same) != 1)}"
        numbers = np.unique(same).tolist()
        verb = "has" if len(numbers) == 1 else "have"
        what = f"{images(len(numbers))} {verb} {pairs} of boxes of a class that are nearly the same"
        yield Finding(
            "duplicate-boxes", "warning", len(numbers), number, what, contents.keys_of(numbers)
        )
    tiny = boxes[is_tiny(boxes)]
    if len(tiny):
        numbers = np.unique(tiny["record"]).tolist()
        verb = "has" if len(numbers) == 1 else "have"
        some = f"{len(tiny):,} box{'es' * (len(tiny) != 1)}"
        what = f"{images(len(numbers))} {verb} {some} of less than {TINY} × {TINY} stored pixels"
        yield Finding("tiny-boxes", "note", len(numbers), number, what, contents.keys_of(numbers))


def twice(boxes: Boxes) -> Ints:
    """Return the record number of each pair of nearly equal boxes of one class."""
    blocks = boxes["record"] // _AT_ONCE
    return np.concatenate(
        [
            near_duplicates(part["record"], part["label"], part["corners"].astype(np.float64))
            for part in np.split(boxes, np.flatnonzero(np.diff(blocks)) + 1)
        ]
    )


def lengths(boxes: Boxes) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return height and width of boxes in pixels of the stored image, float[n, 2]."""
    corners = boxes["corners"].astype(np.float64)
    sides: np.ndarray[Any, np.dtype[np.float64]] = (corners[:, 2:] - corners[:, :2]) * boxes["size"]
    return sides


def is_tiny(boxes: Boxes) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return whether each box has less than `TINY` x `TINY` pixels of its stored image."""
    found: np.ndarray[Any, np.dtype[np.bool_]] = lengths(boxes).prod(axis=1) < TINY**2
    return found & (boxes["size"] > 0).all(axis=1)
