"""Quality of pictures: a number for each image, a threshold, and the images beyond it.

The thresholds are those of CleanVision (https://github.com/cleanlab/cleanvision) where it has one.
They are opinions: the page shows the histogram and the images nearest to them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shardprep.reporter.findings.finding import Finding, images, leaving_out

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardprep.reporter.pixels.pixel_scan import Measured
    from shardprep.reporter.record_columns import Contents

    Ints = np.ndarray[Any, np.dtype[np.int64]]
    Numbers = np.ndarray[Any, np.dtype[np.float64]]

NUM_BINS = 40
_COLOURED = 0.03
"""Median distance between channels, 0..1, from which a set counts as coloured."""
_ORDINARY = 1.5
"""Times a threshold that the lower quartile of a set must reach for the threshold to hold there.

Photographs reach 2 to 3 times each threshold; cells that glow on black do not reach it."""
_ELSEWHERE = 1 / 8
"""Part of a threshold from which an image is odd in other sets: it is black, white or blank."""
_ODD_ASPECT = 3
"""Longer by shorter side of an original from which it is odd."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Number of images of each split by value."""

    low: float
    """Lower edge of the first bin; values below it are counted there."""
    high: float
    """Upper edge of the last bin; values above it are counted there."""
    counts: dict[str, tuple[int, ...]]
    """Number of images in each bin, by split; bins have equal width."""


@dataclass(frozen=True, slots=True)
class Quality:
    """One measured property of all images."""

    name: str
    """Name of its finding."""
    what: str
    """The property in words."""
    threshold: float
    is_below: bool
    """Whether the images with lower values are the ones found, or those with higher."""
    histogram: Histogram
    found: tuple[int, ...]
    """Records beyond the threshold, the worst first."""
    nearest: tuple[int, ...]
    """Some records with the worst values, beyond the threshold or not."""
    values: tuple[float, ...]
    """Values of those."""


_NUM_WORST = 12
_PIXEL_RULES: tuple[tuple[str, str, str, float, bool, float, float], ...] = (
    ("dark", "lightest", "brightness of the lightest hundredth", 0.32, True, 0, 1),
    ("light", "darkest", "brightness of the darkest twentieth", 0.95, False, 0, 1),
    ("flat", "entropy", "entropy of grey levels, bits", 3.0, True, 0, 8),
    ("blurry", "sharpness", "fine detail: edges by contrast", 0.15, True, 0, 2),
    ("grey", "colour", "distance between channels", 0.01, True, 0, 0.5),
)
"""Finding, measure, its meaning, threshold, whether lower ones are found, range of histogram."""


def pixel_qualities(contents: Contents, measured: Measured) -> Iterator[Quality]:
    """Yield the properties that a pixel pass gives, those that say something of this set."""
    decoded = measured.measures["decoded"]
    numbers, measures = measured.numbers[decoded], measured.measures[decoded]
    for name, measure, what, threshold, is_below, low, high in _PIXEL_RULES:
        values = measures[measure].astype(np.float64)
        if not len(values) or (name == "grey" and np.median(values) < _COLOURED):
            continue
        limit = threshold if name == "grey" else _in_set(values, threshold, is_below=is_below)
        yield _quality(contents, (name, what, limit, is_below), (numbers, values), (low, high))


def _in_set(values: Numbers, threshold: float, *, is_below: bool) -> float:
    """Return a threshold, moved towards its end of the scale, 0 or 1, where the set is near it."""
    distance, limit = (values, threshold) if is_below else (1 - values, 1 - threshold)
    if np.quantile(distance, 0.25) >= _ORDINARY * limit:
        return threshold
    return limit * _ELSEWHERE if is_below else 1 - limit * _ELSEWHERE


def original_qualities(contents: Contents) -> Iterator[Quality]:
    """Yield the properties of the originals, which need no pixels."""
    known = np.flatnonzero((contents.height > 0) & (contents.width > 0))
    if not len(known):
        return
    height, width = contents.height[known], contents.width[known]
    aspect = np.maximum(height, width) / np.minimum(height, width)
    what = "longer by shorter side of the original"
    yield _quality(contents, ("odd-aspect", what, _ODD_ASPECT, False), (known, aspect), (1, 5))
    if contents.schema.image_size is None:
        return
    what = "stored pixels for each pixel of the original"
    yield _quality(contents, ("enlarged", what, 1.0, False), (known, pixel_ratio(contents)[known]),
                   (0, 4))  # fmt: skip


def pixel_ratio(contents: Contents) -> Numbers:
    """Return the stored pixels of each image, without bars, for each pixel of its original.

    0 where the size of the original is not known.
    """
    options = contents.manifest.fingerprint.options
    size = contents.schema.image_size
    found = np.zeros(len(contents))
    known = (contents.height > 0) & (contents.width > 0)
    if size is None:
        return found
    height, width = contents.height[known], contents.width[known]
    ratios = np.stack([size[0] / height, size[1] / width])
    found[known] = ratios.prod(axis=0)
    fit = options.get("fit", "auto")
    if fit == "auto":
        fit = "pad" if contents.manifest.annotations else "crop"
    if fit not in ("crop", "stretch"):
        found[known] = ratios.min(axis=0) ** 2
    return found


def _quality(
    contents: Contents,
    rule: tuple[str, str, float, bool],
    of: tuple[Ints, Numbers],
    bounds: tuple[float, float],
) -> Quality:
    name, what, threshold, is_below = rule
    numbers, values = of
    badness = values if is_below else -values
    order = np.lexsort((numbers, badness))
    limit = threshold if is_below else -threshold
    num_found = int((badness < limit).sum())
    return Quality(
        name,
        what,
        threshold,
        is_below,
        histogram(contents, numbers, values, (bounds[0], _end(values, threshold, bounds))),
        tuple(numbers[order[:num_found]].tolist()),
        tuple(numbers[order[:_NUM_WORST]].tolist()),
        tuple(values[order[:_NUM_WORST]].tolist()),
    )


def _end(values: Numbers, threshold: float, bounds: tuple[float, float]) -> float:
    """Return where an axis ends: at the data and the threshold, to two digits, within bounds."""
    low, high = bounds
    length = max(float(values.max()), threshold) - low
    unit = 10.0 ** (math.floor(math.log10(length)) - 1)
    return min(high, low + math.ceil(round(length / unit, 6)) * unit)


def histogram(
    contents: Contents,
    numbers: Ints,
    values: Numbers,
    bounds: tuple[float, float],
    num_bins: int = NUM_BINS,
) -> Histogram:
    """Return the histogram of values of some records, split by split."""
    low, high = bounds
    bins = np.clip(((values - low) / (high - low) * num_bins).astype(np.int64), 0, num_bins - 1)
    split = contents.split[numbers]
    counts = {
        name: tuple(np.bincount(bins[split == i], minlength=num_bins).tolist())
        for i, name in enumerate(contents.splits)
    }
    return Histogram(low, high, {name: one for name, one in counts.items() if any(one)})


_SENTENCES = {
    "dark": ("has nothing bright in it", "have nothing bright in them"),
    "light": ("has nothing dark in it", "have nothing dark in them"),
    "flat": ("is blank or nearly so", "are blank or nearly so"),
    "blurry": ("has no fine detail", "have no fine detail"),
    "grey": ("is grey in a set of coloured ones", "are grey in a set of coloured ones"),
    "odd-aspect": (
        f"has an original with one side more than {_ODD_ASPECT} times the other",
        f"have originals with one side more than {_ODD_ASPECT} times the other",
    ),
    "enlarged": (
        "has an original with fewer pixels than are stored",
        "have originals with fewer pixels than are stored",
    ),
}
"""Kind of finding → its sentence, of one image and of several."""


def quality_findings(
    contents: Contents, qualities: Sequence[Quality], num_looked_at: int
) -> Iterator[Finding]:
    """Yield a finding for each property with images beyond its threshold."""
    for one in qualities:
        if not one.found:
            continue
        number = len(one.found)
        of_all = len(contents) if one.name in ("odd-aspect", "enlarged") else num_looked_at
        said = f"{images(number)} {_SENTENCES[one.name][number > 1]}"
        yield leaving_out(Finding(one.name, "note", number, of_all, said), contents, one.found)
