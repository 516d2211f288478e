"""Read a TIFF in bands of rows: whole slides are larger than memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from shardprep.image.color import eight_bit_pixels, srgb_transform
from shardprep.image.process import words_of
from shardprep.image.resample import Pixels
from shardprep.image.signatures import NotAnImageError
from shardprep.image.spec import ImageSpec

TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_TILE_WIDTH, _ORIENTATION, _ICC_PROFILE = 322, 274, 34675
_COLOURS = {1: (1,), 2: (3, 4), 6: (3,)}
"""PhotometricInterpretation (grey, RGB, YCbCr) → numbers of channels."""


def needs_bands(file: BinaryIO, max_pixels: int) -> bool:
    """Return whether a file is a TIFF of tiles, or one with more than `max_pixels` pixels."""
    try:
        with Image.open(file, formats=("TIFF",)) as image:
            is_large = image.width * image.height > max_pixels
            return is_large or _TILE_WIDTH in image.tag_v2  # type: ignore[attr-defined]
    except Exception:  # decoders raise anything
        return False


class TiffBands:
    """The largest image of a TIFF. Three grey pages that are channels are one image."""

    def __init__(self, file: BinaryIO, spec: ImageSpec) -> None:
        """Read the header; NotAnImageError with the reason if the pixels cannot be read."""
        try:
            from tifffile import TiffFile  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            what = "a TIFF that is read in parts: pip install 'shardprep[tiff]'"
            raise NotAnImageError(what) from error
        self._file, self._spec = file, spec
        file.seek(0)
        with _decoding():
            level = TiffFile(file).series[0].levels[0]
            pages = [page.aspage() for page in level.pages if page is not None]
        are_channels = len(pages) == 3 and (level.axes.endswith("CYX") or level.ndim == 5)
        self._pages: list[Any] = pages if are_channels else pages[:1]
        page: Any = pages[0]
        self.size: tuple[int, int] = page.imagelength, page.imagewidth
        rows = (
            (page.tilelength, page.tilewidth)
            if page.is_tiled
            else (page.rowsperstrip, self.size[1])
        )
        self._segment: tuple[int, int] = rows
        channels, colours = page.samplesperpixel, _COLOURS.get(int(page.photometric), ())
        self._channels = len(pages) if are_channels else channels
        self._dtype = page.dtype
        self._profile = page.tags.valueof(_ICC_PROFILE)
        reason = ""
        if channels not in colours or page.dtype not in (np.uint8, np.uint16):
            reason = f"{channels} channels of {page.dtype}, {page.photometric.name}"
        elif page.dtype == np.uint16 and (self._channels > 1 or spec.depth_range == "auto"):
            reason = "16 bits: only grey is read in parts, and not with --depth-range auto"
        elif page.tags.valueof(_ORIENTATION, 1) != 1 or page.imagedepth > 1:
            reason = "it is turned or has depth"
        elif rows[0] * rows[1] > spec.max_pixels:
            reason = (
                f"its segments have {rows[1]}x{rows[0]} pixels, --max-pixels {spec.max_pixels:,}"
            )
        if reason:
            raise NotAnImageError(f"a TIFF that cannot be read in parts: {reason}")

    def rows(self, top: int, height: int) -> Pixels:
        """Return rows of the image, uint8[height, width, 3], or [height, width, 1] for grey."""
        band = np.zeros((height, self.size[1], self._channels), self._dtype)
        for plane, page in enumerate(self._pages):
            for index in self._segments(page, top, top + height):
                self._file.seek(page.dataoffsets[index])
                data = self._file.read(page.databytecounts[index])
                with _decoding():
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
        return eight_bit_pixels(image, self._spec, srgb_transform(image))

    def _segments(self, page: Any, top: int, bottom: int) -> Iterator[int]:
        (height, width), (full_height, full_width) = self._segment, self.size
        per_row = -(-full_width // width)
        per_plane = per_row * -(-full_height // height)
        for plane in range(len(page.dataoffsets) // per_plane):
            start = plane * per_plane
            yield from range(
                start + top // height * per_row, start + -(-bottom // height) * per_row
            )


@contextmanager
def _decoding() -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # decoders raise anything
        raise NotAnImageError(words_of(error)) from error
