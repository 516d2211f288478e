"""Small pictures with the statistics of real ones, and the pictures that data sets derive of them.

A scene has smooth colours, a few objects and little noise. The same seed is the same scene, so that
a mask, a lower resolution or a hazy copy belongs to its image.
"""

import functools
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from tests.support.builders import encoded
from tests.support.dicom import dicom

Size = tuple[int, int]
"""Width and height in pixels."""
Picture = Image.Image
_SIZES = ((64, 48), (72, 54), (96, 72), (60, 80), (80, 60))
_COLOURS = (0, 0, 0, 128, 0, 0, 0, 128, 0, 128, 128, 0, 0, 0, 128)
_NUM_CLASSES = 4
_BLUR = ImageFilter.GaussianBlur(2)


def _rng(seed: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(seed.encode()))


@functools.cache
def _noise(strength: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
    return _rng("noise").normal(0, strength, shape)


def _bytes_of(values: NDArray[Any], noise: float) -> Picture:
    noisy = values + _noise(noise, values.shape)
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


@functools.lru_cache(maxsize=1 << 12)
def scene(seed: str, size: Size | None = None) -> tuple[Picture, Picture]:
    """Return a scene and its objects: number of the object at each pixel, 0 for the background."""
    rng = _rng(seed)
    width, height = size or _SIZES[rng.integers(len(_SIZES))]
    small = Image.fromarray(rng.integers(40, 216, (5, 6, 3), np.uint8))
    image = small.resize((width, height), Image.Resampling.BICUBIC)
    objects = Image.new("L", (width, height))
    for number in range(1, int(rng.integers(2, _NUM_CLASSES + 1)) + 1):
        x, y = rng.uniform(0.05, 0.6, 2) * (width, height)
        right, bottom = np.array((x, y)) + rng.uniform(0.2, 0.4, 2) * (width, height)
        colour, is_round = tuple(rng.integers(0, 256, 3).tolist()), bool(rng.integers(2))
        for on, fill in ((ImageDraw.Draw(image), colour), (ImageDraw.Draw(objects), number)):
            (on.ellipse if is_round else on.rectangle)((x, y, right, bottom), fill=fill)
    smooth = image.filter(ImageFilter.GaussianBlur(0.8))
    return _bytes_of(np.asarray(smooth, np.float64), 3), objects


def _mask(_: Picture, objects: Picture) -> Picture:
    return objects.point(lambda value: 255 * (value > 0))


def _ids(_: Picture, objects: Picture) -> Picture:
    """Return the class of each pixel; the objects of a scene have different classes of four."""
    start = objects.histogram()[1]
    return objects.point(lambda value: value and 1 + (value + start) % _NUM_CLASSES)


def _classes(image: Picture, objects: Picture) -> Picture:
    found = _ids(image, objects)
    found.putpalette(_COLOURS)
    return found


def _colours(image: Picture, objects: Picture) -> Picture:
    return _classes(image, objects).convert("RGB")


def _edges(_: Picture, objects: Picture) -> Picture:
    return _mask(_, objects.filter(ImageFilter.FIND_EDGES))


def _smaller(by: int) -> Callable[[Picture, Picture], Picture]:
    return lambda image, _: image.reduce(by)


def _changed(share: float, other: float, noise: float) -> Callable[[Picture, Picture], Picture]:
    return lambda image, _: _bytes_of(np.asarray(image, np.float64) * share + other, noise)


KINDS: dict[str, Callable[[Picture, Picture], Picture]] = {
    "scene": lambda image, _: image,
    "grey": lambda image, _: image.convert("L"),
    "mask": _mask,
    "ids": _ids,
    "numbers": lambda _, objects: objects,
    "classes": _classes,
    "colours": _colours,
    "trimap": lambda _, objects: objects.point(lambda value: 1 + min(value, 2)),
    "depth": lambda image, _: image.convert("L").filter(_BLUR),
    "deep": lambda image, _: Image.fromarray(np.asarray(image.convert("L"), np.uint16) * 200),
    "half": _smaller(2),
    "third": _smaller(3),
    "quarter": _smaller(4),
    "eighth": _smaller(8),
    "hazy": _changed(0.5, 110, 0),
    "dark": _changed(0.2, 0, 0),
    "dim": _changed(0.3, 20, 0),
    "dull": _changed(0.4, 10, 6),
    "faint": _changed(0.15, 40, 4),
    "gloomy": _changed(0.3, 5, 10),
    "murky": _changed(0.25, 5, 8),
    "noisy": _changed(1, 0, 15),
    "blurred": lambda image, _: image.filter(_BLUR),
    "overlay": lambda image, objects: Image.blend(image, _colours(image, objects), 0.4),
    "outline": lambda image, objects: ImageChops.screen(
        image, _edges(image, objects).convert("RGB")
    ),
    "cut": lambda image, objects: ImageChops.darker(image, _mask(image, objects).convert("RGB")),
    "infrared": lambda image, _: ImageChops.invert(image.getchannel("R")),
}
"""Kind of picture → what makes it of a scene and its objects."""


def picture(kind: str, name: str, seed: str, size: Size | None = None) -> bytes:
    """Return a file in the format of its name; "view" is its scene, a little shifted."""
    image = KINDS["scene" if kind == "view" else kind](*scene(seed, size))
    if kind == "view":
        image = ImageChops.offset(image, *_rng(name).integers(-6, 7, 2).tolist())
    if name.endswith(".dcm"):
        return dicom(np.asarray(image.convert("L"), np.uint16) * 16)
    form = Image.registered_extensions()[f".{name.rpartition('.')[2].lower()}"]
    if form == "JPEG" and image.mode not in ("L", "RGB"):
        image = image.convert("RGB")
    return encoded(image, form, compress_level=0)  # of PNG: small files cost most of the time
