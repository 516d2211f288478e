"""The pictures of a report page: selection, thumbnails and overlays, within a byte budget."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from PIL import Image

from shardprep.dataset.annotated_pictures import annotated_picture, legend_of
from shardprep.dataset.schema import OBJECT_MASK, Schema
from shardprep.errors import RecordError
from shardprep.image.drawing import SIDE, AnnotatedPicture, Thumbnail, mask_layers, thumbnail
from shardprep.machine import usable_cores

if TYPE_CHECKING:
    from shardprep.reporter.pixels.stored_images import Payload, StoredImages
    from shardprep.reporter.report_data import ReportData

Made = TypeVar("Made")
MOST_GROUPS = 40
"""Maximum number of groups of copies to show."""
MOST_OF_GROUP = 6
"""Maximum number of images to show of a group of copies."""
NO_CLASS = -1
_BUDGET_BYTES = 2_700_000
"""Limit for thumbnails and overlays together; base64 adds a third."""
MOST_BOXES = 60
"""Maximum number of boxes to draw over a thumbnail, largest first."""
_BOX_BYTES = 20
"""Estimated size of a drawn box, for the budget."""
_AT_ONCE = 16
_NO_CLASS_TIMES = 4
"""A dataset without classes shows this many times the pictures of one class."""


@dataclass(frozen=True, slots=True)
class Overlay:
    """Boxes and masks of a record, drawn over its thumbnail."""

    labels: tuple[int, ...]
    """Class of each object, −1 without a class."""
    boxes: tuple[tuple[int, tuple[float, ...]], ...]
    """Class, and ymin, xmin, ymax, xmax in pixels of the thumbnail, largest first. Empty if the
    objects have masks."""
    mask: bytes
    """WebP of the mask colours, transparent elsewhere; b"" without masks."""

    @property
    def num_bytes(self) -> int:
        """Estimated size, for the budget."""
        return len(self.mask) + _BOX_BYTES * len(self.boxes)


@dataclass(frozen=True, slots=True)
class Pictures:
    """All pictures of a page."""

    gallery: dict[int, tuple[int, ...]]
    """Class → a seeded sample of its records; `NO_CLASS` for images without a class."""
    thumbnails: dict[int, Thumbnail]
    """Record → thumbnail. Damaged records and records beyond the budget are missing."""
    means: dict[int, Thumbnail]
    """Class → mean of its images."""
    overlays: dict[int, Overlay]
    """Gallery record → overlay, in datasets with boxes or masks."""


def draw_pictures(report: ReportData) -> Pictures:
    """Return the pictures of a report, or no pictures if the report has no images.

    Pictures beyond the budget are left out, starting with the last of every class.
    """
    if report.images is None:
        return Pictures({}, {}, {}, {})
    gallery = _gallery(report)
    groups = [one.numbers[:MOST_OF_GROUP] for one in report.copies[:MOST_GROUPS]]
    wanted = [number for group in groups for number in group]
    wanted += _in_turn([one.nearest for one in report.qualities])
    wanted += _in_turn(list(gallery.values()))
    thumbnails = _thumbnails(report.images, list(dict.fromkeys(wanted)))
    overlays = {}
    if report.contents.schema.annotations:
        in_gallery = [number for numbers in gallery.values() for number in numbers]
        overlays = _in_parallel(report.images, in_gallery, _overlay)
    within: dict[int, Thumbnail] = {}
    left = _BUDGET_BYTES
    for number in dict.fromkeys(wanted):
        if number in thumbnails:
            left -= len(thumbnails[number].data)
            left -= overlays[number].num_bytes if number in overlays else 0
            if left < 0:
                break
            within[number] = thumbnails[number]
    shown = {
        label: tuple(number for number in numbers if number in within)
        for label, numbers in gallery.items()
    }
    return Pictures(shown, within, _means(report), overlays)


def _gallery(report: ReportData) -> dict[int, tuple[int, ...]]:
    """Return a seeded sample of each pictured class, and of the images without a class."""
    label, number, seed = report.contents.label, report.options.thumbs, report.options.seed
    samples = {}
    for class_number in (*report.pictured, NO_CLASS):
        members = np.flatnonzero(label == class_number)
        wanted = number * _NO_CLASS_TIMES if not report.pictured else number
        draw = np.random.default_rng((seed, class_number + 1))
        chosen = draw.choice(members, min(wanted, len(members)), replace=False)
        if len(chosen):
            samples[class_number] = tuple(sorted(chosen.tolist()))
    return samples


def _in_turn(lists: Sequence[Sequence[int]]) -> list[int]:
    """Interleave lists: all first elements, then all second elements, and so on."""
    turns = zip_longest(*lists)
    return [number for turn in turns for number in turn if number is not None]


def _thumbnails(images: StoredImages, numbers: Sequence[int]) -> dict[int, Thumbnail]:
    def made(images: StoredImages, payload: Payload) -> Thumbnail:
        return thumbnail(images.pixels(images.image(payload), SIDE))

    return _in_parallel(images, numbers, made)


def _overlay(images: StoredImages, payload: Payload) -> Overlay:
    return draw_overlay(annotated_picture(bytes(payload), images.schema), images.schema)


def draw_overlay(picture: AnnotatedPicture, schema: Schema, side: int = SIDE) -> Overlay:
    """Return the overlay of a picture that is scaled down to at most `side` pixels."""
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
        picture = replace(picture, labels=())  # then each object gets its own colour
    drawn = tuple((labels[i], tuple(boxes[i].round(1).tolist())) for i in largest)
    return Overlay(labels, drawn, _painted(picture, schema, size))


def _painted(picture: AnnotatedPicture, schema: Schema, size: tuple[int, int]) -> bytes:
    """Return the colours of the masks of a picture as WebP; b"" without masks."""
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
    """Return the result of `make` for each record that can be decoded."""

    def made(start: int) -> list[tuple[int, Made]]:
        part = numbers[start : start + _AT_ONCE]
        results = []
        for number, payload in zip(part, images.payloads(part), strict=True):
            # The pixel pass has already reported records that cannot be decoded.
            with contextlib.suppress(Exception):
                if not isinstance(payload, RecordError):
                    results.append((number, make(images, payload)))
        return results

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
