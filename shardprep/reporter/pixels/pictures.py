"""The pictures of a page: which records have one, and their thumbnails within a budget of bytes."""

from __future__ import annotations

import contextlib
import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from PIL import Image

from shardprep.dataset.annotated_pictures import annotated_picture, legend_of
from shardprep.dataset.schema import OBJECT_MASK
from shardprep.errors import RecordError
from shardprep.image.drawing import SIDE, Thumbnail, mask_layers, thumbnail
from shardprep.machine import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardprep.dataset.schema import Schema
    from shardprep.image.drawing import AnnotatedPicture
    from shardprep.reporter.pixels.stored_images import Payload, StoredImages
    from shardprep.reporter.report_data import ReportData

Made = TypeVar("Made")
MOST_GROUPS = 40
"""Groups of copies that are shown."""
MOST_OF_GROUP = 6
"""Images of a group that are shown."""
NO_CLASS = -1
_BUDGET_BYTES = 2_700_000
"""Bytes of all thumbnails and what is drawn over them; base64 makes a third more of them."""
MOST_BOXES = 60
"""Boxes that are drawn over a thumbnail, the largest ones."""
_BOX_BYTES = 20
"""Bytes of the budget that a box takes."""
_AT_ONCE = 16
_NO_CLASS_TIMES = 4
"""Pictures of a set without classes, for one of a class."""


@dataclass(frozen=True, slots=True)
class Overlay:
    """Drawing over a thumbnail: the boxes and masks of its record."""

    labels: tuple[int, ...]
    """Class of each object, −1 for none."""
    boxes: tuple[tuple[int, tuple[float, ...]], ...]
    """Class, and ymin, xmin, ymax, xmax in pixels of the thumbnail: the largest, largest first;
    none where the objects have masks, which say more."""
    mask: bytes
    """WebP of the colours of masks, clear elsewhere; b"" for none."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the budget that it takes."""
        return len(self.mask) + _BOX_BYTES * len(self.boxes)


@dataclass(frozen=True, slots=True)
class Pictures:
    """Contents of a page."""

    gallery: dict[int, tuple[int, ...]]
    """Class → its records, a seeded sample; `NO_CLASS` for images without a class."""
    thumbnails: dict[int, Thumbnail]
    """Record → its picture; some lack one: damaged, or beyond the budget."""
    means: dict[int, Thumbnail]
    """Class → the mean of its images."""
    overlays: dict[int, Overlay]
    """Record of the gallery → what is drawn over its picture, in sets with boxes or masks."""


def draw_pictures(report: ReportData) -> Pictures:
    """Return the pictures of a report, none where it has no images.

    What does not fit the budget is left out, the last of every class first.
    """
    if report.images is None:
        return Pictures({}, {}, {}, {})
    gallery = _gallery(report)
    groups = [one.numbers[:MOST_OF_GROUP] for one in report.copies[:MOST_GROUPS]]
    wanted = [number for group in groups for number in group]
    wanted += _in_turn([one.nearest for one in report.qualities])
    wanted += _in_turn(list(gallery.values()))
    made = _thumbnails(report.images, list(dict.fromkeys(wanted)))
    overlays = {}
    if report.contents.schema.annotations:
        in_gallery = [number for numbers in gallery.values() for number in numbers]
        overlays = _in_parallel(report.images, in_gallery, _overlay)
    kept: dict[int, Thumbnail] = {}
    left = _BUDGET_BYTES
    for number in dict.fromkeys(wanted):
        if number in made:
            left -= len(made[number].data)
            left -= overlays[number].num_bytes if number in overlays else 0
            if left < 0:
                break
            kept[number] = made[number]
    shown = {
        label: tuple(number for number in numbers if number in kept)
        for label, numbers in gallery.items()
    }
    return Pictures(shown, kept, _means(report), overlays)


def _gallery(report: ReportData) -> dict[int, tuple[int, ...]]:
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
    def made(images: StoredImages, payload: Payload) -> Thumbnail:
        return thumbnail(images.pixels(images.image(payload), SIDE))

    return _in_parallel(images, numbers, made)


def _overlay(images: StoredImages, payload: Payload) -> Overlay:
    return draw_overlay(annotated_picture(bytes(payload), images.schema), images.schema)


def draw_overlay(picture: AnnotatedPicture, schema: Schema, side: int = SIDE) -> Overlay:
    """Return what is drawn over a picture whose longest side is so many pixels, at most."""
    height, width = picture.pixels.shape[:2]
    scale = min(1, side / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    boxes = np.nan_to_num(picture.boxes).clip(-1, 2) * (size[1], size[0], size[1], size[0])
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    labels = tuple(picture.labels) or (-1,) * max(len(boxes), len(picture.masks))
    largest = np.argsort(-areas, kind="stable")[:MOST_BOXES].tolist()
    if OBJECT_MASK in schema.features:
        largest = []
    if len(schema.annotation_labels) <= 1:
        picture = replace(picture, labels=())  # each object has a colour of its own
    drawn = tuple((labels[i], tuple(boxes[i].round(1).tolist())) for i in largest)
    return Overlay(labels, drawn, _painted(picture, schema, size))


def _painted(picture: AnnotatedPicture, schema: Schema, size: tuple[int, int]) -> bytes:
    """Return the colours of the masks of a picture as a WebP; b"" where it has none."""
    if not picture.mask and not picture.masks:
        return b""
    pixels = np.zeros((size[1], size[0], 4), np.uint8)
    for where, colour in mask_layers(picture, legend_of(schema), size):
        pixels[where] = (*colour, 255)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "WEBP", lossless=True, method=0)
    return out.getvalue()


def _in_parallel(
    images: StoredImages,
    numbers: Sequence[int],
    make: Callable[[StoredImages, Payload], Made],
) -> dict[int, Made]:
    """Return what is made of some records; of what cannot be decoded, nothing."""

    def made(start: int) -> list[tuple[int, Made]]:
        part = numbers[start : start + _AT_ONCE]
        found = []
        for number, payload in zip(part, images.payloads(part), strict=True):
            # What cannot be decoded has no picture; the pixel pass has told of it.
            with contextlib.suppress(Exception):
                if not isinstance(payload, RecordError):
                    found.append((number, make(images, payload)))
        return found

    with ThreadPoolExecutor(usable_cores(), "shardprep-thumbnails") as pool:
        try:
            parts = pool.map(made, range(0, len(numbers), _AT_ONCE))
            return {number: one for part in parts for number, one in part}
        finally:
            pool.shutdown(cancel_futures=True)


def _means(report: ReportData) -> dict[int, Thumbnail]:
    measured = report.measured
    if measured is None:
        return {}
    return {
        label: thumbnail((total / measured.num_tiles[label] + 0.5).astype(np.uint8))
        for label, total in measured.tiles.items()
    }
