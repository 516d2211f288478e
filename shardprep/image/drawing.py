"""Draw thumbnails, pictures with boxes and masks, and contact sheets; each class has a colour."""

from __future__ import annotations

import colorsys
import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Array = np.ndarray[Any, Any]
Colour = tuple[int, int, int]
INK = (20, 20, 20)
"""Colour of text, and of mask pixels whose value is not a class."""
_COLOURS = (
    *("e6194b", "3cb44b", "4363d8", "ffe119", "f58231", "911eb4", "42d4f4", "f032e6", "bfef45"),
    *("469990", "9a6324", "fabed4", "800000", "aaffc3", "808000", "dcbeff", "000075", "ffd8b1"),
)
"""Colours of the first classes in hexadecimal RGB, from Sasha Trubetskoy's list."""
_SHADES = ((0, 0.0), (255, 0.45), (0, 0.4), (255, 0.7), (0, 0.65))
"""For each shade, the grey level to mix into a colour and the share of that level."""
_GOLDEN = (math.sqrt(5) - 1) / 2
"""Step of hue from class to class after `_COLOURS`; the golden ratio keeps hues apart."""

SIDE = 112
"""Default for the longest side of a thumbnail in pixels."""


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """A small WebP image, and its size in pixels."""

    data: bytes
    width: int
    height: int


def thumbnail(
    pixels: np.ndarray[Any, np.dtype[np.uint8]], side: int = SIDE, quality: int = 45
) -> Thumbnail:
    """Return pixels, uint8[height, width, 3], as a WebP whose longer side is at most `side`."""
    image = Image.fromarray(pixels)
    image.thumbnail((side, side), Image.Resampling.BOX)
    out = io.BytesIO()
    image.save(out, "WEBP", quality=quality, method=0)
    return Thumbnail(out.getvalue(), image.width, image.height)


_PAPER, _FAINT = (255, 255, 255), (120, 120, 120)
_MARGIN, _LINE = 8, 18
"""Pixels between tiles, and height of a line of text in pixels."""
_OPACITY = 0.45
_UNPAINTED = frozenset(("background", "_background_"))
_MOST_BOXES = 1000
"""Maximum number of boxes drawn into a picture, the largest first."""
_FEW_BOXES = 15
"""With more boxes than this, only boxes at least as wide as their name are named."""
_MOST_CLASSES = 60
_DOT = 3
"""Radius of a keypoint in pixels."""


def class_colour(label: int) -> Colour:
    """Return the RGB colour of a class, which is the same in every picture and page."""
    if 0 <= label < len(_COLOURS):
        red, green, blue = bytes.fromhex(_COLOURS[label])
        return red, green, blue
    parts = colorsys.hsv_to_rgb((label * _GOLDEN) % 1.0, 0.9 - 0.25 * (label % 2), 0.95)
    red, green, blue = (round(part * 255) for part in parts)
    return red, green, blue


def shade(colour: Colour, number: int) -> Colour:
    """Return a lighter or darker shade of a colour; number 0 is the colour itself."""
    level, share = _SHADES[number % len(_SHADES)]
    red, green, blue = (round(part * (1 - share) + level * share) for part in colour)
    return red, green, blue


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatedPicture:
    """A stored image to draw, with its boxes and masks."""

    title: str
    pixels: Array
    """uint8[height, width, 3], RGB."""
    boxes: Array = field(default_factory=lambda: np.empty((0, 4)))
    """ymin, xmin, ymax, xmax of each object, 0 to 1, [n, 4]."""
    labels: Sequence[int] = ()
    """Class index of each object; () if the objects have no classes."""
    crowds: Sequence[int] = ()
    """0 or 1 for each object: whether it is a crowd; () if the dataset does not say."""
    masks: Sequence[bytes] = ()
    """PNG of 0 and 1 for each object; () if the dataset has no masks of objects."""
    mask: bytes = b""
    """PNG of the class of each pixel; b"" if the dataset has no class masks."""
    keypoints: Array = field(default_factory=lambda: np.empty((0, 0, 3)))
    """y and x, 0 to 1, and visibility of the keypoints of each object, [n, K, 3]."""
    points: Array = field(default_factory=lambda: np.empty((0, 3)))
    """y and x, 0 to 1, and visibility of the keypoints of the image, [K, 3]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Legend:
    """The names of the classes of objects and of the class mask, by class index."""

    objects: tuple[str, ...] = ()
    mask: tuple[str, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()
    """Pairs of keypoints of objects to connect."""


def draw_contact_sheet(
    pictures: Iterable[AnnotatedPicture], legend: Legend, *, columns: int = 6, side: int = 320
) -> Image.Image:
    """Return a sheet of the pictures, row by row, with a legend of the classes at the bottom.

    `pictures` is read one picture at a time. `side` is the longer side of each picture in pixels.
    """
    tiles = [_tile(picture, legend, side) for picture in pictures]
    columns = max(1, min(columns, len(tiles)))
    rows = [tiles[at : at + columns] for at in range(0, len(tiles), columns)]
    heights = [max(tile.height for tile in row) for row in rows]
    below = _legend(legend, columns * (side + _MARGIN) - _MARGIN)
    width = columns * (side + _MARGIN) + _MARGIN
    height = sum(heights) + _MARGIN * (len(rows) + 2) + below.height
    sheet = Image.new("RGB", (width, height), _PAPER)
    top = _MARGIN
    for row, row_height in zip(rows, heights, strict=True):
        for number, tile in enumerate(row):
            sheet.paste(tile, (_MARGIN + number * (side + _MARGIN), top))
        top += row_height + _MARGIN
    sheet.paste(below, (_MARGIN, top))
    return sheet


def draw_marked(picture: AnnotatedPicture, legend: Legend, side: int) -> tuple[Image.Image, bool]:
    """Return the drawing, `side` pixels on its longer side, and whether its masks could be read."""
    height, width = picture.pixels.shape[:2]
    scale = side / max(height, width, 1)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    # Pixels stay visible in an enlarged picture: they show how well a box fits.
    resampling = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BOX
    image = Image.fromarray(picture.pixels).resize(size, resampling)
    is_whole = True
    try:
        image = _masked(image, picture, legend)
    except Exception:  # decoders raise anything; boxes are drawn even without masks
        is_whole = False
    _draw_boxes(image, picture, legend)
    _draw_points(image, picture, legend)
    return image, is_whole


def _tile(picture: AnnotatedPicture, legend: Legend, side: int) -> Image.Image:
    image, is_whole = draw_marked(picture, legend, side)
    title = _shown(picture.title)
    if not is_whole:
        title = f"(a mask cannot be read) {title}"
    tile = Image.new("RGB", (side, image.height + _LINE), _PAPER)
    tile.paste(image, (0, 0))
    number = len(picture.boxes)
    count = f"{number:,} object{'' if number == 1 else 's'}"
    if number > _MOST_BOXES:
        count += f", {_MOST_BOXES:,} drawn"
    draw, font = ImageDraw.Draw(tile), _font()
    room = side - draw.textlength(f"  {count}", font)
    while draw.textlength(title, font) > room and len(title) > 1:
        title = f"…{title[2:]}" if title[0] == "…" else f"…{title[1:]}"
    draw.text((0, image.height + 2), title, INK, font)
    if len(picture.boxes) or legend.objects:
        draw.text((side, image.height + 2), count, _FAINT, font, anchor="ra")
    return tile


def _masked(image: Image.Image, picture: AnnotatedPicture, legend: Legend) -> Image.Image:
    if not picture.mask and not picture.masks:
        return image
    pixels = np.asarray(image, np.float32).copy()
    for where, colour in mask_layers(picture, legend, image.size):
        pixels[where] = pixels[where] * (1 - _OPACITY) + np.array(colour) * _OPACITY
    return Image.fromarray(pixels.round().astype(np.uint8))


def mask_layers(
    picture: AnnotatedPicture, legend: Legend, size: tuple[int, int]
) -> Iterator[tuple[Array, Colour]]:
    """Yield the pixels that each mask of a picture paints, bool[height, width], and their colour.

    A class mask is used if the picture has it, otherwise the masks of objects. If the dataset has
    several classes, an object has a shade of its class's colour, otherwise the colour of its index.
    `size` is the width and height of the layers in pixels. Raises ValueError for a mask of another
    size than its picture, and any error of the decoder.
    """
    if picture.mask:
        values = _scaled(picture.mask, picture, size)
        for value in np.unique(values).tolist():
            if value >= len(legend.mask):
                yield values == value, INK
            elif _is_painted(value, legend.mask[value]):
                yield values == value, class_colour(value)
        return
    of_class: Counter[int] = Counter()
    for number, data in enumerate(picture.masks):
        colour = class_colour(number)
        if len(legend.objects) > 1 and number < len(picture.labels):
            label = picture.labels[number]
            colour = shade(class_colour(label), of_class[label])
            of_class[label] += 1
        yield _scaled(data, picture, size) > 0, colour


def _is_painted(value: int, name: str) -> bool:
    return name.lower() not in _UNPAINTED and not (value == 0 and name == "0")


def _scaled(data: bytes, picture: AnnotatedPicture, size: tuple[int, int]) -> Array:
    with Image.open(io.BytesIO(data), formats=("PNG",)) as mask:
        if (mask.height, mask.width) != picture.pixels.shape[:2]:
            raise ValueError("the mask and its image differ in size")
        return np.asarray(mask.resize(size, Image.Resampling.NEAREST))


def _draw_boxes(image: Image.Image, picture: AnnotatedPicture, legend: Legend) -> None:
    draw, font = ImageDraw.Draw(image), _font()
    boxes = np.nan_to_num(picture.boxes).clip(-1, 2) * ([image.height, image.width] * 2)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    largest = np.argsort(-areas, kind="stable")[:_MOST_BOXES]
    corners = np.round(boxes).astype(int).tolist()
    for number in largest.tolist():
        top, left, bottom, right = corners[number]
        bottom, right = max(top, bottom - 1), max(left, right - 1)
        label = picture.labels[number] if number < len(picture.labels) else None
        colour = class_colour(label or 0)
        draw.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=INK)
        draw.rectangle((left, top, right, bottom), outline=colour, width=2)
        if label is not None and len(legend.objects) > 1:
            name = _name(label, legend.objects)
            if number < len(picture.crowds) and picture.crowds[number]:
                name = f"{name} (crowd)"
            if len(largest) <= _FEW_BOXES or draw.textlength(name, font) <= right - left:
                _draw_name(draw, name, (left, top), colour, font)


def _draw_points(image: Image.Image, picture: AnnotatedPicture, legend: Legend) -> None:
    draw = ImageDraw.Draw(image)
    for colour, lines, dots in point_marks(picture, legend, image.size):
        for line in lines:
            draw.line(line, fill=colour, width=2)
        for (x, y), is_hidden in dots:
            box = (x - _DOT, y - _DOT, x + _DOT, y + _DOT)
            draw.ellipse(box, fill=None if is_hidden else colour, outline=INK)


Place = tuple[float, float]


def point_marks(
    picture: AnnotatedPicture, legend: Legend, size: tuple[int, int]
) -> Iterator[tuple[Colour, list[tuple[Place, Place]], list[tuple[Place, bool]]]]:
    """Yield colour, lines and dots of the keypoints of each object, then of the image.

    `size` is the width and height of the drawing. A dot is x, y in pixels of the drawing, and
    whether the keypoint is hidden.
    """
    several = [
        (picture.labels[i] if i < len(picture.labels) else i, one, legend.edges)
        for i, one in enumerate(picture.keypoints[:_MOST_BOXES])
    ]
    several += [(0, picture.points, ())] if len(picture.points) else []
    for label, points, edges in several:
        places = np.nan_to_num(points[:, 1::-1]).clip(-1, 2) * size
        xy = [(x, y) for x, y in places.round(1).tolist()]
        visible = points[:, 2].tolist()
        lines = [(xy[a], xy[b]) for a, b in edges if visible[a] and visible[b]]
        dots = [(at, seen == 1) for at, seen in zip(xy, visible, strict=True) if seen]
        yield class_colour(label), lines, dots


def _draw_name(draw: Any, name: str, at: tuple[int, int], colour: Colour, font: Any) -> None:
    left, top = at[0], max(0, at[1] - _LINE + 4)
    box = draw.textbbox((left + 2, top), name, font)
    draw.rectangle((left, top, box[2] + 2, top + _LINE - 4), fill=colour)
    is_light = sum(colour) > 3 * 140
    draw.text((left + 2, top), name, INK if is_light else _PAPER, font)


def _legend(legend: Legend, width: int) -> Image.Image:
    draw, font = ImageDraw.Draw(Image.new("RGB", (1, 1))), _font()
    entries: list[tuple[str, Colour | None]] = []
    for title, names in (("objects:", legend.objects), ("mask:", legend.mask)):
        entries += [(title, None)] if names else []
        entries += [
            (_name(i, names), class_colour(i))
            for i, name in enumerate(names[:_MOST_CLASSES])
            if title == "objects:" or _is_painted(i, name)
        ]
        if len(names) > _MOST_CLASSES:
            entries.append((f"… {len(names) - _MOST_CLASSES:,} more", None))
    places, left, top = [], 0, 0
    for text, colour in entries:
        room = round(draw.textlength(text, font)) + (_LINE if colour else 0) + 14
        if left and (left + room > width or text == "mask:"):
            left, top = 0, top + _LINE
        places.append((left, top))
        left += room
    image = Image.new("RGB", (width, top + _LINE), _PAPER)
    draw = ImageDraw.Draw(image)
    for (text, colour), (left, top) in zip(entries, places, strict=True):
        if colour:
            draw.rectangle((left, top + 2, left + 12, top + 14), colour, INK)
        draw.text((left + (_LINE if colour else 0), top + 1), text, INK, font)
    return image


def _name(label: int, names: Sequence[str]) -> str:
    """Return the number and name of a class; only the number if the name is equal or unknown."""
    name = _shown(names[label]) if 0 <= label < len(names) else str(label)
    return name if name == str(label) else f"{label} {name}"


def _shown(text: str) -> str:
    """Return at most 200 characters of a text, with "?" for characters that the font may lack."""
    return "".join(c if c.isprintable() and ord(c) < 0x250 else "?" for c in text)[:200]


def _font() -> Any:
    return ImageFont.load_default(12)
