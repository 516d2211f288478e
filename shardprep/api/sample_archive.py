"""Draw a small archive shaped like Kaggle's, to try everything on.

No network, no clock: the same seed draws the same archive.
"""

from __future__ import annotations

import colorsys
import io
import math
import random
import zipfile
from typing import TYPE_CHECKING, Any

from PIL import ExifTags, Image, ImageDraw

from shardprep.errors import SourceError
from shardprep.recipe.document import RECIPE_FILE, key_lines
from shardprep.storage.atomic_file import write_durably

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Colour = tuple[int, int, int]
Pair = tuple[float, float]

ARCHIVE_NAME = "shapes.zip"

# A class is a number of corners and nothing else; a circle has too many of them to see one.
CORNERS = {"circle": 72, "square": 4, "triangle": 3}

# The train images that are odd, and how. Their numbers are low: the smallest archive has them too.
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
MIN_IMAGES = 40
TRAIN_PERCENT = 85

SIDE_PX = (96, 160)
JPEG_QUALITY = (85, 90)
SUPERSAMPLE = 3

# What makes it hard to learn. Full turns or dark backdrops would ask for many more images.
MAX_TILT_DEGREES = 20
BACKDROP_LIGHTNESS = (0.74, 0.94)
PAINT_LIGHTNESS = (0.28, 0.48)
SATURATION = (0.45, 0.90)
NUM_BEHIND = (4, 9)
NUM_IN_FRONT = (0, 2)
GRAIN = (0.0, 0.12)

# Lengths are fractions of the image's shorter side.
SHAPE_SIZE = (0.36, 0.54)
OUTLINE_WIDTH = (0.015, 0.035)
LINE_LENGTH = (0.6, 1.4)
STROKE_LENGTH = (0.06, 0.16)
CLUTTER_WIDTH = (0.010, 0.025)
DOT_RADIUS = (0.012, 0.028)

RECIPE = {
    "source": ARCHIVE_NAME,
    "size": "64x64",
    "labels": "prefix",
    "split": "train=0.8,validation=0.2",
    "seed": 0,
}


def write_sample(directory: Path, *, num_images: int = 600, seed: int = 0) -> Path:
    """Write the archive and its recipe into `directory`; return the path of the archive.

    A file that already holds these very bytes is left alone. One that holds others, as those of
    another seed or Pillow do, is an error, and then nothing at all is written.
    """
    if num_images < MIN_IMAGES:
        what = f"{num_images} images are too few"
        raise SourceError("sample", what, f"ask for at least {MIN_IMAGES}")
    archive = directory / ARCHIVE_NAME
    recipe = "\n\n".join("\n".join(key_lines(key, value)) for key, value in RECIPE.items()) + "\n"
    try:
        directory.mkdir(parents=True, exist_ok=True)  # before the drawing, which takes seconds
        files = {archive: _archive(num_images, seed), directory / RECIPE_FILE: recipe.encode()}
        for path, content in files.items():
            if path.exists() and path.read_bytes() != content:
                hint = "move it away or name another folder"
                raise SourceError(str(path), "already exists with other contents", hint)
        for path, content in files.items():
            if not path.exists():
                write_durably(path, content)
    except OSError as error:
        hint = "name a folder that can be written to"
        raise SourceError(str(directory), error.strerror or str(error), hint) from error
    return archive


def draw_shape(shape: str, rng: random.Random) -> Image.Image:
    """Draw one image of a shape named in CORNERS; all that is not its class is left to `rng`.

    Its corners lie within the centre square, so that a crop to that square keeps the class.
    """
    size = (rng.randint(*SIDE_PX) * SUPERSAMPLE, rng.randint(*SIDE_PX) * SUPERSAMPLE)
    paints = [_colour(PAINT_LIGHTNESS, rng) for _ in range(3)]
    backdrop = [_colour(BACKDROP_LIGHTNESS, rng) for _ in range(2)]
    image = _two_tone(_spread(Image.linear_gradient("L"), size, rng), *backdrop)
    _scatter(image, rng.randint(*NUM_BEHIND), paints, rng)
    _stamp(image, _polygon(CORNERS[shape], size, rng), paints, rng)
    _scatter(image, rng.randint(*NUM_IN_FRONT), paints, rng)
    image = image.reduce(SUPERSAMPLE)
    grain = Image.frombytes("L", image.size, rng.randbytes(image.width * image.height))
    return Image.blend(image, grain.convert("RGB"), rng.uniform(*GRAIN))


def _colour(lightness: Pair, rng: random.Random) -> Colour:
    hls = rng.random(), rng.uniform(*lightness), rng.uniform(*SATURATION)
    red, green, blue = colorsys.hls_to_rgb(*hls)
    return round(255 * red), round(255 * green), round(255 * blue)


def _two_tone(tile: Image.Image, black: Colour, white: Colour) -> Image.Image:
    """Colour a grey tile: its black becomes one colour, its white the other."""
    image = Image.new("RGB", tile.size, black)
    image.paste(white, mask=tile)
    return image


def _spread(tile: Image.Image, size: tuple[int, int], rng: random.Random) -> Image.Image:
    """Turn a square tile by any angle and stretch the part without empty corners over `size`."""
    margin = tile.width * (1 - math.sqrt(0.5)) / 2
    inner = (margin, margin, tile.width - margin, tile.width - margin)
    turned = tile.rotate(rng.uniform(0, 360), Image.Resampling.BILINEAR)
    return turned.resize(size, Image.Resampling.BILINEAR, box=inner)


def _polygon(num_corners: int, size: tuple[int, int], rng: random.Random) -> list[Pair]:
    """Place a regular polygon on its base; areas are drawn alike, so that they tell no class."""
    unit = min(size)
    unit_area = num_corners / 2 * math.sin(2 * math.pi / num_corners)
    radius = unit * rng.uniform(*SHAPE_SIZE) / math.sqrt(unit_area)
    slack = unit / 2 - radius
    x, y = (side / 2 + rng.uniform(-slack, slack) for side in size)
    tilt = math.radians(rng.uniform(-MAX_TILT_DEGREES, MAX_TILT_DEGREES))
    step = 2 * math.pi / num_corners
    angles = [math.pi / 2 + tilt + step * (corner + 0.5) for corner in range(num_corners)]
    return [(x + radius * math.cos(angle), y + radius * math.sin(angle)) for angle in angles]


def _stamp(
    image: Image.Image, polygon: list[Pair], paints: list[Colour], rng: random.Random
) -> None:
    """Fill the polygon with a texture; about half of them get an outline."""
    fill, outline, _ = paints
    red, green, blue = ((3 * channel + 255) // 4 for channel in fill)
    texture = _two_tone(_spread(_texture(rng), image.size, rng), fill, (red, green, blue))
    mask = Image.new("L", image.size)
    ImageDraw.Draw(mask).polygon(polygon, fill=255)
    image.paste(texture, mask=mask)
    if rng.choice((True, False)):
        width = round(min(image.size) * rng.uniform(*OUTLINE_WIDTH))
        closed = [*polygon, *polygon[:2]]
        ImageDraw.Draw(image).line(closed, fill=outline, width=width, joint="curve")


def _texture(rng: random.Random) -> Image.Image:
    """Make a black and white tile: plain, stripes, checks or speckle."""
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
    """Scatter lines, short strokes and dots: things to see that say nothing about the class."""
    draw = ImageDraw.Draw(image)
    unit = min(image.size)
    for _ in range(count):
        x, y = rng.uniform(0, image.width), rng.uniform(0, image.height)
        paint = rng.choice(paints)
        lengths = rng.choice((LINE_LENGTH, STROKE_LENGTH, None))
        if lengths is None:
            draw.circle((x, y), unit * rng.uniform(*DOT_RADIUS), fill=paint)
            continue
        length, angle = unit * rng.uniform(*lengths), rng.uniform(0, 2 * math.pi)
        end = (x + length * math.cos(angle), y + length * math.sin(angle))
        draw.line([(x, y), end], fill=paint, width=round(unit * rng.uniform(*CLUTTER_WIDTH)))


def _encoded(image: Image.Image, oddity: str | None, rng: random.Random) -> bytes:
    """Encode as JPEG, or as the odd thing that carries a JPEG's name."""
    buffer = io.BytesIO()
    options: dict[str, Any] = {"quality": rng.randint(*JPEG_QUALITY)}
    if oddity == "cmyk":
        image = image.convert("CMYK")
    elif oddity == "sideways":
        # 6 asks the viewer for a quarter turn clockwise, which undoes this one.
        image = image.transpose(Image.Transpose.ROTATE_90)
        options["exif"] = Image.Exif()
        options["exif"][ExifTags.Base.Orientation] = 6
    image.save(buffer, "PNG" if oddity == "png" else "JPEG", **options)
    content = buffer.getvalue()
    return content[: len(content) // 2] if oddity == "truncated" else content


def _archive(num_images: int, seed: int) -> bytes:
    per_class = num_images * TRAIN_PERCENT // 100 // len(CORNERS)
    train = {f"train/{shape}.{n}.jpg": shape for n in range(per_class) for shape in CORNERS}
    numbers = range(1, num_images - len(train) + 1)
    rows = "".join(f"{number},0\n" for number in numbers)
    members = {
        "train.zip": _zipped({**JUNK, **_drawn(train, seed)}),
        "test.zip": _zipped(_drawn({f"test/{number}.jpg": "" for number in numbers}, seed)),
        "sampleSubmission.csv": f"id,label\n{rows}".encode(),
    }
    return _zipped(members)


def _drawn(shapes: Mapping[str, str], seed: int) -> dict[str, bytes]:
    """Draw an image for each name, any shape for "".

    Each has a generator of its own: it looks the same in a small archive and in a large one.
    """
    members = {}
    for name, shape in shapes.items():
        rng = random.Random(f"{seed}/{name}")
        image = draw_shape(shape or rng.choice(list(CORNERS)), rng)
        members[name] = _encoded(image, ODD_IMAGES.get(name), rng)
    return members


def _zipped(members: Mapping[str, bytes]) -> bytes:
    """Zip the members so that neither the clock nor the operating system shows in the bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name, date_time=(2013, 9, 25, 12, 0, 0))
            info.create_system = 3
            info.external_attr = 0o100644 << 16
            archive.writestr(info, content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
