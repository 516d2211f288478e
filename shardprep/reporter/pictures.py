"""The pictures of a page: which records have one, and their thumbnails within a budget of bytes."""

from __future__ import annotations

import contextlib
import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from shardprep.errors import RecordError
from shardprep.machine import usable_cores

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardprep.reporter.report import Report
    from shardprep.reporter.stored_images import StoredImages

SIDE = 112
"""Longest side of a thumbnail in pixels."""
MOST_GROUPS = 40
"""Groups of copies that are shown."""
MOST_OF_GROUP = 6
"""Images of a group that are shown."""
NO_CLASS = -1
_QUALITY = 45
_BUDGET_BYTES = 2_700_000
"""Bytes of all thumbnails together; base64 makes a third more of them."""
_AT_ONCE = 16
_NO_CLASS_TIMES = 4
"""Pictures of a set without classes, for one of a class."""


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """A small WebP image."""

    data: bytes
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Pictures:
    """What a page shows."""

    gallery: dict[int, tuple[int, ...]]
    """Class → its records, a seeded sample; `NO_CLASS` for images without a class."""
    thumbnails: dict[int, Thumbnail]
    """Record → its picture; some lack one: damaged, or beyond the budget."""
    means: dict[int, Thumbnail]
    """Class → the mean of its images."""


def draw_pictures(report: Report) -> Pictures:
    """Return the pictures of a report, none where it has no images.

    What does not fit the budget is left out, the last of every class first.
    """
    if report.images is None:
        return Pictures({}, {}, {})
    gallery = _gallery(report)
    groups = [one.numbers[:MOST_OF_GROUP] for one in report.copies[:MOST_GROUPS]]
    wanted = [number for group in groups for number in group]
    wanted += _in_turn([one.nearest for one in report.qualities])
    wanted += _in_turn(list(gallery.values()))
    made = _thumbnails(report.images, list(dict.fromkeys(wanted)))
    kept: dict[int, Thumbnail] = {}
    left = _BUDGET_BYTES
    for number in dict.fromkeys(wanted):
        if number in made:
            left -= len(made[number].data)
            if left < 0:
                break
            kept[number] = made[number]
    shown = {
        label: tuple(number for number in numbers if number in kept)
        for label, numbers in gallery.items()
    }
    return Pictures(shown, kept, _means(report))


def _gallery(report: Report) -> dict[int, tuple[int, ...]]:
    """Return a seeded sample of each class that has pictures, and of the images without one."""
    label, number, seed = report.contents.label, report.options.thumbs, report.options.seed
    found = {}
    for one in (*report.pictured, NO_CLASS):
        members = np.flatnonzero(label == one)
        wanted = number * _NO_CLASS_TIMES if not report.pictured else number
        draw = np.random.default_rng((seed, one + 1))
        chosen = draw.choice(members, min(wanted, len(members)), replace=False)
        if len(chosen):
            found[one] = tuple(sorted(chosen.tolist()))
    return found


def _in_turn(lists: Sequence[Sequence[int]]) -> list[int]:
    """Return the first of every list, then the second of every list, and so on."""
    turns = zip_longest(*lists)
    return [number for turn in turns for number in turn if number is not None]


def _thumbnails(images: StoredImages, numbers: Sequence[int]) -> dict[int, Thumbnail]:
    def made(start: int) -> list[tuple[int, Thumbnail]]:
        part = numbers[start : start + _AT_ONCE]
        found = []
        for number, data in zip(part, images.data(part), strict=True):
            # What cannot be decoded has no picture; the pixel pass has told of it.
            with contextlib.suppress(Exception):
                if not isinstance(data, RecordError):
                    found.append((number, thumbnail(images.pixels(data, SIDE))))
        return found

    with ThreadPoolExecutor(usable_cores(), "shardprep-thumbnails") as pool:
        try:
            parts: Iterable[list[tuple[int, Thumbnail]]] = pool.map(
                made, range(0, len(numbers), _AT_ONCE)
            )
            return {number: one for part in parts for number, one in part}
        finally:
            pool.shutdown(cancel_futures=True)


def thumbnail(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> Thumbnail:
    """Return an image, uint8[height, width, 3], as a small WebP; small ones keep their size."""
    image = Image.fromarray(pixels)
    image.thumbnail((SIDE, SIDE), Image.Resampling.BOX)
    out = io.BytesIO()
    image.save(out, "WEBP", quality=_QUALITY, method=0)
    return Thumbnail(out.getvalue(), image.width, image.height)


def _means(report: Report) -> dict[int, Thumbnail]:
    measured = report.measured
    if measured is None:
        return {}
    return {
        label: thumbnail((total / measured.num_tiles[label] + 0.5).astype(np.uint8))
        for label, total in measured.tiles.items()
    }
