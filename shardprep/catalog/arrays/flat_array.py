"""Files with a header and the numbers of one array: NumPy's .npy, IDX of MNIST, NIfTI.

DamagedFileError if the header is invalid. Truncated images raise it when their rows are read.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from shardprep.catalog.arrays.array_file import (
    ArrayFile,
    DamagedFileError,
    ImageColumn,
    number_texts,
    reading,
    rows_at_once,
)
from shardprep.catalog.arrays.layout import Layout
from shardprep.errors import SourceError
from shardprep.source.byte_range import PlainExtent
from shardprep.source.string_column import Texts
from shardprep.source.unpack import buffered

IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


class _Array(NamedTuple):
    place: PlainExtent
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    """Memory order as in NumPy: "C", or "F" if the first axis changes fastest."""
    scale: tuple[float, float] | None = None
    """Factor and offset to apply to the stored numbers, or None if they are not scaled."""

    def rows(self, start: int, stop: int, axis: int) -> NDArray[Any]:
        """Return rows `start` to `stop` along `axis`, which becomes axis 0."""
        stored = self._stored(start, stop, axis)
        return stored if self.scale is None else stored * self.scale[0] + self.scale[1]

    def _stored(self, start: int, stop: int, axis: int) -> NDArray[Any]:
        if axis == (0 if self.order == "C" else len(self.shape) - 1):
            row_bytes = self.place.num_bytes // self.shape[axis]
            data = self.place.read_range(start * row_bytes, (stop - start) * row_bytes)
            shape = (*self.shape[:axis], stop - start, *self.shape[axis + 1 :])
            found = np.frombuffer(data, self.dtype).reshape(shape, order=self.order)
            return np.moveaxis(found, axis, 0)
        # The rows are scattered. A new map for each block lets the system drop the pages before it.
        mapped = np.memmap(
            self.place.file, self.dtype, "r", self.place.offset, self.shape, self.order
        )
        rows = mapped[(slice(None),) * axis + (slice(start, stop),)]
        return np.array(np.moveaxis(rows, axis, 0), order="C")

    def blocks(self, axis: int) -> Iterator[NDArray[Any]]:
        if axis < 0:
            yield self.rows(0, self.shape[0], 0)[np.newaxis]
            return
        length = self.shape[axis]
        step = rows_at_once(self.place.num_bytes // max(1, length))
        for start in range(0, length, step):
            yield self.rows(start, min(start + step, length), axis)


def open_npy(place: PlainExtent, name: str) -> ArrayFile:
    """Return the array of a .npy file; SourceError for several arrays or for pickled objects."""
    with reading(name), buffered(place) as stream:
        is_first = npy.read_magic(stream) == (1, 0)
        read = npy.read_array_header_1_0 if is_first else npy.read_array_header_2_0
        shape, is_fortran, dtype = read(stream)
        at = stream.tell()
        if min(shape, default=0) < 0:
            raise ValueError(f"its header states the shape {shape}")
    if dtype.hasobject:
        what = "holds pickled Python objects, which are never read"
        hint = "save images of one size as an array of numbers (numpy.stack), others as image files"
        raise SourceError(name, what, hint)
    extent = PlainExtent(place.file, place.offset + at, place.num_bytes - at)
    end = at + math.prod(shape) * dtype.itemsize
    if place.num_bytes > end and place.read_range(end, len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
        hint = "save each array in a file of its own, or all as .npz"
        raise SourceError(name, "holds several arrays", hint)
    return _array_file(_Array(extent, dtype, shape, "F" if is_fortran else "C"), name)


def open_idx(place: PlainExtent, name: str) -> ArrayFile:
    """Return the array of an IDX file: images if it has three or more axes, otherwise cells."""
    with reading(name):
        head = place.read_range(0, 4)
        at = 4 + 4 * head[3]
        shape = struct.unpack(f">{head[3]}I", place.read_range(4, at - 4))
        dtype = np.dtype(IDX_TYPES[head[2]])
    extent = PlainExtent(place.file, place.offset + at, place.num_bytes - at)
    return _array_file(_Array(extent, dtype, shape, "C"), name, has_rows=len(shape) > 2)


_NIFTI_TYPES = {
    2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4", 1024: "i8",
    1280: "u8",
}  # fmt: skip
_NIFTI_FACTS = {
    348: (
        ("8h", 40), ("h", 70), ("f", 108), ("2f", 112), ("8f", 76), ("2h", 252), ("3f", 256),
        ("12f", 280),
    ),
    540: (
        ("8q", 16), ("h", 12), ("q", 168), ("2d", 176), ("8d", 104), ("2i", 344), ("3d", 352),
        ("12d", 400),
    ),
}  # fmt: skip
"""Header size of NIfTI-1 and NIfTI-2 → struct format and offset of: number of axes and their sizes,
type, offset of the numbers, slope and intercept, sign of z and spacing, codes of qform and
sform, quaternion, affine."""


def open_nifti(place: PlainExtent, name: str) -> ArrayFile:
    """Return the array of a .nii, which has two to seven axes: x, y, z, ….

    An image is a plane of constant z, its rows have constant y. Images are in the order of z, ….
    """
    with reading(name):
        head = place.read_range(0, max(_NIFTI_FACTS))
        order = "<" if head[0] else ">"
        (size,) = struct.unpack_from(f"{order}i", head)
        facts = [struct.unpack_from(order + form, head, at) for form, at in _NIFTI_FACTS[size]]
        (num_axes, *sides), (kind,), (start,), (slope, summand), (sign, *spacing), *turn = facts
        shape = tuple(sides[:num_axes])
        scale = (slope, summand) if slope and math.isfinite(slope) else (1, 0)
        is_known = kind in _NIFTI_TYPES and math.isfinite(scale[1])
        if not (2 <= num_axes <= 7 and min(shape) > 0 and is_known):
            raise ValueError(f"its header states the shape {shape} and the type {kind}")
        dtype = np.dtype(f"{order}{_NIFTI_TYPES[kind]}")
        start = max(int(start), size)
    extent = PlainExtent(place.file, place.offset + start, place.num_bytes - start)
    array = _Array(extent, dtype, shape, "F", None if scale == (1, 0) else scale)
    more = {"layouts": (Layout("WHTTTTT"[:num_axes]),), "spacing": tuple(spacing[:num_axes])}
    letters = _directions(sign, *turn)
    more["directions"] = tuple(letters.ljust(num_axes))[:num_axes] if letters else ()
    return _array_file(array, name, **more)


@np.errstate(all="ignore")
def _directions(sign: float, given: Any, quaternion: Any, affine: Any) -> str:
    """Return the LRPAIS letters of x, y and z from sform, else from qform; "" if unknown."""
    matrix = np.array(affine, np.float64).reshape(3, 4)[:, :3]
    if given[1] <= 0:
        turn = np.array(quaternion, np.float64)
        real = max(0.0, 1 - float(turn @ turn))
        matrix = (2 * real - 1) * np.eye(3) + 2 * np.outer(turn, turn)
        matrix += 2 * math.sqrt(real) * np.cross(np.eye(3), turn)
        matrix *= (1, 1, -1 if sign < 0 else 1)
    if max(given) <= 0 or not np.isfinite(matrix).all():
        return ""
    rows = np.abs(matrix).argmax(axis=0)
    return "".join("LRPAIS"[2 * row + (matrix[row, axis] > 0)] for axis, row in enumerate(rows))


def _array_file(array: _Array, name: str, **column: Any) -> ArrayFile:
    """Return the file of an array without surplus bytes; `column` has fields of ImageColumn."""
    shape, dtype = array.shape, array.dtype
    num_bytes, there = math.prod(shape) * dtype.itemsize, array.place.num_bytes
    if num_bytes > there:
        what = f"is truncated: its header states {num_bytes:,} bytes of numbers, not {there:,}"
        error = DamagedFileError(name, what, "download or write it again")
        if math.prod(shape[1:]) == 1:
            raise error
    array = array._replace(place=array.place._replace(num_bytes=num_bytes))

    def blocks(axis: int) -> Iterator[NDArray[Any]]:
        if num_bytes > there:  # not earlier: a damaged file of one sample is rejected
            raise error
        yield from array.blocks(axis)

    def read_cells(titles: Sequence[str]) -> list[Texts]:
        with reading(name):
            values = [np.concatenate([*map(np.ravel, array.blocks(0))]) for _ in titles]
            return [*map(number_texts, values)]

    if dtype.kind not in "buif" and (dtype.kind not in "SU" or len(shape) != 1):
        return ArrayFile({}, {}, read_cells, (f"{name}: {dtype} is not a type of numbers",))
    if math.prod(shape[1:]) == 1 and shape:
        return ArrayFile({}, {"": shape[0]}, read_cells)
    kind = dtype if array.scale is None else np.dtype(np.float64)
    facts = {"has_rows": False, "is_truncated": num_bytes > there, **column}
    return ArrayFile({"": ImageColumn(shape, kind, blocks, **facts)}, {}, read_cells)
