"""Zarr arrays of format 2 and 3: folders with a JSON document and a file for each chunk."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from shardprep.catalog.arrays.array_file import ArrayFile, ImageColumn, reading
from shardprep.catalog.arrays.hdf5_file import open_datasets
from shardprep.catalog.arrays.layout import CHANNELS, Layout
from shardprep.source.byte_range import PlainExtent, RefusedExtent
from shardprep.source.listing import Skipped
from shardprep.source.members import Member

_ARRAYS = (".zarray", "zarr.json")
_DOCUMENTS = (*_ARRAYS, ".zgroup")
_CODECS = {
    "adler32", "blosc", "bytes", "bz2", "crc32", "crc32c", "delta", "fixedscaleoffset", "gzip",
    "lz4", "lzma", "packbits", "sharding_indexed", "shuffle", "transpose", "zlib", "zstd",
}  # fmt: skip
"""Accepted codecs. Others may load Python objects, which can run any code."""


class ZarrFiles(dict[str, Any]):
    """Path in a zarr folder → member. Reading an item gives its content as a buffer of zarr."""

    def __getitem__(self, path: str) -> Any:
        from zarr.core.buffer import default_buffer_prototype  # noqa: PLC0415 - an extra

        data = super().__getitem__(path).extent.read()
        return default_buffer_prototype().buffer.from_bytes(data)


def zarr_folders(
    members: Iterable[Member], root: str, skipped: Iterable[Skipped]
) -> tuple[list[Member], dict[str, ZarrFiles]]:
    """Return the members with each zarr folder as one member, and key of a folder → its files.

    `root` is the key of a source that is a zarr folder itself. Reading a chunk among the `skipped`
    files is an error: without its file, zarr would return the fill value.
    """
    lost = (Member(one.key, RefusedExtent(0, f"{one.key}: {one.reason}")) for one in skipped)
    pairs = [(member.key.rpartition("/"), member) for member in (*members, *lost)]
    tops = {f"{folder}{slash}" for (folder, slash, name), _ in pairs if name in _DOCUMENTS}
    folders: dict[str, ZarrFiles] = defaultdict(ZarrFiles)
    others = []
    for (folder, slash, _), member in pairs:
        above = itertools.accumulate(f"{folder}{slash}".split("/"), "{}{}/".format, initial="")
        top = next((one for one in above if one in tops), None) if tops else None
        if top is None and not isinstance(member.extent, RefusedExtent):
            others.append(member)
        elif top is not None:
            folders[top.rstrip("/") or root][member.key.removeprefix(top)] = member
    for key, files in folders.items():
        num_bytes = sum(member.extent.num_bytes for member in files.values())
        others.append(Member(key, PlainExtent("", 0, num_bytes)))
    return others, folders


class _Arrays(dict[str, Any]):
    """Path → array, with the method of h5py files that `open_datasets` calls."""

    def visititems(self, visit: Callable[[str, Any], None]) -> None:
        for path, array in self.items():
            visit(path, array)


@contextlib.contextmanager
def _opened(files: ZarrFiles, name: str, paths: Sequence[str]) -> Iterator[_Arrays]:
    with reading(name):
        import zarr  # noqa: PLC0415 - an extra

        store = zarr.storage.MemoryStore(files, read_only=True)
        yield _Arrays({path: zarr.open_array(store, path=path, mode="r") for path in paths})


def open_zarr(files: ZarrFiles, name: str, most_bytes: int) -> ArrayFile:
    """Return the arrays of a zarr folder, except arrays with a codec that is not in `_CODECS`.

    An array with axes before height, width and colours is a stack.
    """
    paths, left_out = list[str](), list[str]()
    with reading(name):
        for key in sorted(key for key in files if key.rpartition("/")[2] in _ARRAYS):
            about = json.loads(files[key].to_bytes())
            path = key.rpartition("/")[0]
            codecs = [about.get(one) for one in ("codecs", "compressor", "filters")]
            if others := {*_names(codecs)} - _CODECS:
                left_out.append(f"{path or 'array'} (codec {min(others)})")
            elif about.get("node_type") != "group":
                paths.append(path)
    arrays = open_datasets(partial(_opened, files, name, paths), most_bytes, most_bytes)
    images = {path: _stacked(one) for path, one in arrays.images.items()}
    return replace(arrays, images=images, left_out=(*arrays.left_out, *left_out))


def _stacked(column: ImageColumn) -> ImageColumn:
    shape = column.shape
    if column.dtype is None or column.names or len(shape) < 3:
        return column
    is_colour = shape[-1] in CHANNELS[1:] and column.dtype == np.uint8
    axes = "HWC" if is_colour else "HW"
    return replace(column, layouts=(Layout("T" * (len(shape) - len(axes)) + axes),))


def _names(found: Any) -> Iterator[str]:
    """Yield the names of codecs in a document of metadata, including codecs inside of shards."""
    if isinstance(found, dict):
        yield from (str(found[key]) for key in ("id", "name") if key in found)
        found = [one for one in found.values() if isinstance(one, dict | list)]
    elif isinstance(found, str):
        yield found
    for one in found if isinstance(found, list) else ():
        yield from _names(one)
