"""Datasets of an HDF5 file, or arrays of a zarr folder. Links to other files are not followed."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from shardprep.catalog.arrays.array_file import (
    BLOCK_BYTES,
    ArrayFile,
    Block,
    ImageColumn,
    number_texts,
    opened_file,
    reading,
    rows_at_once,
)
from shardprep.catalog.arrays.layout import possible_layouts
from shardprep.image.signatures import HEAD_BYTES, is_image
from shardprep.source.byte_range import PlainExtent
from shardprep.source.string_column import Texts
from shardprep.storage.space import megabytes

_CACHE_BYTES = 8 * BLOCK_BYTES
"""Bytes of the cache for chunks, and maximum bytes of a block of whole chunks."""
_FILES_AT_ONCE = 16
_MIN_ALIKE = 3
"""Minimum number of datasets with one image each in a group, to treat them as one column."""
Open = Callable[[], "contextlib.AbstractContextManager[Any]"]


@contextlib.contextmanager
def _opened(place: PlainExtent, name: str) -> Iterator[Any]:
    with reading(name), opened_file(place) as whole:
        import h5py  # noqa: PLC0415 - an extra

        with contextlib.suppress(ImportError):  # it registers more codecs, if it is installed
            import hdf5plugin  # noqa: F401, PLC0415
        with h5py.File(whole, "r", rdcc_nbytes=_CACHE_BYTES) as file:
            yield file


def open_hdf5(place: PlainExtent, name: str, most_bytes: int) -> ArrayFile:
    """Return the datasets of an HDF5 file. A group of single-image datasets becomes one column.

    SourceError if h5py is not installed. For `most_bytes` see `open_datasets`.
    """
    return open_datasets(partial(_opened, place, name), most_bytes, _CACHE_BYTES)


def open_datasets(opened: Open, most_bytes: int, most_at_once: int) -> ArrayFile:
    """Return the datasets of a file except those with chunks of more than `most_bytes`.

    Blocks consist of whole chunks, so that each is read once, up to `most_at_once` bytes.
    """
    images: dict[str, ImageColumn] = {}
    singles: dict[str, list[str]] = defaultdict(list)
    cells: dict[str, int] = {}
    left_out: list[str] = []

    def visit(key: str | bytes, found: Any) -> None:
        if not getattr(found, "shape", None) and not getattr(found, "nbytes", 0):
            return  # a group or an empty dataset
        if isinstance(key, bytes):
            left_out.append(f"{key!r} (its name is not UTF-8)")
            return
        role = _role(found, most_bytes)
        if role == "file":
            singles[key.rpartition("/")[0]].append(key)
        elif role in ("files", "numbers"):
            dtype = found.dtype if role == "numbers" else None
            blocks = partial(_rows, opened, key, most_at_once)
            images[key] = ImageColumn(found.shape, dtype, blocks, has_rows=role == "files")
        elif role == "cells":
            cells[key] = found.shape[0]
        elif role:
            left_out.append(f"{key or 'array'} ({role})")

    with opened() as file:
        file.visititems(visit)
        left_out += [f"{key} (its data are in another file)" for key in _links(file)]
    for group, keys in singles.items():
        images[group] = _together(opened, keys, (), None)
    images = _by_group(images, opened)

    def read_cells(names: Sequence[str]) -> list[Texts]:
        with opened() as file:
            return [number_texts(np.ravel(file[key][()])) for key in names]

    return ArrayFile(images, cells, read_cells, tuple(left_out))


def _by_group(images: dict[str, ImageColumn], opened: Open) -> dict[str, ImageColumn]:
    groups: dict[str, list[str]] = defaultdict(list)
    for key in filter(None, images):
        groups[key.rpartition("/")[0]].append(key)
    found = dict(images)
    for group, keys in groups.items():
        if len(keys) >= _MIN_ALIKE and all(_is_single(images[key]) for key in keys):
            first = images[keys[0]]
            found = {key: one for key, one in found.items() if key not in keys}
            found[group] = _together(opened, keys, first.shape, first.dtype)
    return found


def _role(found: Any, most_bytes: int) -> str:
    """Return "file", "files", "numbers", "cells", "" for a scalar, or the reason to skip it."""
    shape, dtype = found.shape, found.dtype
    large = math.prod(found.chunks or (1,)) * dtype.itemsize
    if len(shape) < 2 and not found.chunks:
        large = found.nbytes
    if getattr(found, "is_virtual", False) or getattr(found, "external", None):
        return "its data are in another file"
    if large > most_bytes:
        return f"its parts have {megabytes(large)}"
    is_number = dtype.kind in "buif"
    if len(shape) < 2 and any(map(is_image, _heads(found))):
        return "files" if shape and not is_number else "file"
    if is_number and math.prod(shape[1:]) > 1:
        return "numbers"
    vlen = (dtype.metadata or {}).get("vlen", str if dtype.kind != "O" else None)
    is_cell = shape and math.prod(shape[1:]) == 1 and dtype.fields is None and vlen in (str, bytes)
    return "cells" if is_cell else str(dtype) if shape else ""


def _is_single(column: ImageColumn) -> bool:
    layouts = possible_layouts(column.shape, has_rows=False)
    return column.dtype is not None and len(layouts) == 1 and layouts[0].rows < 0


def _together(opened: Open, keys: Sequence[str], shape: tuple[int, ...], dtype: Any) -> ImageColumn:
    def blocks(_: int) -> Iterator[Block]:
        with opened() as file:
            for at in range(0, len(keys), _FILES_AT_ONCE):
                some = [file[key] for key in keys[at : at + _FILES_AT_ONCE]]
                yield [one[()] if dtype is not None else _bytes(one[()]) for one in some]

    names = [key.rpartition("/")[2] for key in keys]
    return ImageColumn((len(keys), *shape), dtype, blocks, names=names)


def _links(file: Any) -> list[str]:
    """Return the links of a file that lead to other files."""
    links: list[str] = []

    def visit(key: str, link: Any) -> None:
        if hasattr(link, "filename"):
            links.append(key)

    getattr(file, "visititems_links", lambda _: None)(visit)  # zarr has no links
    return links


def _rows(opened: Open, key: str, most_bytes: int, axis: int) -> Iterator[Block]:
    with opened() as file:
        found = file[key]
        if axis < 0:
            yield found[()][np.newaxis]
            return
        length, chunk = found.shape[axis], (found.chunks or found.shape)[axis]
        row_bytes = max(1, math.prod(found.shape) // length) * found.dtype.itemsize
        step = rows_at_once(row_bytes)
        if found.chunks and chunk * row_bytes <= most_bytes:
            step = -(-step // chunk) * chunk  # each chunk is decompressed once
        is_number = found.dtype.kind in "buif"
        step = step if is_number else min(step, _FILES_AT_ONCE)
        for start in range(0, length, step):
            rows = found[(slice(None),) * axis + (slice(start, min(start + step, length)),)]
            yield np.moveaxis(rows, axis, 0) if is_number else [_bytes(one) for one in rows]


def _heads(found: Any) -> list[bytes]:
    """Return the first bytes of a dataset or of its first rows; [] if its type holds no files."""
    if found.dtype.fields is not None or found.dtype.kind in "fib":
        return []
    if found.dtype == np.uint8 and found.ndim:
        return [bytes(found[:HEAD_BYTES])]
    rows = found[:_FILES_AT_ONCE] if found.ndim else [found[()]]
    return [_bytes(row)[:HEAD_BYTES] for row in rows]


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return b""
    return value if isinstance(value, bytes) else np.asarray(value).tobytes()
