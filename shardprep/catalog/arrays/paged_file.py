"""Files of several images: TIFF with pages or many bands, DICOM with frames."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image

from shardprep.catalog.arrays.array_file import ArrayFile, Block, ImageColumn, reading
from shardprep.catalog.arrays.layout import CHANNELS, Layout
from shardprep.image.tiff import has_all_pages
from shardprep.source.byte_range import PlainExtent
from shardprep.source.unpack import buffered

_DICOM_HEAD_BYTES = 256 << 10
_PLAIN = (1, 2, 6)
"""PhotometricInterpretation without conversion: grey (0 is black), RGB, decoded YCbCr."""
_PHOTOMETRIC, _ORIENTATION, _ICC_PROFILE = 262, 274, 34675


def open_tiff(place: PlainExtent, name: str) -> ArrayFile | None:
    """Return the pages or bands of a TIFF as one stack; None for one picture or unequal pages.

    SourceError if tifffile is not installed.
    """
    with _pages(place, name) as pages:
        first, kinds = pages[0], {(one.shape, one.dtype) for one in pages}
        shape, dtype = (len(pages), *first.shape), np.dtype(first.dtype)
    is_picture = "S" not in first.axes or first.shape[first.axes.index("S")] in CHANNELS
    if len(kinds) > 1 or (len(pages) == 1 and is_picture):
        return None
    letters = {"Y": "H", "X": "W", "S": "C" if is_picture else "T"}
    layout = Layout("T" + "".join(letters.get(axis, "T") for axis in first.axes))
    if is_picture and not all(map(_is_plain, pages)):
        numbers = [page.index for page in pages]
        return _files(len(pages), lambda _: _page_files(place, name, numbers))

    def blocks(_: int) -> Iterator[Block]:
        with _pages(place, name) as pages:
            yield from (page.asarray()[np.newaxis] for page in pages)

    return ArrayFile({"": ImageColumn(shape, dtype, blocks, layouts=(layout,))})


@contextlib.contextmanager
def _pages(place: PlainExtent, name: str) -> Iterator[list[Any]]:
    """Yield the pages as tifffile objects, except reduced copies and masks."""
    with reading(name), buffered(place) as stream:
        import tifffile  # noqa: PLC0415 - an extra

        if not has_all_pages(stream):
            raise ValueError("it is truncated: its next page is beyond its end")
        try:
            with tifffile.TiffFile(stream) as file:
                yield [one for one in file.pages if not (one.is_reduced or one.is_mask)]
        except tifffile.TiffFileError as error:
            raise ValueError(str(error)) from error


def _is_plain(page: Any) -> bool:
    """Return whether a page needs no conversion of its colours or orientation."""
    orientation, profile = (page.tags.valueof(code) for code in (_ORIENTATION, _ICC_PROFILE))
    return int(page.photometric) in _PLAIN and orientation in (None, 1) and not profile


def _page_files(place: PlainExtent, name: str, numbers: Sequence[int]) -> Iterator[Block]:
    """Yield a block for each page of `numbers`: the page as an encoded TIFF file."""
    with reading(name), buffered(place) as stream, Image.open(stream, formats=("TIFF",)) as image:
        for number in numbers:
            image.seek(number)
            photometric = image.tag_v2.get(_PHOTOMETRIC, 1)  # type: ignore[attr-defined]
            image.load()
            tags = {_PHOTOMETRIC: photometric} if image.mode.startswith(("I", "F")) else {}
            out, profile = io.BytesIO(), image.info.get("icc_profile")
            image.save(out, "TIFF", tiffinfo=tags, icc_profile=profile)
            yield [out.getvalue()]


def open_frames(place: PlainExtent, name: str) -> ArrayFile | None:
    """Return the frames of a DICOM file; None for one frame, SourceError without pydicom."""
    with reading(name):
        from shardprep.image.dicom import frame_files, num_frames  # noqa: PLC0415 - an extra

        number = num_frames(place.read_head(_DICOM_HEAD_BYTES))
    if number < 2:
        return None
    return _files(number, lambda _: ([one] for one in frame_files(place.read(), number)))


def single_image(place: PlainExtent) -> ArrayFile:
    """Return a file as a stack of one image, which is not copied."""
    places = place.file, np.array([place.offset]), np.array([place.num_bytes])
    return ArrayFile({"": ImageColumn((1,), None, layouts=(Layout("T"),), placed=places)})


def _files(number: int, blocks: Callable[[int], Iterator[Block]]) -> ArrayFile:
    return ArrayFile({"": ImageColumn((number,), None, blocks, layouts=(Layout("T"),))})
