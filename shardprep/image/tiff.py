"""Read a TIFF in bands of rows: whole slides are larger than memory."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from itertools import islice
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, ImageSequence

from shardprep.image.color import deep_levels, eight_bit_pixels
from shardprep.image.resample import Pixels
from shardprep.image.signatures import NotAnImageError
from shardprep.image.spec import ImageSpec

TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_TILE_WIDTH, _ORIENTATION, _ICC_PROFILE = 322, 274, 34675
_MOST_PAGES = 256
"""Maximum number of pages to search for tiles: the first one may be a thumbnail."""
_LIMIT = 100_000
"""Number of pages from which a file is refused."""
_COLOURS = {1: (1,), 2: (3, 4), 6: (3,)}
"""PhotometricInterpretation (grey, RGB, YCbCr) → allowed numbers of channels of a page."""
_TYPES = {("u1", 1), ("u1", 3), ("u1", 4), ("u2", 1)}
"""Allowed pairs of the type and the number of channels of an image."""


def needs_bands(file: BinaryIO, max_pixels: int) -> bool:
    """Return whether a TIFF has a page of tiles or over `max_pixels` pixels; False if broken."""
    try:
        with Image.open(file, formats=("TIFF",)) as image:
            is_large = image.width * image.height > max_pixels
            pages: Any = islice(ImageSequence.Iterator(image), _MOST_PAGES)
            return is_large or any(_TILE_WIDTH in page.tag_v2 for page in pages)
    except Exception:  # decoders raise anything
        return False


def has_all_pages(file: BinaryIO) -> bool:
    """Return whether all pages of a TIFF are within the file.

    ValueError for 100,000 pages or more, and for pages in a circle, which tifffile follows forever.
    """
    head, last = file.read(8), file.seek(0, os.SEEK_END)
    order, is_big = "<" if head.startswith(b"II") else ">", b"+" in head[2:4]
    number, number_bytes, place, tag_bytes = ("Q", 8, "Q", 20) if is_big else ("H", 2, "I", 12)

    def read(form: str, start: int) -> int:
        file.seek(start)
        return int(struct.unpack(order + form, file.read(struct.calcsize(order + form)))[0])

    seen, offset = set[int](), last
    with contextlib.suppress(struct.error):
        offset = read(place, 8 if is_big else 4)
        while 0 < offset < last and offset not in seen and len(seen) < _LIMIT:
            seen.add(offset)
            offset = read(place, offset + number_bytes + read(number, offset) * tag_bytes)
        if offset in seen:
            raise ValueError(f"its page {len(seen)} leads to an earlier one")
    if len(seen) == _LIMIT:
        raise ValueError(f"it has {_LIMIT:,} pages or more")
    file.seek(0)
    return offset == 0


class TiffBands:
    """The largest image of a TIFF, read in bands. Three grey pages of channels are one image."""

    def __init__(self, file: BinaryIO, spec: ImageSpec) -> None:
        """Read the header; NotAnImageError if bands cannot be read, any Exception if broken."""
        try:
            from tifffile import TiffFile  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            what = "a TIFF that must be read in parts: pip install 'shardprep[tiff]'"
            raise NotAnImageError(what) from error
        self._file, self._spec = file, spec
        file.seek(0)
        has_all_pages(file)  # for its errors; missing last pages are accepted
        levels = (series.levels[0] for series in TiffFile(file, _multifile=False).series)
        level = max(levels, key=lambda one: one.keyframe.imagelength * one.keyframe.imagewidth)
        pages: list[Any] = [page.aspage() for page in level.pages if page is not None]
        page, are_channels = pages[0], level.axes.endswith("CYX") or level.ndim == 5
        self._pages = pages if are_channels and len(pages) == 3 else pages[:1]
        self._channels = page.samplesperpixel if len(self._pages) == 1 else 3
        self._dtype, self._profile = page.dtype, page.tags.valueof(_ICC_PROFILE)
        self.size: tuple[int, int] = page.imagelength, page.imagewidth
        rows, columns = page.rowsperstrip, page.imagewidth
        if page.is_tiled:
            rows, columns = page.tilelength, page.tilewidth
        self._segment: tuple[int, int] = rows, columns
        channels = page.samplesperpixel in _COLOURS.get(int(page.photometric), ())
        is_known = channels and (page.dtype.str[1:], self._channels) in _TYPES
        is_scaled = page.dtype == np.uint16 and spec.depth_range == "auto"
        num_parts = self._per_plane, self._per_plane * self._channels
        kind = f"{self._channels} channels of {page.dtype}, {page.photometric.name}"
        faults = {
            kind: not is_known,
            "--depth-range auto needs the whole image, give MIN,MAX": is_scaled,
            "it is turned by its orientation": page.tags.valueof(_ORIENTATION, 1) != 1,
            f"it has parts of {columns}x{rows} pixels": rows * columns > spec.max_pixels,
            "parts of it are missing": len(page.dataoffsets) not in num_parts,
        }
        if reason := next((text for text, is_wrong in faults.items() if is_wrong), ""):
            raise NotAnImageError(f"a TIFF that cannot be read in parts: {reason}")

    @property
    def _per_plane(self) -> int:
        (height, width), (rows, columns) = self.size, self._segment
        return -(-height // rows) * -(-width // columns)

    def rows(self, top: int, height: int) -> Pixels:
        """Return the rows from `top` on, uint8[height, width, 3 or 1]; any Exception if broken."""
        band = np.zeros((height, self.size[1], self._channels), self._dtype)
        for plane, page in enumerate(self._pages):
            for index in self._segments(page, top, top + height):
                self._file.seek(page.dataoffsets[index])
                data = self._file.read(page.databytecounts[index])
                pixels, (sample, _, row, column, _), _ = page.decode(
                    data or None, index, jpegtables=page.jpegtables
                )
                if pixels is None:  # a part that is left out is black
                    continue
                first, last = max(top, row), min(top + height, row + pixels.shape[1])
                part = pixels[0, first - row : last - row, : self.size[1] - column]
                channel = plane + sample
                band[
                    first - top : last - top,
                    column : column + part.shape[1],
                    channel : channel + part.shape[2],
                ] = part
        image = Image.fromarray(band[..., 0] if self._channels == 1 else band)
        image.info["icc_profile"] = self._profile
        levels = deep_levels(image, self._spec.depth_range)
        return eight_bit_pixels(image, self._spec, levels)

    def _segments(self, page: Any, top: int, bottom: int) -> Iterator[int]:
        rows, columns = self._segment
        in_row = -(-self.size[1] // columns)
        for start in range(0, len(page.dataoffsets), self._per_plane):
            last = -(-bottom // rows)
            yield from range(start + top // rows * in_row, start + last * in_row)
