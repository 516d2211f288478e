"""The archive of `shardprep.sample`: drawn images in the layout of a Kaggle competition.

The same version of Pillow gives the same bytes.
"""

from __future__ import annotations

import colorsys
import io
import math
import random
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import ExifTags, Image, ImageDraw

from shardprep.errors import SourceError
from shardprep.recipe.document import RECIPE_FILE, key_lines
from shardprep.storage.atomic_file import write_durably

Colour = tuple[int, int, int]
Pair = tuple[float, float]

ARCHIVE_NAME = "shapes.zip"

# Class → number of corners. A circle is drawn as a polygon with many corners.
CORNERS = {"circle": 72, "square": 4, "triangle": 3}

# Unusual train image → its kind. The numbers are low, so that an archive of 40 images has all.
ODD_IMAGES = {
    "train/triangle.2.jpg": "truncated",
    "train/square.4.jpg": "png",
    "train/circle.5.jpg": "cmyk",
    "train/triangle.7.jpg": "sideways",
}
JUNK = {
    "__MACOSX/train/._circle.0.jpg": b"\0\5\x16\7\0\2\0\0Mac OS X        ".ljust(120, b"\0"),
    "train/Thumbs.db": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1".ljust(512, b"\0"),
}
NUM_IMAGES = 600
SUPERSAMPLE = 3

RECIPE = {
    "source": ARCHIVE_NAME,
    "size": "64x64",
    "labels": "prefix",
    "split": "train=0.8,validation=0.2",
    "seed": 0,
}


def write_sample(directory: Path) -> Path:
    """Write the archive and its recipe into `directory`; return the path of the archive.

    Existing files with the same bytes are kept. SourceError, and nothing is written, if a file has
    other bytes (for example from another version of Pillow), or a write fails.
    """
    archive = directory / ARCHIVE_NAME
    recipe = "\n\n".join("\n".join(key_lines(key, value)) for key, value in RECIPE.items()) + "\n"
    try:
        directory.mkdir(parents=True, exist_ok=True)  # fail before the images are drawn
        files = {archive: _archive(), directory / RECIPE_FILE: recipe.encode()}
        for path, content in files.items():
            if path.exists() and path.read_bytes() != content:
                hint = "move it away or name another folder"
                raise SourceError(str(path), "already exists with other contents", hint)
        for path, content in files.items():
            if not path.exists():
                write_durably(path, content)
    except OSError as error:
        hint = "name a folder that can be written to"
        what = "is a file" if directory.is_file() else error.strerror or str(error)
        raise SourceError(str(directory), what, hint) from error
    return archive


def draw_shape(shape: str, rng: random.Random) -> Image.Image:
    """Return a random image of a shape in `CORNERS`, with sides of 96 to 160 pixels.

    The corners are inside the central square, so that a crop keeps the whole shape. Shapes are only
    tilted and backdrops are light, so that a model learns from few images.
    """
    size = (rng.randint(96, 160) * SUPERSAMPLE, rng.randint(96, 160) * SUPERSAMPLE)
    paints = [_colour((0.28, 0.48), rng) for _ in range(3)]
    backdrop = [_colour((0.74, 0.94), rng) for _ in range(2)]
    image = _two_tone(_spread(Image.linear_gradient("L"), size, rng), *backdrop)
    _scatter(image, rng.randint(4, 9), paints, rng)
    _stamp(image, _polygon(CORNERS[shape], size, rng), paints, rng)
    _scatter(image, rng.randint(0, 2), paints, rng)
    image = image.reduce(SUPERSAMPLE)
    grain = Image.frombytes("L", image.size, rng.randbytes(image.width * image.height))
    return Image.blend(image, grain.convert("RGB"), rng.uniform(0.0, 0.12))


def _colour(lightness: Pair, rng: random.Random) -> Colour:
    hls = rng.random(), rng.uniform(*lightness), rng.uniform(0.45, 0.90)
    red, green, blue = colorsys.hls_to_rgb(*hls)
    return round(255 * red), round(255 * green), round(255 * blue)


def _two_tone(tile: Image.Image, black: Colour, white: Colour) -> Image.Image:
    image = Image.new("RGB", tile.size, black)
    image.paste(white, mask=tile)
    return image


def _spread(tile: Image.Image, size: tuple[int, int], rng: random.Random) -> Image.Image:
    """Rotate a square tile randomly, and stretch its inner square, without corners, to `size`."""
    margin = tile.width * (1 - math.sqrt(0.5)) / 2
    inner = (margin, margin, tile.width - margin, tile.width - margin)
    turned = tile.rotate(rng.uniform(0, 360), Image.Resampling.BILINEAR)
    return turned.resize(size, Image.Resampling.BILINEAR, box=inner)


def _polygon(num_corners: int, size: tuple[int, int], rng: random.Random) -> list[Pair]:
    """Return the corners of a tilted regular polygon, whose area does not depend on the class."""
    unit = min(size)
    unit_area = num_corners / 2 * math.sin(2 * math.pi / num_corners)
    radius = unit * rng.uniform(0.36, 0.54) / math.sqrt(unit_area)
    slack = unit / 2 - radius
    x, y = (side / 2 + rng.uniform(-slack, slack) for side in size)
    tilt = math.radians(rng.uniform(-20, 20))
    step = 2 * math.pi / num_corners
    angles = [math.pi / 2 + tilt + step * (corner + 0.5) for corner in range(num_corners)]
    return [(x + radius * math.cos(angle), y + radius * math.sin(angle)) for angle in angles]


def _stamp(
    image: Image.Image, polygon: list[Pair], paints: list[Colour], rng: random.Random
) -> None:
    fill, outline, _ = paints
    red, green, blue = ((3 * channel + 255) // 4 for channel in fill)
    texture = _two_tone(_spread(_texture(rng), image.size, rng), fill, (red, green, blue))
    mask = Image.new("L", image.size)
    ImageDraw.Draw(mask).polygon(polygon, fill=255)
    image.paste(texture, mask=mask)
    if rng.choice((True, False)):
        width = round(min(image.size) * rng.uniform(0.015, 0.035))
        closed = [*polygon, *polygon[:2]]
        ImageDraw.Draw(image).line(closed, fill=outline, width=width, joint="curve")


def _texture(rng: random.Random) -> Image.Image:
    side = rng.randint(8, 14)
    cells = [(row, column) for row in range(side) for column in range(side)]
    patterns = (
        [False for _ in cells],
        [column % 2 == 0 for _, column in cells],
        [(row + column) % 2 == 0 for row, column in cells],
        [rng.choice((True, False, False)) for _ in cells],
    )
    tile = Image.frombytes("L", (side, side), bytes(255 * cell for cell in rng.choice(patterns)))
    return tile.resize((256, 256), Image.Resampling.NEAREST)


def _scatter(image: Image.Image, count: int, paints: list[Colour], rng: random.Random) -> None:
    draw = ImageDraw.Draw(image)
    unit = min(image.size)
    for _ in range(count):
        x, y = rng.uniform(0, image.width), rng.uniform(0, image.height)
        paint = rng.choice(paints)
        lengths = rng.choice(((0.6, 1.4), (0.06, 0.16), None))
        if lengths is None:
            draw.circle((x, y), unit * rng.uniform(0.012, 0.028), fill=paint)
            continue
        length, angle = unit * rng.uniform(*lengths), rng.uniform(0, 2 * math.pi)
        end = (x + length * math.cos(angle), y + length * math.sin(angle))
        draw.line([(x, y), end], fill=paint, width=round(unit * rng.uniform(0.010, 0.025)))


def _encoded(image: Image.Image, oddity: str | None, rng: random.Random) -> bytes:
    buffer = io.BytesIO()
    options: dict[str, Any] = {"quality": rng.randint(85, 90)}
    if oddity == "cmyk":
        image = image.convert("CMYK")
    elif oddity == "sideways":
        # Viewers turn orientation 6 clockwise by 90°, which reverts this rotation.
        image = image.transpose(Image.Transpose.ROTATE_90)
        options["exif"] = Image.Exif()
        options["exif"][ExifTags.Base.Orientation] = 6
    image.save(buffer, "PNG" if oddity == "png" else "JPEG", **options)
    content = buffer.getvalue()
    return content[: len(content) // 2] if oddity == "truncated" else content


def _archive() -> bytes:
    per_class = NUM_IMAGES * 85 // 100 // len(CORNERS)
    train = {f"train/{shape}.{n}.jpg": shape for n in range(per_class) for shape in CORNERS}
    numbers = range(1, NUM_IMAGES - len(train) + 1)
    rows = "".join(f"{number},0\n" for number in numbers)
    members = {
        "train.zip": _zipped({**JUNK, **_drawn(train)}),
        "test.zip": _zipped(_drawn({f"test/{number}.jpg": "" for number in numbers})),
        "sampleSubmission.csv": f"id,label\n{rows}".encode(),
    }
    return _zipped(members)


def _drawn(shapes: Mapping[str, str]) -> dict[str, bytes]:
    """Return an encoded image for each name in `shapes`; the shape "" means a random shape.

    Each image has its own random generator, so it does not depend on the size of the archive.
    """
    members = {}
    for name, shape in shapes.items():
        rng = random.Random(f"0/{name}")
        image = draw_shape(shape or rng.choice(list(CORNERS)), rng)
        members[name] = _encoded(image, ODD_IMAGES.get(name), rng)
    return members


def _zipped(members: Mapping[str, bytes]) -> bytes:
    """Return a zip whose bytes do not depend on the time or the operating system."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name, date_time=(2013, 9, 25, 12, 0, 0))
            info.create_system = 3
            info.external_attr = 0o100644 << 16
            archive.writestr(info, content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
