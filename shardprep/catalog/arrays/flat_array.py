"""NumPy's .npy and the IDX format of MNIST: a header, then the numbers of one array."""

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
    ImageColumn,
    number_texts,
    reading,
    rows_at_once,
)
from shardprep.errors import SourceError
from shardprep.source.byte_range import PlainExtent
from shardprep.source.string_column import Texts
from shardprep.source.unpack import buffered

IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


class _Array(NamedTuple):
    """An array of numbers in a file."""

    place: PlainExtent
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    """As in NumPy: "C", or "F" if the first axis is the fastest."""

    def rows(self, start: int, stop: int, axis: int) -> NDArray[Any]:
        """Return rows of an axis, which becomes the first one."""
        if axis == 0 and self.order == "C":
            row_bytes = self.place.num_bytes // self.shape[0]
            data = self.place.read_range(start * row_bytes, (stop - start) * row_bytes)
            return np.frombuffer(data, self.dtype).reshape(stop - start, *self.shape[1:])
        # The rows are scattered. A new map for each block lets the system drop pages of the last.
        mapped = np.memmap(
            self.place.file, self.dtype, "r", self.place.offset, self.shape, self.order
        )
        rows = mapped[(slice(None),) * axis + (slice(start, stop),)]
        return np.array(np.moveaxis(rows, axis, 0), order="C")

    def blocks(self, axis: int) -> Iterator[NDArray[Any]]:
        if axis < 0:
            whole = self.rows(0, self.shape[0], 0)
            yield whole[np.newaxis]
            return
        length = self.shape[axis]
        step = rows_at_once(self.place.num_bytes // max(1, length))
        for start in range(0, length, step):
            yield self.rows(start, min(start + step, length), axis)


def open_npy(place: PlainExtent, name: str) -> ArrayFile:
    """Return the array of a .npy; SourceError if it holds Python objects, which are pickles."""
    with reading(name), buffered(place) as stream:
        is_first = npy.read_magic(stream) == (1, 0)
        read = npy.read_array_header_1_0 if is_first else npy.read_array_header_2_0
        shape, is_fortran, dtype = read(stream)
        at = stream.tell()
    if dtype.hasobject:
        what = "holds pickled Python objects, which are never read"
        raise SourceError(name, what, "save it with a type of numbers: array.astype(numpy.uint8)")
    return _array_file(place, name, at, dtype, (shape, "F" if is_fortran else "C"))


def open_idx(place: PlainExtent, name: str) -> ArrayFile:
    """Return the array of an IDX file."""
    with reading(name):
        head = place.read_range(0, 4)
        at = 4 + 4 * head[3]
        shape = struct.unpack(f">{head[3]}I", place.read_range(4, at - 4))
        dtype = np.dtype(IDX_TYPES[head[2]])
    return _array_file(place, name, at, dtype, (shape, "C"), is_idx=True)


def _array_file(
    place: PlainExtent,
    name: str,
    at: int,
    dtype: np.dtype[Any],
    layout: tuple[tuple[int, ...], Literal["C", "F"]],
    *,
    is_idx: bool = False,
) -> ArrayFile:
    """Return the array behind a header of `at` bytes; `layout` is its shape and order."""
    shape, order = layout
    num_bytes, there = math.prod(shape) * dtype.itemsize, place.num_bytes - at
    if num_bytes > there:
        what = f"is truncated: its header states {num_bytes:,} bytes of numbers, it has {there:,}"
        raise SourceError(name, what, "download or write it again")
    extent = PlainExtent(place.file, place.offset + at, num_bytes)
    array = _Array(extent, dtype, tuple(shape), order)

    def read_cells(titles: Sequence[str]) -> list[Texts]:
        with reading(name):
            values = [np.concatenate([*map(np.ravel, array.blocks(0))]) for _ in titles]
            return [*map(number_texts, values)]

    if dtype.kind not in "buif" and (dtype.kind not in "SU" or len(shape) != 1):
        return ArrayFile({}, {}, read_cells, (f"{name}: {dtype} is not a type of numbers",))
    if math.prod(shape[1:]) == 1 and shape:
        return ArrayFile({}, {"": shape[0]}, read_cells)
    column = ImageColumn(array.shape, dtype, array.blocks, has_rows=is_idx and len(shape) > 2)
    return ArrayFile({"": column}, {}, read_cells)
