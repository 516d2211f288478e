"""TIFF files of several pages or of many bands, and DICOM files of several frames."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from shardprep.catalog.arrays.array_file import ArrayFile, Block, ImageColumn, reading
from shardprep.catalog.arrays.layout import CHANNELS, Layout
from shardprep.source.byte_range import PlainExtent
from shardprep.source.unpack import buffered

_DICOM_HEAD_BYTES = 256 << 10


def open_tiff(place: PlainExtent, name: str) -> ArrayFile | None:
    """Return the pages or bands of a TIFF as one stack; None for one picture.

    SourceError without tifffile.
    """
    with _pages(place, name) as pages:
        first, kinds = pages[0], {(one.shape, one.dtype) for one in pages}
        shape, dtype = (len(pages), *first.shape), np.dtype(first.dtype)
    is_picture = "S" not in first.axes or first.shape[first.axes.index("S")] in CHANNELS
    if len(kinds) > 1 or (len(pages) == 1 and is_picture):
        return None
    letters = {"Y": "H", "X": "W", "S": "C" if is_picture else "T"}
    layout = Layout("T" + "".join(letters.get(axis, "T") for axis in first.axes))

    def blocks(_: int) -> Iterator[Block]:
        with _pages(place, name) as pages:
            yield from (page.asarray()[np.newaxis] for page in pages)

    return ArrayFile({"": ImageColumn(shape, dtype, blocks, layouts=(layout,))}, {}, lambda _: [])


@contextlib.contextmanager
def _pages(place: PlainExtent, name: str) -> Iterator[list[Any]]:
    """Return tifffile's pages in full size."""
    with reading(name), buffered(place) as stream:
        import tifffile  # noqa: PLC0415 - an extra

        try:
            with tifffile.TiffFile(stream) as file:
                yield [one for one in file.pages if not (one.is_reduced or one.is_mask)]
        except tifffile.TiffFileError as error:
            raise ValueError(str(error)) from error


def open_frames(place: PlainExtent, name: str) -> ArrayFile | None:
    """Return the frames of a DICOM file as files; None for one. SourceError without pydicom."""
    with reading(name):
        from shardprep.image.dicom import frame_files, num_frames  # noqa: PLC0415 - an extra

        number = num_frames(place.read_head(_DICOM_HEAD_BYTES))
    files = (number,), lambda _: ([one] for one in frame_files(place.read(), number))
    return _files(*files) if number > 1 else None


def single_image(place: PlainExtent) -> ArrayFile:
    """Return a file as a stack of one image, which needs no copy."""
    places = place.file, np.array([place.offset]), np.array([place.num_bytes])
    return _files((1,), lambda _: iter(()), placed=places)


def _files(shape: tuple[int], blocks: Callable[[int], Iterator[Block]], **more: Any) -> ArrayFile:
    column = ImageColumn(shape, None, blocks, layouts=(Layout("T"),), **more)
    return ArrayFile({"": column}, {}, lambda _: [])
