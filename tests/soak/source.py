"""The source of a soak: small drawn images and photos, archives in an archive, labels in a CSV.

    soak.zip
        labels.csv     id,label of every image, in an order of its own
        images.zip     small images, not packed: they are read in place
        photos.zip     photos, packed: the archive is unpacked before it is read
        notes.txt      no image

One image in 500 is cut off, and must be rejected. Everything follows from the seed.
"""

import csv
import io
import random
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import simplejpeg

from tests.support.builders import SHARED_DATA

SIDE = 64
"""Height and width of small images and of stored images in pixels."""
CLASSES = tuple(f"class{number:02d}" for number in range(12))
_PHOTOS = SHARED_DATA / "dogs-vs-cats.zip"
_CUT_EVERY = 500
_DRAWN_AT_ONCE = 4096
_DAY = (2026, 1, 1, 0, 0, 0)


class Size(NamedTuple):
    num_images: int
    num_photos: int


def write_source(path: Path, size: Size, seed: int) -> None:
    labels: list[tuple[str, str]] = []
    draw = random.Random(seed)
    with (
        tempfile.TemporaryDirectory(dir=path.parent) as folder,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    ):
        for name, images, method in (
            ("images.zip", _drawn(size.num_images, SIDE, SIDE, seed), zipfile.ZIP_STORED),
            ("photos.zip", _photos(size.num_photos, seed + 1), zipfile.ZIP_DEFLATED),
        ):
            inner = Path(folder) / name
            with zipfile.ZipFile(inner, "w", zipfile.ZIP_STORED) as file:
                for number, data in enumerate(images):
                    stem = f"{name[0]}{number:07d}"
                    is_cut = number % _CUT_EVERY == _CUT_EVERY - 1
                    kept = data[: len(data) * 2 // 3] if is_cut else data
                    member = zipfile.ZipInfo(f"{number % 100:02d}/{stem}.jpg", _DAY)
                    file.writestr(member, kept)
                    labels.append((stem, draw.choice(CLASSES)))
            archive.write(inner, name, method)
        draw.shuffle(labels)
        text = io.StringIO()
        csv.writer(text).writerows([("id", "label"), *labels])
        archive.writestr(zipfile.ZipInfo("labels.csv", _DAY), text.getvalue())
        archive.writestr(zipfile.ZipInfo("notes.txt", _DAY), "no image")


def _drawn(number: int, height: int, width: int, seed: int) -> Iterator[bytes]:
    rng = np.random.default_rng(seed)
    for start in range(0, number, _DRAWN_AT_ONCE):
        shape = (min(_DRAWN_AT_ONCE, number - start), 4, 4, 3)
        for colours in rng.integers(0, 256, shape, np.uint8):
            pixels = colours.repeat(height // 4, 0).repeat(width // 4, 1)
            yield simplejpeg.encode_jpeg(pixels, quality=90, colorspace="RGB")


def _photos(number: int, seed: int) -> Iterator[bytes]:
    """Yield photos with distinct comments, real ones if they exist."""
    found = list(_shared_photos(min(number, 2000)))
    photos = found or list(_drawn(min(number, 100), 360, 404, seed))
    for i in range(number):
        photo, comment = photos[i % len(photos)], f"photo {i}".encode()
        head = b"\xff\xd8\xff\xfe" + (len(comment) + 2).to_bytes(2, "big")
        yield head + comment + photo[2:]


def _shared_photos(most: int) -> Iterator[bytes]:
    if not _PHOTOS.exists():
        return
    with zipfile.ZipFile(_PHOTOS) as archive, archive.open("train.zip") as inner:
        names: Any = zipfile.ZipFile(io.BytesIO(inner.read()))
        with names as photos:
            jpegs = [name for name in photos.namelist() if name.endswith(".jpg")]
            for name in jpegs[:most]:
                yield photos.read(name)
