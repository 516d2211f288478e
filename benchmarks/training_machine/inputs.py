"""The photos of a user as files, and the datasets that are built from them."""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.measure import built
from benchmarks.photos import write_folder

PHOTOS = "photos"
"""Folder of the photos as files, in two folders of classes."""
DATASETS: dict[str, tuple[str, ...]] = {
    "jpeg": (),
    "raw": ("--format", "raw"),
    "crop": ("--size", "none", "--format", "keep"),
}
"""Name of a dataset → options of its build."""
_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}
_READ_BYTES = 1 << 30
_STORED_BYTES = 8 << 30
_RAW_BYTES = 224 * 224 * 3
_SHARDS = 16


def prepare(source: Path, folder: Path, number: int) -> int:
    """Write photos and datasets into an empty folder; return the number of photos.

    The photos are taken at even distances from the source, and repeat if it has less than `number`.
    The result is smaller than `number` if they would need more than 8 GiB, or a quarter of the free
    disk space. Errors as in `read_photos`.
    """
    data = read_photos(source, number)
    each = 2 * sum(map(len, data)) / len(data) + _RAW_BYTES + (32 << 10)
    room = min(_STORED_BYTES, shutil.disk_usage(folder).free // 4)
    number = max(1, min(number, int(room / each)))
    photos = write_folder(folder / PHOTOS, number, data=data[:number], links=True)
    for name, options in DATASETS.items():
        built(
            folder / name, photos, "--shards", min(_SHARDS, number), "--labels", "folder",
            "--split", "train=1.0", "--max-rejected", "100%", *options,
        )  # fmt: skip
    return number


def dataset(folder: Path, name: str) -> Path:
    """Return the folder of a dataset that `prepare` has built."""
    return next(path.parent for path in (folder / name).glob("*/*/manifest.json"))


def read_photos(source: Path, number: int) -> list[bytes]:
    """Return up to `number` photos of a folder, a zip or the zips in a zip, at most 1 GiB of them.

    Raises:
        ValueError: the source has no photos.
        OSError: the source cannot be read.
    """
    read: dict[str, Callable[[], bytes]] = {}
    if source.is_dir():
        read = {str(path): path.read_bytes for path in source.rglob("*") if path.is_file()}
    else:
        for archive in _archives(zipfile.ZipFile(source)):
            read |= {name: partial(archive.read, name) for name in archive.namelist()}
    names = sorted(filter(_is_photo, read))
    if not names:
        raise ValueError(f"{source}: no photos ({', '.join(sorted(_SUFFIXES))})")
    found, size = [], 0
    for name in names[:: max(1, len(names) // number)][:number]:
        found.append(read[name]())
        size += len(found[-1])
        if size > _READ_BYTES:
            break
    return found


def _archives(archive: zipfile.ZipFile) -> list[zipfile.ZipFile]:
    """Return an archive, and the zips in it: competitions of Kaggle are packed like that."""
    inner = [name for name in archive.namelist() if name.lower().endswith(".zip")]
    return [archive, *(zipfile.ZipFile(io.BytesIO(archive.read(name))) for name in inner)]


def _is_photo(name: str) -> bool:
    return Path(name).suffix.lower() in _SUFFIXES and not Path(name).name.startswith(".")
