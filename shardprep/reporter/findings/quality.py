"""Quality of images: a measured value per image, a threshold, and the images beyond it.

Thresholds follow CleanVision (https://github.com/cleanlab/cleanvision) where it defines them.
Thresholds are opinions, so the page also shows a histogram and the images with the worst values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardprep.errors import counted
from shardprep.reporter.findings.finding import Finding, leaving_out

if TYPE_CHECKING:
    from shardprep.reporter.pixels import ScanResult
    from shardprep.reporter.record_columns import Contents, Ints, Numbers

NUM_BINS = 40
_COLOURED = 0.03
"""Median distance between channels (0..1) from which a dataset counts as coloured."""
_ORDINARY = 1.5
"""A threshold applies if the lower quartile of the values is at least this multiple of it. For an
upper limit, distances from 1 are compared. Photographs reach 2 to 3 times each threshold.
Microscopy of glowing cells on black does not."""
_ELSEWHERE = 1 / 8
"""Factor for a threshold that does not apply. Then only black, white or blank images are found."""
_ODD_ASPECT = 3
"""Ratio of the longer to the shorter side from which an original is odd."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Histogram of a value, by split."""

    low: float
    """Lower edge of the first bin; values below it are counted there."""
    high: float
    """Upper edge of the last bin; values above it are counted there."""
    counts: dict[str, tuple[int, ...]]
    """Number of images in each bin, by split; bins have equal width."""


@dataclass(frozen=True, slots=True)
class Quality:
    """A measured property of the images, and the images beyond its threshold."""

    name: str
    what: str
    threshold: float
    is_below: bool
    histogram: Histogram
    found: tuple[int, ...]
    """Records beyond the threshold, worst first."""
    nearest: tuple[int, ...]
    """Records with the worst values, worst first; `values` has their values."""
    values: tuple[float, ...]


_NUM_WORST = 12
_PIXEL_RULES: tuple[tuple[str, str, str, float, bool, float, float], ...] = (
    ("dark", "lightest", "brightness of the lightest hundredth", 0.32, True, 0, 1),
    ("light", "darkest", "brightness of the darkest twentieth", 0.95, False, 0, 1),
    ("flat", "entropy", "entropy of grey levels, bits", 3.0, True, 0, 8),
    ("blurry", "sharpness", "fine detail: edges by contrast", 0.15, True, 0, 2),
    ("grey", "colour", "distance between channels", 0.01, True, 0, 0.5),
)
"""Finding, its measure, description, threshold, `is_below`, and both ends of the histogram."""


def pixel_qualities(contents: Contents, measured: ScanResult) -> Iterator[Quality]:
    """Yield the properties measured in the pixel pass; colour only for a coloured dataset."""
    decoded = measured.measures["decoded"]
    numbers, measures = measured.numbers[decoded], measured.measures[decoded]
    for name, measure, what, threshold, is_below, low, high in _PIXEL_RULES:
        values = measures[measure].astype(np.float64)
        if not len(values) or (name == "grey" and np.median(values) < _COLOURED):
            continue
        limit = threshold if name == "grey" else _in_set(values, threshold, is_below=is_below)
        yield _quality(contents, (name, what, limit, is_below), (numbers, values), (low, high))


def _in_set(values: Numbers, threshold: float, *, is_below: bool) -> float:
    """Return `threshold`, or a stricter one if it does not apply to `values` (`_ORDINARY`)."""
    distance, limit = (values, threshold) if is_below else (1 - values, 1 - threshold)
    if np.quantile(distance, 0.25) >= _ORDINARY * limit:
        return threshold
    return limit * _ELSEWHERE if is_below else 1 - limit * _ELSEWHERE


def original_qualities(contents: Contents) -> Iterator[Quality]:
    """Yield the properties of the originals, aspect and enlargement, which need no pixels."""
    known = np.flatnonzero((contents.height > 0) & (contents.width > 0))
    if not len(known):
        return
    height, width = contents.height[known], contents.width[known]
    aspect = np.maximum(height, width) / np.minimum(height, width)
    what = "longer by shorter side of the original"
    yield _quality(contents, ("odd-aspect", what, _ODD_ASPECT, False), (known, aspect), (1, 5))
    size = contents.schema.image_size
    if size is None:
        return
    options = contents.manifest.fingerprint.options
    fit = options.get("fit", "auto")
    if fit == "auto":
        fit = "pad" if contents.manifest.annotations else "crop"
    sides = np.stack([size[0] / height, size[1] / width])
    # Padding is not counted as stored pixels.
    ratios = sides.prod(axis=0) if fit in ("crop", "stretch") else sides.min(axis=0) ** 2
    if fit == "pad" and (tile := options.get("tile")):
        ratios = np.minimum(ratios, min(size[0] / tile[0], size[1] / tile[1]) ** 2)
    what = "stored pixels for each pixel of the original"
    yield _quality(contents, ("enlarged", what, 1.0, False), (known, ratios), (0, 4))


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
    """Return a histogram by split with the ends `bounds`; `numbers` are the records of `values`."""
    low, high = bounds
    bins = np.clip(((values - low) / (high - low) * num_bins).astype(np.int64), 0, num_bins - 1)
    split = contents.split[numbers]
    counts = {
        name: tuple(np.bincount(bins[split == i], minlength=num_bins).tolist())
        for i, name in enumerate(contents.splits)
    }
    return Histogram(low, high, {name: one for name, one in counts.items() if any(one)})


OF_ORIGINALS = ("odd-aspect", "enlarged")
_SENTENCES = {
    "dark": ("has nothing bright in it", "have nothing bright in them"),
    "light": ("has nothing dark in it", "have nothing dark in them"),
    "flat": ("is blank or nearly so", "are blank or nearly so"),
    "blurry": ("has no fine detail", "have no fine detail"),
    "grey": ("is grey in a dataset of coloured images", "are grey in a dataset of coloured images"),
    "odd-aspect": (
        f"has an original with one side more than {_ODD_ASPECT} times the other",
        f"have originals with one side more than {_ODD_ASPECT} times the other",
    ),
    "enlarged": (
        "has an original with fewer pixels than are stored",
        "have originals with fewer pixels than are stored",
    ),
}
"""Kind of finding → its predicate for one image and for several."""


def quality_findings(
    contents: Contents, qualities: Sequence[Quality], num_looked_at: int
) -> Iterator[Finding]:
    """Yield a finding for each quality that has images beyond its threshold.

    `num_looked_at` is the number of decoded images; findings on originals count all records.
    """
    for quality in qualities:
        if number := len(quality.found):
            what = f"{counted(number, 'image')} {_SENTENCES[quality.name][number > 1]}"
            of_all = len(contents) if quality.name in OF_ORIGINALS else num_looked_at
            finding = Finding(quality.name, "note", number, of_all, what)
            yield leaving_out(finding, contents, quality.found)
