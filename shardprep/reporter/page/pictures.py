"""Pictures of a page, within a byte budget: selection, thumbnails and overlays.

An overlay has the annotations of a record. The page and the viewer draw it over the picture.
"""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from PIL import Image

from shardprep.dataset.annotated_pictures import annotated_picture, legend_of
from shardprep.dataset.schema import (
    ALL_POINTS,
    BOX,
    BOX_LABEL,
    MASK,
    OBJECT_MASK,
    OBJECTS,
    TARGET_IMAGE,
    Schema,
)
from shardprep.errors import RecordError, counted
from shardprep.image.drawing import (
    SIDE,
    AnnotatedPicture,
    Thumbnail,
    mask_layers,
    point_marks,
    thumbnail,
)
from shardprep.machine import usable_cores
from shardprep.reporter.findings.copies import Copies, Part
from shardprep.reporter.page import charts
from shardprep.reporter.page.html import Html, code, joined, picture, tag
from shardprep.reporter.pixels import Payload, StoredImages
from shardprep.reporter.record_columns import Contents

if TYPE_CHECKING:
    from shardprep.reporter.report_data import ReportData

Made = TypeVar("Made")
MOST_GROUPS = 40
MOST_OF_GROUP = 6
NO_CLASS = -1
_BUDGET_BYTES = 2_700_000
"""Limit for thumbnails and overlays together; base64 adds a third."""
MOST_BOXES = 60
"""Maximum number of boxes to draw over a thumbnail, largest first."""
_BOX_BYTES = 20
"""Estimated size of a drawn box, for the budget."""
_RING, _CROSS = "m-2 0a2 2 0 1 0 4 0a2 2 0 1 0-4 0", "m-2-2l4 4m0-4l-4 4"
"""SVG paths of a visible and of a hidden keypoint, relative to its position."""
_AT_ONCE = 16
_NO_CLASS_TIMES = 4
"""Factor of gallery pictures in a dataset without classes, which has only one group of pictures."""
_MOST_NAMES, _MOST_LETTERS = 5, 40
"""Maximum number of classes named for a picture, and maximum length of a name."""
_MOST_LEGEND = 30


@dataclass(frozen=True, slots=True)
class Overlay:
    """Boxes, masks and keypoints of a record, to draw over its thumbnail or image."""

    labels: tuple[int, ...]
    """Class of each object; −1 for an object without a class."""
    boxes: tuple[tuple[int, tuple[float, ...]], ...]
    """Class and (ymin, xmin, ymax, xmax) in pixels, largest first; empty if objects have masks."""
    mask: bytes
    """WebP of the masks in colour, transparent elsewhere; b"" without masks."""
    size: tuple[int, int]
    """Width and height of the overlay in pixels."""
    image_size: tuple[int, int]
    """Width and height of the image in pixels."""
    points: tuple[tuple[str, str], ...] = ()
    """Colour and SVG path of the keypoints, for each object and for the image."""
    num_points: int = 0
    """Number of labelled keypoints."""

    @property
    def num_bytes(self) -> int:
        paths = sum(len(path) for _, path in self.points)
        return len(self.mask) + _BOX_BYTES * len(self.boxes) + paths


@dataclass(frozen=True, slots=True)
class Pictures:
    """All pictures of a page."""

    gallery: dict[int, tuple[int, ...]]
    """Class → a seeded sample of its records; `NO_CLASS` for images without a class."""
    thumbnails: dict[int, Thumbnail]
    """Record → thumbnail. Damaged records and records beyond the budget are missing."""
    means: dict[int, Thumbnail]
    overlays: dict[int, Overlay]
    """Gallery record → overlay, in datasets with boxes, masks or keypoints."""


def draw_pictures(report: ReportData) -> Pictures:
    """Return the pictures of a report, up to `_BUDGET_BYTES`; none if the report has no images."""
    if report.images is None:
        return Pictures({}, {}, {}, {})
    gallery = _gallery(report)
    groups = [one.numbers[:MOST_OF_GROUP] for one in report.copies[:MOST_GROUPS]]
    wanted = [number for group in groups for number in group]
    wanted += [one.number for one in report.wrong_labels[:MOST_GROUPS]]
    wanted += _in_turn([one.nearest for one in report.qualities])
    wanted += _in_turn(list(gallery.values()))
    wanted = list(dict.fromkeys(wanted))
    thumbnails = _in_parallel(report.images, wanted, _thumbnail)
    overlays = {}
    if report.contents.schema.annotations:
        in_gallery = [number for numbers in gallery.values() for number in numbers]
        overlays = _in_parallel(report.images, in_gallery, _overlay)
    within: dict[int, Thumbnail] = {}
    left = _BUDGET_BYTES
    for number in wanted:
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
    return [number for turn in zip_longest(*lists) for number in turn if number is not None]


def _thumbnail(images: StoredImages, payload: Payload) -> Thumbnail:
    if TARGET_IMAGE in images.schema.features:
        return thumbnail(annotated_picture(bytes(payload), images.schema).pixels)
    return thumbnail(images.pixels(images.image(payload), SIDE))


def _overlay(images: StoredImages, payload: Payload) -> Overlay:
    return draw_overlay(annotated_picture(bytes(payload), images.schema), images.schema)


def draw_overlay(picture: AnnotatedPicture, schema: Schema, side: int = SIDE) -> Overlay:
    """Return the overlay of a picture, reduced to a longer side of at most `side` pixels."""
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
    points, num_points = [], 0
    for colour, lines, dots in point_marks(picture, legend_of(schema), size):
        path = "".join(f"M{a:g} {b:g}L{c:g} {d:g}" for (a, b), (c, d) in lines)
        path += "".join(f"M{x:g} {y:g}{_CROSS if hidden else _RING}" for (x, y), hidden in dots)
        points.append(("#{:02x}{:02x}{:02x}".format(*colour), path))
        num_points += len(dots)
    mask, of_image = _painted(picture, schema, size), (width, height)
    return Overlay(labels, drawn, mask, size, of_image, tuple(points), num_points)


def _painted(picture: AnnotatedPicture, schema: Schema, size: tuple[int, int]) -> bytes:
    if not picture.mask and not picture.masks:
        return b""
    pixels = np.zeros((size[1], size[0], 4), np.uint8)
    for where, colour in mask_layers(picture, legend_of(schema), size):
        pixels[where] = (*colour, 255)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "WEBP", lossless=True, method=0)
    return out.getvalue()


def _in_parallel(
    images: StoredImages, numbers: Sequence[int], make: Callable[[StoredImages, Payload], Made]
) -> dict[int, Made]:
    """Return record → result of `make`, without the records that cannot be decoded."""

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
    tiles = {} if report.measured is None else report.measured.tiles
    return {
        label: thumbnail((total / number + 0.5).astype(np.uint8))
        for label, (number, total) in tiles.items()
    }


def classes_of(contents: Contents, number: int, marked: Overlay) -> frozenset[int]:
    """Return the classes of a record's objects and mask; −1 means ignored pixels of the mask."""
    schema = contents.schema
    classes = {label for label in marked.labels if label >= 0}
    if MASK in schema.features:
        ignored = schema.features[MASK].ignored
        values = dict(contents.written.value("mask_pixels", number) or ())
        classes |= {-1 if value == ignored else value for value in values}
    return frozenset(classes)


def switch(schema: Schema, classes: frozenset[int] | None = None) -> Html:
    """Return the checkbox that shows overlays, and a legend of `classes` (None: all)."""
    words = {
        "boxes": BOX in schema.features and OBJECT_MASK not in schema.features,
        "masks": any(one.kind == "mask" for one in schema.annotations.values()),
        "keypoints": any(one.kind == "keypoints" for one in schema.annotations.values()),
    }
    what = " and ".join(word for word, is_there in words.items() if is_there)
    if not what:
        return joined()
    box = tag("input", type="checkbox", id="marks", checked="")
    lists = [one.labels for one in schema.annotations.values() if len(one.labels) > 1]
    names = max(lists, key=len, default=())
    wanted = [i for i in range(len(names)) if classes is None or i in classes]
    shown = [tag("li", charts.chip(i), tag("bdi", _short(names[i]))) for i in wanted[:_MOST_LEGEND]]
    if len(wanted) > _MOST_LEGEND:
        shown.append(tag("li", f"and {len(wanted) - _MOST_LEGEND:,} more"))
    if MASK in schema.features and (classes is None or -1 in classes):
        shown.append(tag("li", charts.chip(-1), "ignored"))
    legend = tag("ul", *shown, class_="legend") if shown else ""
    return joined(tag("p", tag("label", box, f" Show {what}"), class_="switch"), legend)


def overlay(
    contents: Contents, number: int, marked: Overlay, thumbnail: Thumbnail
) -> Iterator[Html]:
    """Yield the layers over a record's thumbnail: an image of the masks, then boxes as SVG."""
    schema, size = contents.schema, (thumbnail.width, thumbnail.height)
    if marked.mask:
        is_of_classes = MASK in schema.features
        text = _mask_text(contents, number) if is_of_classes else _objects_text(marked, schema)
        yield picture(marked.mask, f"masks: {text}", max(size), "over")
    if marked.boxes or marked.points:
        yield drawn_boxes(schema, marked, size)


def drawn_boxes(schema: Schema, marked: Overlay, size: tuple[int, int]) -> Html:
    """Return boxes and keypoints of a record as SVG. `size` is (width, height) of the picture."""
    paths: dict[int, list[str]] = {}
    for label, (top, left, bottom, right) in marked.boxes:
        corner, side = f"M{left:g} {top:g}", f"{right - left:.4g}"
        paths.setdefault(label, []).append(f"{corner}h{side}v{bottom - top:.4g}h-{side}z")
    drawn = [
        tag("path", d="".join(parts), stroke=charts.hex_colour(max(label, 0)))
        for label, parts in sorted(paths.items())
    ]
    drawn += [tag("path", d=path, stroke=colour) for colour, path in marked.points]
    title = tag("title", f"boxes: {_objects_text(marked, schema)}")
    if not marked.boxes:
        title = tag("title", counted(marked.num_points, "keypoint"))
    return tag("svg", title, *drawn, viewBox=f"0 0 {size[0]} {size[1]}", role="img", class_="over")


def drawn_parts(parts: Sequence[Part], thumbnail: Thumbnail) -> Html:
    """Return the outlines of parts of a thumbnail as SVG: x, y, width and height as shares."""
    width, height = thumbnail.width, thumbnail.height
    paths = [
        f"M{x * width:.4g} {y * height:.4g}h{across * width:.4g}v{down * height:.4g}"
        f"h{-across * width:.4g}z"
        for x, y, across, down in parts
    ]
    path = tag("path", d="".join(paths), stroke=charts.hex_colour(0))
    title = tag("title", "what the cropped copy shows")
    return tag("svg", title, path, viewBox=f"0 0 {width} {height}", role="img", class_="over")


def facts(
    contents: Contents, number: int, marked: Overlay | None, size: tuple[str, str] | None
) -> Iterator[tuple[str, str]]:
    """Yield (title, text) pairs about a record. `size` is the pair on the image size, or None."""
    schema, place = contents.schema, contents.place(number)
    yield "split", place.split
    if schema.has_target:
        yield "target", place.label or "none"
    if marked and any(name.startswith(f"{OBJECTS}/") for name in schema.annotations):
        more = len(marked.labels) - MOST_BOXES
        note = f"; the {MOST_BOXES} largest are drawn" if more > 0 else ""
        yield "objects", f"{_objects_text(marked, schema) or 'none'}{note}"
    if marked and {*ALL_POINTS} & schema.features.keys():
        yield "keypoints", f"{marked.num_points:,} labelled"
    if marked and MASK in schema.features:
        yield "mask", _mask_text(contents, number)
    if size:
        yield size
    yield "shard", f"{place.shard}, record {place.shard_record:,}"
    yield "read it", code(f'reader.Dataset(path, "{place.split}")[{place.record}]')


def copy_facts(contents: Contents, group: Copies, i: int) -> Html:
    """Return the split, target and changes of image `i` of a group of copies."""
    place = contents.place(group.numbers[i])
    label = f" · {place.label}" if place.label else ""
    return joined(tag("span", place.split, class_="split"), label, group.change(i))


def copy_group(group: Copies, shown: Html, most: int) -> Html:
    """Return a group of copies: title, images `shown`, and the number of images beyond `most`."""
    rest = len(group.numbers) - most
    last = [tag("p", f"and {rest:,} more", class_="dim")] if rest > 0 else []
    class_ = "group leak" if group.is_leak else "group"
    return tag("div", tag("h3", group.title), shown, *last, class_=class_)


def _objects_text(marked: Overlay, schema: Schema) -> str:
    names = schema.features[BOX_LABEL].labels if BOX_LABEL in schema.features else ()
    order = sorted(Counter(marked.labels).items(), key=lambda pair: (-pair[1], pair[0]))
    parts = [f"{_named(label, names)} × {count:,}" for label, count in order[:_MOST_NAMES]]
    rest = len(order) - len(parts)
    return ", ".join(parts) + (f" and {counted(rest, 'more class')}" if rest else "")


def _mask_text(contents: Contents, number: int) -> str:
    feature = contents.schema.features[MASK]
    counts = dict(contents.written["mask_pixels"][number].as_py() or ())
    total = max(sum(counts.values()), 1)
    order = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    parts = [
        f"{'ignored' if value == feature.ignored else _named(value, feature.labels)}: "
        f"{count / total:.0%}"
        for value, count in order[:_MOST_NAMES]
    ]
    rest = len(order) - len(parts)
    return ", ".join(parts) + (f" and {rest:,} more" if rest else "")


def _named(label: int, names: Sequence[str]) -> str:
    return _short(names[label]) if 0 <= label < len(names) else "object"


def _short(name: str) -> str:
    return name if len(name) <= _MOST_LETTERS else f"{name[:_MOST_LETTERS]}…"
