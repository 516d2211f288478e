"""Small archives of every kind, and the listing of one with all that it leaves behind."""

import io
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from shardprep.source.listing import Listing, list_source
from tests.support.builders import jpeg, png, tar_bytes, write, zip_bytes

ZIP_AND_TAR = pytest.mark.parametrize("pack", [zip_bytes, tar_bytes], ids=["zip", "tar"])

Pack = Callable[..., bytes]

JPEG, PNG = jpeg(8, 8), png(8, 8)
MEMBERS = {
    "train/cat.0.jpg": jpeg(9, 8, seed=1),
    "train/dog.0.png": png(8, 9, seed=2),
    "labels.csv": b"id,label\ncat.0,cat\n" * 40,
    "empty.txt": b"",
    "a/b/c/d/é ü.jpg": jpeg(8, 8, seed=3),
    "no_suffix": b"only text\n" * 99,
}
STORED_ZIP: Pack = partial(zip_bytes, method=zipfile.ZIP_STORED)
ZIPS: dict[str, Pack] = {
    "stored": STORED_ZIP,
    "deflated": zip_bytes,
    "bzip2": partial(zip_bytes, method=zipfile.ZIP_BZIP2),
    "lzma": partial(zip_bytes, method=zipfile.ZIP_LZMA),
}
INNER: dict[str, Pack] = {"zip": zip_bytes, "stored": STORED_ZIP, "tar": tar_bytes}
TARS: dict[str, Pack] = {
    "tar": tar_bytes,
    "tar.gz": partial(tar_bytes, compression="gz"),
    "tar.bz2": partial(tar_bytes, compression="bz2"),
    "tar.xz": partial(tar_bytes, compression="xz"),
}


class Listed(NamedTuple):
    """A listing and what making it has left behind."""

    listing: Listing
    work: Path
    notices: list[str]

    @property
    def contents(self) -> dict[str, bytes]:
        """Return the bytes of images and other members, by key."""
        members = [*self.listing.images, *self.listing.others]
        return {member.key: member.extent.read() for member in members}

    @property
    def image_keys(self) -> list[str]:
        return [member.key for member in self.listing.images]

    @property
    def reasons(self) -> dict[str, str]:
        skipped = self.listing.skipped
        return {one.key: ": ".join(filter(None, (one.reason, one.detail))) for one in skipped}


def listed(source: Path, work: Path | None = None, zip_encoding: str | None = None) -> Listed:
    notices: list[str] = []
    work = work or source.parent / f"{source.name}.work"
    found = list_source(source, work, notices.append, zip_encoding=zip_encoding)
    return Listed(found, work, notices)


def listed_bytes(folder: Path, data: bytes, name: str = "source.bin") -> Listed:
    return listed(write(folder / name, data))


def by_zipfile(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {i.filename: archive.read(i) for i in archive.infolist() if not i.is_dir()}
