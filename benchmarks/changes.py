"""Copies of photos, changed as people change them: the kinds of near copies that are planted."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

if TYPE_CHECKING:
    from collections.abc import Callable

    Draw = np.random.Generator
    Change = Callable[[Image.Image, Draw], Image.Image]


def _cropped(image: Image.Image, draw: Draw) -> Image.Image:
    """Return a random crop of 70% to 95% of the area, with nearly the same aspect ratio."""
    side, aspect = np.sqrt(draw.uniform(0.7, 0.95)), draw.uniform(0.95, 1.05)
    width = min(image.width, round(image.width * side * aspect))
    height = min(image.height, round(image.height * side / aspect))
    left = draw.integers(0, image.width - width + 1)
    top = draw.integers(0, image.height - height + 1)
    return image.crop((left, top, left + width, top + height))


def _bordered(image: Image.Image, draw: Draw) -> Image.Image:
    colour = [(0, 0, 0), (255, 255, 255), tuple(draw.integers(0, 256, 3).tolist())]
    border = int(draw.uniform(0.02, 0.12) * min(image.size))
    return ImageOps.expand(image, border, colour[draw.integers(3)])


def _padded(image: Image.Image, draw: Draw) -> Image.Image:
    width, height = image.size
    size = (max(image.size),) * 2 if width != height else (round(1.25 * height), height)
    return ImageOps.pad(image, size, color=("black", "white")[draw.integers(2)])


def _scaled(image: Image.Image, draw: Draw) -> Image.Image:
    ratio = np.exp(draw.uniform(np.log(0.3), np.log(3)))
    return image.resize([max(1, round(side * ratio)) for side in image.size])


def _marked(image: Image.Image, draw: Draw) -> Image.Image:
    """Put a text on a box of 30% of the width and 10% of the height, in a random corner."""
    made, (width, height) = image.copy(), (int(image.width * 0.3), int(image.height * 0.1))
    left = int(draw.choice([0, image.width - width]))
    top = int(draw.choice([0, image.height - height]))
    paint = ImageDraw.Draw(made, "RGBA")
    box = (left, top, left + width, top + height)
    paint.rectangle(box, fill=(*((0, 0, 0), (255, 255, 255))[draw.integers(2)], 200))
    paint.text((left + 5, top + 5), "stock photo", "maroon", font_size=max(8, height * 0.6))
    return made


def _on_screen(image: Image.Image, draw: Draw) -> Image.Image:
    """Show the photo in a window with a title, three buttons and a status bar."""
    width, height = image.size
    title, status, side = int(height * 0.08), int(height * 0.05), int(width * 0.02)
    colour = ((240, 240, 240), (32, 34, 37))[draw.integers(2)]
    made = Image.new("RGB", (width + 2 * side, height + title + status), colour)
    made.paste(image, (side, title))
    paint, radius = ImageDraw.Draw(made), title / 4
    for i, button in enumerate(("red", "orange", "green")):
        left = side + 2 + 3 * i * radius
        paint.ellipse((left, radius, left + 2 * radius, 3 * radius), button)
    paint.text((width * 0.3, title * 0.2), "photo viewer", "grey", font_size=max(8, title / 2))
    bar = (side, height + title + status * 0.3, width / 2, height + title + status * 0.6)
    paint.rectangle(bar, "steelblue")
    return made


def _kept(image: Image.Image, _: Draw) -> Image.Image:
    return image


CHANGES: dict[str, Change] = {
    "mirrored": lambda image, _: ImageOps.mirror(image),
    "turned by 90°": lambda image, draw: image.rotate(int(draw.choice([90, 270])), expand=True),
    "turned by 180°": lambda image, _: image.rotate(180),
    "cropped to 70–95% of the area": _cropped,
    "cropped and mirrored": lambda image, draw: ImageOps.mirror(_cropped(image, draw)),
    "with a border": _bordered,
    "padded to a square": _padded,
    "brightness ±25%": lambda image, draw: ImageEnhance.Brightness(image).enhance(
        draw.choice([0.75, 1.25])
    ),
    "contrast ±25%": lambda image, draw: ImageEnhance.Contrast(image).enhance(
        draw.choice([0.75, 1.25])
    ),
    "grey": lambda image, _: ImageOps.grayscale(image).convert("RGB"),
    "JPEG of quality 30": _kept,
    "resized by 0.3 to 3": _scaled,
    "with a watermark": _marked,
    "screenshot in a window": _on_screen,
}
"""Kind of near copy → how an image is changed."""


def changed(data: bytes, kind: str, number: int) -> bytes:
    """Return a near copy of a photo as JPEG; `number` is the seed of the change."""
    draw = np.random.default_rng([number, [*CHANGES].index(kind)])
    image = CHANGES[kind](Image.open(io.BytesIO(data)).convert("RGB"), draw)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=30 if kind == "JPEG of quality 30" else 90)
    return out.getvalue()
