"""Resizing by the extension and by Pillow, as a build does it: a central crop to a square."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.measure import Measure, Row, interleaved, timed
from benchmarks.table import alone
from shardprep.image import resample

if TYPE_CHECKING:
    from pathlib import Path

SIZES = {
    Measure(f"resize {height}x{width} to {to_height}x{to_width}, {colour} / Pillow"): (
        (height, width, channels),
        (to_height, to_width),
    )
    for (height, width), (to_height, to_width) in (
        ((361, 405), (224, 224)),
        ((375, 500), (224, 224)),
        ((500, 375), (299, 299)),
        ((768, 1024), (512, 512)),
        ((180, 240), (224, 224)),
        ((1080, 1920), (256, 256)),
        ((96, 96), (64, 64)),
    )
    for channels, colour in ((3, "RGB"), (1, "grey"))
}
MEASURES = tuple(SIZES)


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return a row for each size; calls are short, so there are twelve for each round."""
    del folder
    found = []
    for measure, (shape, size) in SIZES.items():
        height, width = shape[:2]
        crop_height = min(height, width * size[0] / size[1])
        crop_width = min(width, height * size[1] / size[0])
        left, top = (width - crop_width) / 2, (height - crop_height) / 2
        box = (left, top, left + crop_width, top + crop_height)
        noise = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        cost = interleaved(
            {
                way.__name__: partial(timed, partial(way, noise, size, box))
                for way in (resample.resize, resample.resize_by_pillow)
            },
            rounds if quick else 12 * rounds,
        )
        ours, pillow = cost["resize"].wall_s, cost["resize_by_pillow"].wall_s
        figures = f"{ours * 1e6:,.0f} / {pillow * 1e6:,.0f} µs, {resample.BACKEND}"
        found.append(measure.came_to(pillow / ours, figures))
    return found


if __name__ == "__main__":
    alone(rows, __doc__)
