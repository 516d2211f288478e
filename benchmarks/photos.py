"""Images to measure: real photographs if they are available, otherwise drawn ones; tiny images."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SHARED = Path(__file__).parents[2] / "shared" / "data"
_ARCHIVE = SHARED / "dogs-vs-cats.zip"


def originals() -> list[bytes]:
    """Return about 1,800 JPEG files of about 405x361 pixels and 25 to 45 KB, or 300 drawn ones."""
    if not _ARCHIVE.is_file():
        return [_drawn(seed) for seed in range(300)]
    with zipfile.ZipFile(_ARCHIVE) as outer:
        inner = zipfile.ZipFile(io.BytesIO(outer.read("train.zip")))
        return [inner.read(name) for name in inner.namelist() if name.endswith(".jpg")]


def originals_as(
    image: Callable[[Image.Image], Image.Image], form: str, options: Mapping[str, object]
) -> list[bytes]:
    """Return the originals, changed by `image`, as files of the format `form` of Pillow."""
    found = []
    for data in originals():
        out = io.BytesIO()
        image(Image.open(io.BytesIO(data))).save(out, form, **options)
        found.append(out.getvalue())
    return found


def write_folder(
    folder: Path, number: int, *, data: Sequence[bytes] = (), links: bool = False
) -> Path:
    """Write `number` images into the folders `cat` and `dog` of `folder`, and return `folder`.

    The images are `data`, photos by default, and repeat if there are fewer. All names end in .jpg,
    whatever the format is. With `links`, repeated images are hard links, which need no space on the
    disk or in the page cache.
    """
    data = data or originals()
    written: list[Path] = []
    for i in range(number):
        path = folder / ("cat", "dog")[i % 2] / f"{i:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if links and i >= len(data):
            os.link(written[i % len(data)], path)
        else:
            path.write_bytes(data[i % len(data)])
            written.append(path)
    return folder


def write_tiny_zip(path: Path, members: int) -> Path:
    """Write a zip of `members` equal PNG files of one pixel, stored, and their `labels.csv`."""
    pixel = io.BytesIO()
    Image.new("RGB", (1, 1)).save(pixel, "PNG")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for i in range(members):
            archive.writestr(f"images/{i % 1000:03d}/{i:07d}.png", pixel.getvalue())
        rows = "".join(f"{i:07d},class_{i * 7919 % 100}\n" for i in range(members))
        archive.writestr("labels.csv", "id,label\n" + rows)
    return path


def write_large_folder(folder: Path, number: int) -> Path:
    """Write `number` photos of 12 megapixels, enlarged from the originals."""
    folder.mkdir(parents=True)
    data = originals()
    for i in range(number):
        image = Image.open(io.BytesIO(data[i % len(data)])).convert("RGB")
        image = image.resize((4000, 3000), Image.Resampling.BICUBIC)
        image.save(folder / f"{i:04d}.jpg", quality=90)
    return folder


def _drawn(seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (12, 14, 3), np.uint8)).resize((405, 361))
    noise = rng.normal(0, 14, (361, 405, 3))
    pixels = np.clip(np.asarray(coarse) + noise, 0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=90)
    return out.getvalue()
