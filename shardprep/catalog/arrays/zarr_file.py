"""Zarr arrays of format 2 and 3: folders with a JSON document and a file for each chunk."""

from __future__ import annotations

import contextlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from shardprep.catalog.arrays.array_file import ArrayFile, ImageColumn, number_texts, reading
from shardprep.catalog.arrays.hdf5_file import chunked_rows
from shardprep.catalog.arrays.layout import CHANNELS, Layout
from shardprep.errors import SourceError
from shardprep.source.byte_range import PlainExtent
from shardprep.source.members import Member
from shardprep.source.string_column import Texts
from shardprep.storage.space import megabytes

_ARRAYS = (".zarray", "zarr.json")
_DOCUMENTS = (*_ARRAYS, ".zgroup")
_CODECS = {
    "adler32", "bitround", "blosc", "bytes", "bz2", "crc32", "crc32c", "delta", "fixedscaleoffset",
    "gzip", "lz4", "lzma", "packbits", "quantize", "sharding_indexed", "shuffle", "transpose",
    "zlib", "zstd",
}  # fmt: skip
"""Codecs of numbers. Others may load Python objects, which can run any code."""


class ZarrFiles(dict[str, Any]):
    """The members of a zarr folder by their paths in it. Reading an item returns zarr's buffer."""

    _last: tuple[str, Any] = "", None

    def __getitem__(self, path: str) -> Any:
        from zarr.core.buffer import default_buffer_prototype  # noqa: PLC0415 - an extra

        if path != self._last[0]:
            data = super().__getitem__(path).extent.read()
            self._last = path, default_buffer_prototype().buffer.from_bytes(data)
        return self._last[1]

    @property
    def keys_of_members(self) -> list[str]:
        return [member.key for member in self.values()]

    def document(self, path: str) -> dict[str, Any]:
        """Return a JSON object, or {} if the file is missing or another value."""
        found = json.loads(self.get(path).extent.read()) if path in self else {}
        return found if isinstance(found, dict) else {}


def zarr_folders(members: Iterable[Member], root: str) -> tuple[list[Member], dict[str, ZarrFiles]]:
    """Return the members, with one for each zarr folder, and the files of each folder by its key.

    `root` is the key of a source that is a zarr folder.
    """
    pairs = [(*member.key.rpartition("/")[::2], member) for member in members]
    tops = {folder for folder, name, _ in pairs if name in _DOCUMENTS}
    folders: dict[str, ZarrFiles] = defaultdict(ZarrFiles)
    others = []
    for folder, _, member in pairs:
        parts = folder.split("/") if folder and tops else []
        above = ("/".join(parts[:number]) for number in range(len(parts) + 1))
        top = next((one for one in above if one in tops), None)
        if top is None:
            others.append(member)
        else:
            folders[top or root][member.key.removeprefix(f"{top}/" if top else "")] = member
    for key, files in folders.items():
        num_bytes = sum(member.extent.num_bytes for member in files.values())
        others.append(Member(key, PlainExtent("", 0, num_bytes)))
    return others, dict(folders)


@contextlib.contextmanager
def _opened(files: ZarrFiles, name: str, paths: Sequence[str]) -> Iterator[dict[str, Any]]:
    try:
        import zarr  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        what = "is a zarr folder, which needs zarr"
        raise SourceError(name, what, "pip install 'shardprep[zarr]'") from error
    with reading(name):
        store = zarr.storage.MemoryStore(files, read_only=True)
        yield {path: zarr.open_array(store=store, path=path, mode="r") for path in paths}


def open_zarr(files: ZarrFiles, name: str, most_bytes: int) -> ArrayFile:
    """Return the arrays of a zarr folder, without reduced copies in OME-Zarr.

    The last two axes of an array are height and width, the others order the images of a stack.
    """
    images: dict[str, ImageColumn] = {}
    cells: dict[str, int] = {}
    left_out: list[str] = []
    with reading(name):
        reduced = {*_reduced(files)}
        folders = sorted({_folder(key) for key in files if key.rpartition("/")[2] in _ARRAYS})
        for path in folders:
            about = files.document(_join(path, ".zarray")) or files.document(
                _join(path, "zarr.json")
            )
            if about.get("node_type") == "group":
                continue
            names = {*_names([about.get(key) for key in ("codecs", "compressor", "filters")])}
            if path in reduced or not names <= _CODECS:
                why = "a reduced copy" if path in reduced else f"codec {min(names - _CODECS)}"
                left_out.append(f"{path} ({why})")
                continue
            with _opened(files, name, [path]) as arrays:
                array = arrays[path]
                shape, dtype, chunks = array.shape, np.dtype(array.dtype), array.chunks
            num_bytes = math.prod(chunks) * dtype.itemsize
            if dtype.kind not in "buif" or num_bytes > most_bytes:
                large = f"its chunks have {megabytes(num_bytes)}"
                left_out.append(f"{path} ({large if dtype.kind in 'buif' else dtype})")
            elif len(shape) > 1:
                blocks = partial(
                    chunked_rows, partial(_opened, files, name, [path]), path, most_bytes
                )
                images[path] = ImageColumn(shape, dtype, blocks, layouts=(_layout(shape, dtype),))
            elif shape:
                cells[path] = shape[0]

    def read_cells(paths: Sequence[str]) -> list[Texts]:
        with _opened(files, name, paths) as arrays:
            return [number_texts(arrays[path][:]) for path in paths]

    return ArrayFile(images, cells, read_cells, tuple(left_out))


def _folder(key: str) -> str:
    return key.rpartition("/")[0]


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _layout(shape: Sequence[int], dtype: np.dtype[Any]) -> Layout:
    is_colour = len(shape) > 2 and shape[-1] in CHANNELS[1:] and dtype == np.uint8
    axes = "HWC" if is_colour else "HW"
    return Layout("T" * (len(shape) - len(axes)) + axes)


def _names(codecs: Any) -> Iterator[str]:
    """Yield the names of codecs in a document, with the ones inside of shards."""
    for one in codecs if isinstance(codecs, list) else []:
        if isinstance(one, list):
            yield from _names(one)
        elif isinstance(one, dict):
            yield str(one.get("id", one.get("name")))
            inner = one.get("configuration")
            if isinstance(inner, dict):
                yield from _names([inner.get("codecs"), inner.get("index_codecs")])
        elif one is not None:
            yield str(one)


def _reduced(files: ZarrFiles) -> Iterator[str]:
    """Yield the paths of arrays that OME-Zarr lists as reduced copies of another one."""
    for key in [key for key in files if key.rpartition("/")[2] in (".zattrs", "zarr.json")]:
        document = files.document(key)
        attributes = document.get("attributes", document)
        for scale in attributes.get("ome", attributes).get("multiscales", ()):
            yield from (_join(_folder(key), one["path"]) for one in scale["datasets"][1:])
