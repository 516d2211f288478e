"""A source of images with every fault that a report tells, each under a key that says which."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.support.builders import build, encoded, pixels, write, zip_bytes

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

SIDE = 96
"""Height and width of the images in pixels."""


@functools.lru_cache(maxsize=512)  # about 15 MB; many tests draw the same
def photo(seed: int, height: int = SIDE, width: int = SIDE) -> Pixels:
    """Return colours with detail at every scale, as in a photograph; read-only."""
    rng = np.random.default_rng(seed)
    found = np.full((height, width, 3), 128.0)
    for cells, strength in ((3, 40), (6, 35), (12, 25), (24, 12)):
        field = rng.normal(0, 1, (cells, cells, 3)) + rng.normal(0, 1, (cells, cells, 1))
        for i in range(3):
            plane = Image.fromarray(field[..., i].astype(np.float32))
            plane = plane.resize((width, height), Image.Resampling.BICUBIC)
            found[..., i] += strength * np.asarray(plane)
    found += rng.normal(0, 8, (height, width, 1))
    photograph: Pixels = np.clip(found, 0, 255).astype(np.uint8)
    photograph.flags.writeable = False
    return photograph


def file(image: Pixels, form: str = "JPEG", **options: Any) -> bytes:
    return encoded(Image.fromarray(image), form, **options)


def resized(image: Pixels, side: int) -> Pixels:
    return np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC))


def planted() -> dict[str, bytes]:
    """Return the files by key; train has 16 sound images of each class, validation 8."""
    found: dict[str, bytes] = {}
    for i in range(32):
        found[f"train/{('cat', 'dog')[i % 2]}/{i:02d}.jpg"] = file(photo(i), quality=92)
    for i in range(16):
        found[f"validation/{('cat', 'dog')[i % 2]}/v{i:02d}.jpg"] = file(photo(100 + i), quality=92)
    found["validation/cat/leak.jpg"] = found["train/cat/00.jpg"]
    found["validation/dog/near-leak.jpg"] = file(photo(1), quality=40)
    found["train/dog/conflict.jpg"] = found["train/cat/02.jpg"]
    found["train/cat/again.jpg"] = found["train/cat/04.jpg"]
    found["train/cat/nearly.png"] = file(resized(photo(6), 140), "PNG")
    found["train/cat/dark.jpg"] = file(photo(201) // 8, quality=95)
    found["train/cat/light.jpg"] = file(255 - photo(202) // 40, quality=95)
    found["train/dog/flat.png"] = file(np.full((SIDE, SIDE, 3), (90, 140, 60), np.uint8), "PNG")
    found["train/dog/blurry.jpg"] = file(pixels(SIDE, SIDE, 203), quality=95)
    grey = photo(204)[..., :1].repeat(3, axis=2)
    found["train/dog/grey.png"] = file(grey, "PNG")
    found["train/dog/long.jpg"] = file(photo(205, 70, 300), quality=95)
    found["train/dog/small.png"] = file(photo(206, 40, 40), "PNG")
    found["train/dog/broken.jpg"] = b"\xff\xd8\xff\xe0 no more than a beginning"
    return found


def planted_set(folder: Path, **keys: Any) -> Path:
    source = write(folder / "planted.zip", zip_bytes(planted()))
    keys.setdefault("size", "64x64")
    return build(source, folder / "tfrecords", labels="folder", max_rejected=0.5, **keys).path
