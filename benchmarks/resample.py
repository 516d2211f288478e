"""Resizing by the extension and by Pillow, as a build does it: a central crop to a square.

    python benchmarks/resample.py [--rounds 60]

Prints medians in µs of calls in turn, so that whatever else the machine does hits all alike.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from shardprep import resample

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = [
    ((361, 405), (224, 224)),
    ((375, 500), (224, 224)),
    ((500, 375), (299, 299)),
    ((768, 1024), (512, 512)),
    ((180, 240), (224, 224)),
    ((1080, 1920), (256, 256)),
    ((96, 96), (64, 64)),
]


def median_us(ways: list[Callable[[], object]], rounds: int) -> list[float]:
    """Run the ways in turn and return each one's median."""
    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        for way, times in zip(ways, seconds, strict=True):
            start = time.perf_counter()
            way()
            times.append(time.perf_counter() - start)
    return [statistics.median(times) * 1e6 for times in seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    print(f"resize runs on: {resample.BACKEND}")
    print(f"{'from':>10} {'to':>8} {'channels':>8} {'Pillow':>8} {'resize':>8}  times as fast")
    for (height, width), size in SIZES:
        crop_height = min(height, width * size[0] / size[1])
        crop_width = min(width, height * size[1] / size[0])
        left, top = (width - crop_width) / 2, (height - crop_height) / 2
        box = (left, top, left + crop_width, top + crop_height)
        for channels in (3, 1):
            noise = np.random.default_rng(0).integers(0, 256, (height, width, channels), np.uint8)
            pillow, ours = median_us(
                [
                    lambda: resample.resize_by_pillow(noise, size, box),  # noqa: B023  # called here
                    lambda: resample.resize(noise, size, box),  # noqa: B023  # likewise
                ],
                rounds,
            )
            print(
                f"{f'{height}x{width}':>10} {f'{size[0]}x{size[1]}':>8} {channels:>8} "
                f"{pillow:>8.0f} {ours:>8.0f}  {pillow / ours:.1f}"
            )


if __name__ == "__main__":
    main()
