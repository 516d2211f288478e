"""TIFF files of several pages or many bands, and DICOM files of several frames.

Pages and frames are not decoded here. Each becomes a file of one image, which a worker decodes.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from shardprep.catalog.arrays.array_file import ArrayFile, Block, ImageColumn, reading
from shardprep.catalog.arrays.layout import Layout
from shardprep.errors import SourceError
from shardprep.image.signatures import HEAD_BYTES, is_dicom
from shardprep.source.byte_range import PlainExtent
from shardprep.source.unpack import buffered

_DICOM_HEAD_BYTES = 256 << 10
_MOST_PAGES = 65_535
_MOST_BANDS = 4
"""Maximum number of bands of a picture."""
_SUBFILE, _WIDTH, _HEIGHT, _BANDS = 254, 256, 257, 277
_REDUCED, _MASK = 1, 4
"""Bits of `_SUBFILE`."""
_PLACES = {273: 279, 324: 325}
"""Tags of the offsets of strips or tiles → tags of their sizes (TIFF 6.0, sections 8 and 15)."""
_FOLDERS = frozenset({330, 34665, 34853, 40965})
"""Tags of further directories."""
_FORMS = dict(zip((*range(1, 14), 16, 17, 18), "BcHIQbchiQfdIQqQ", strict=True))
"""Type of a value → its form in `struct`; rationals count as one number."""


class _Entry(NamedTuple):
    kind: int
    count: int
    inline: bytes
    """The value, or its offset if it is too long."""


_Page = Mapping[int, _Entry]


class _Tiff:
    """The main directories of a TIFF or BigTIFF; ValueError if they are damaged."""

    def __init__(self, place: PlainExtent) -> None:
        self._place = place
        head = place.read_range(0, 16)
        self._order = {b"II": "<", b"MM": ">"}.get(head[:2], "")
        self._version = self._unpack("H", head[2:4])[0] if self._order else 0
        if self._version not in (42, 43):
            raise ValueError("it is not a TIFF")
        self._offset, self._count = ("Q", "Q") if self._version == 43 else ("I", "H")
        self._width = struct.calcsize(self._offset)
        self._entry = struct.Struct(f"{self._order}HH{self._offset}{self._width}s")
        (self._first,) = self._unpack(self._offset, head[self._width : 2 * self._width])

    def pages(self) -> Iterator[_Page]:
        """Yield the entries of all pages in full size."""
        at, seen = self._first, set[int]()
        while at and at not in seen and len(seen) < _MOST_PAGES:
            seen.add(at)
            start = at + struct.calcsize(self._count)
            (number,) = self._unpack(self._count, self._read(at, start - at))
            data = self._read(start, number * self._entry.size + self._width)
            entries = self._entry.iter_unpack(data[: -self._width])
            page = {tag: _Entry(*rest) for tag, *rest in entries}
            (at,) = self._unpack(self._offset, data[-self._width :])
            if not self.numbers(page, _SUBFILE)[0] & (_REDUCED | _MASK):
                yield page

    def numbers(self, page: _Page, tag: int, default: int = 0) -> tuple[Any, ...]:
        entry = page.get(tag)
        return (default,) if entry is None else self._unpack(_FORMS[entry.kind], self._value(entry))

    def alone(self, page: _Page) -> bytes:
        """Return a TIFF that has only this page. The directory is its end."""
        tag_of_places = next(tag for tag in _PLACES if tag in page)
        offsets = self.numbers(page, tag_of_places)
        sizes = self.numbers(page, _PLACES[tag_of_places])
        if len(offsets) != len(sizes) or sum(sizes) > self._place.num_bytes:
            raise ValueError("strips of a page overlap")
        start = 2 * self._width
        body = bytearray().join(map(self._read, offsets, sizes))
        moved = (start + np.cumsum((0, *sizes[:-1]))).tolist()
        kept = {tag: one for tag, one in sorted(page.items()) if tag not in _FOLDERS}
        entries = b""
        for tag, entry in kept.items():
            kind, data = entry.kind, self._value(entry)
            if tag == tag_of_places:
                kind = 16 if self._version == 43 else 4
                data = self._pack(f"{len(moved)}{self._offset}", *moved)
            if len(data) > self._width:
                data, value = self._pack(self._offset, start + len(body)), data
                body += value
            entries += self._entry.pack(tag, kind, entry.count, data)
        head = self._place.read_range(0, start - self._width)
        head += self._pack(self._offset, start + len(body))
        end = self._pack(self._offset, 0)
        return b"".join((head, body, self._pack(self._count, len(kept)), entries, end))

    def _value(self, entry: _Entry) -> bytes:
        num_bytes = struct.calcsize(f"={_FORMS[entry.kind]}") * entry.count
        if num_bytes <= self._width:
            return entry.inline[:num_bytes]
        return self._read(self._unpack(self._offset, entry.inline)[0], num_bytes)

    def _unpack(self, form: str, data: bytes) -> tuple[Any, ...]:
        return struct.unpack(f"{self._order}{len(data) // struct.calcsize(f'={form}')}{form}", data)

    def _pack(self, form: str, *numbers: int) -> bytes:
        return struct.pack(f"{self._order}{form}", *numbers)

    def _read(self, at: int, num_bytes: int) -> bytes:
        data = self._place.read_range(at, num_bytes)
        if len(data) < num_bytes:
            raise ValueError("its pages are beyond its end")
        return data


def open_paged(place: PlainExtent, name: str) -> ArrayFile | None:
    """Return the pages or frames of an image file as one stack; None if it has a single image.

    A file that cannot be parsed is one image: a worker rejects it with the reason. SourceError if
    it has many bands and tifffile is not installed.
    """
    if is_dicom(place.read_head(HEAD_BYTES)):
        return _open_frames(place)
    try:
        with reading(name):
            tiff = _Tiff(place)
            pages = [*tiff.pages()]
            sizes = {(tiff.numbers(page, _HEIGHT), tiff.numbers(page, _WIDTH)) for page in pages}
            bands = tiff.numbers(pages[0], _BANDS, 1)[0]
    except SourceError:
        return single_image(place)
    if bands > _MOST_BANDS:
        return _open_bands(place, name)
    if len(pages) < 2 or len(sizes) > 1:
        return None

    def blocks(_: int) -> Iterator[Block]:
        for page in pages:
            try:
                yield [tiff.alone(page)]
            except (ValueError, KeyError, StopIteration, struct.error):
                yield [place.read_head(HEAD_BYTES)]  # cut, as the page is: a worker says so

    return _stack(len(pages), blocks)


def single_image(place: PlainExtent) -> ArrayFile:
    """Return a file as a stack of one image, which needs no copy."""
    places = np.array([place.offset]), np.array([place.num_bytes])
    return _stack(1, lambda _: iter(()), placed=(place.file, *places))


def _stack(number: int, blocks: Callable[[int], Iterator[Block]], **more: Any) -> ArrayFile:
    column = ImageColumn((number,), None, blocks, layouts=(Layout("T"),), **more)
    return ArrayFile({"": column}, {}, lambda _: [])


def _open_frames(place: PlainExtent) -> ArrayFile | None:
    try:
        from shardprep.image.dicom import frame_files, num_frames  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        return None  # a worker says what to install
    number = num_frames(place.read_head(_DICOM_HEAD_BYTES))
    if number < 2:
        return None

    def blocks(_: int) -> Iterator[Block]:
        for frame in frame_files(place.read(), number):
            yield [frame]

    return _stack(number, blocks)


@contextlib.contextmanager
def _tifffile_pages(place: PlainExtent, name: str) -> Iterator[list[Any]]:
    """Return tifffile's pages that are like the first one."""
    try:
        import tifffile  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        what = f"is a TIFF of more than {_MOST_BANDS} bands, which needs tifffile"
        raise SourceError(name, what, "pip install 'shardprep[tiff]'") from error
    with reading(name), buffered(place) as stream:
        try:
            with tifffile.TiffFile(stream) as file:
                first = file.pages[0].aspage()
                pages = map(file.pages.get, range(len(file.pages)))
                yield [one for one in pages if (one.shape, one.dtype) == (first.shape, first.dtype)]
        except tifffile.TiffFileError as error:
            raise ValueError(str(error)) from error


def _open_bands(place: PlainExtent, name: str) -> ArrayFile:
    with _tifffile_pages(place, name) as pages:
        number, first = len(pages), pages[0]
        letters = first.axes.translate(str.maketrans("YXS", "HWT"))
        shape, dtype = (number, *first.shape), np.dtype(first.dtype)

    def blocks(_: int) -> Iterator[Block]:
        with _tifffile_pages(place, name) as pages:
            for page in pages:
                yield page.asarray()[np.newaxis]

    column = ImageColumn(shape, dtype, blocks, layouts=(Layout(f"T{letters}"),), has_rows=True)
    return ArrayFile({"": column}, {}, lambda _: [])
