"""`shardprep build` of every format against a pool around Pillow: python -m benchmarks.formats.

The source is a folder with the same photos in one format, or small grey pictures. Both programs
write 224x224 JPEG of quality 90 in TFRecords with two workers. The whole process is timed, imports
included.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, NamedTuple

from benchmarks import photos
from benchmarks.build import built_from, pooled
from benchmarks.measure import Measure, Row, interleaved
from benchmarks.table import alone

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from PIL import Image


class _Kind(NamedTuple):
    """A folder of images of one kind."""

    measure: Measure
    number: int
    form: str
    """Pillow's name of the format."""
    options: Mapping[str, object] = {}
    """Options of Pillow's encoder."""
    mode: str = "RGB"
    side: int = 0
    """Height and width in pixels; 0 for the size of the photo."""

    def image(self, photo: Image.Image) -> Image.Image:
        """Return a photo as an image of this kind, before it is written."""
        image = photo.convert(self.mode)
        return image.resize((self.side, self.side)) if self.side else image


_KINDS = (
    _Kind(Measure("PNG photos: build / pool around Pillow", ">= 1.9"), 5000, "PNG"),
    _Kind(Measure("WebP photos", ">= 1.8"), 5000, "WEBP"),
    _Kind(Measure("grey PNG of 64x64", ">= 2.2"), 30_000, "PNG", mode="L", side=64),
    _Kind(Measure("PNG photos with transparency"), 3000, "PNG", mode="RGBA"),
    _Kind(Measure("grey JPEG photos"), 5000, "JPEG", {"quality": 90}, "L"),
    _Kind(Measure("TIFF photos"), 5000, "TIFF"),
    _Kind(Measure("TIFF photos, LZW"), 3000, "TIFF", {"compression": "tiff_lzw"}),
    _Kind(Measure("GIF photos"), 3000, "GIF"),
)
MEASURES = tuple(kind.measure for kind in _KINDS)


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return a row for each format."""
    return [
        _row(kind, folder / f"{i}", 20 if quick else kind.number, rounds)
        for i, kind in enumerate(_KINDS)
    ]


def _row(kind: _Kind, folder: Path, number: int, rounds: int) -> Row:
    data = photos.originals_as(kind.image, kind.form, kind.options)
    source = photos.write_folder(folder / "images", number, data=data, links=True)
    cost = interleaved(
        {
            "build": lambda: built_from(folder, source, "--workers", 2),
            "pool": lambda: pooled(folder, source, 2),
        },
        rounds,
    )
    shutil.rmtree(folder)  # the next kind needs its gigabyte
    build, pool = cost["build"], cost["pool"]
    return kind.measure.came_to(
        pool.wall_s / build.wall_s,
        f"{number / build.wall_s:,.0f} / {number / pool.wall_s:,.0f} images/s",
    )


if __name__ == "__main__":
    alone(rows, __doc__)
