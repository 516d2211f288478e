"""Identity of an opened dataset: whether a folder still holds the dataset that was opened there.

A build with `--overwrite` replaces the folder of a dataset by a rename, so the same path may lead
to another dataset from one moment to the next. Whoever opens a file of a dataset checks its
identity afterwards: a file that was opened before its folder still had the manifest of the dataset
is a file of that dataset, and stays so for as long as it is open. Object storage has ETags for the
same purpose, and both raise the same error.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Self

from shardprep.dataset.documents import MAX_DOCUMENT_BYTES
from shardprep.dataset.manifest import MANIFEST_FILE
from shardprep.errors import DatasetError, RecordError
from shardprep.storage.regular_file import open_regular, read_open
from shardprep.storage.store_error import changed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardprep.dataset.manifest import Manifest


class _File(NamedTuple):
    """What tells a file from others without reading it."""

    device: int
    inode: int
    num_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass(slots=True)
class Identity:
    """A folder, and the dataset that was opened there; may be pickled."""

    folder: Path
    sha256: str
    """SHA-256 of the manifest's file in hexadecimal, "" where it cannot be read."""
    _seen: _File | None = field(default=None, compare=False)
    """The file that was last found to have this hash."""

    @classmethod
    def of(cls, folder: Path, manifest: Manifest) -> Self:
        """Return the identity of the dataset with a manifest that was read from a folder."""
        # A manifest that is no longer byte for byte what it says is refused when it is read.
        return cls(folder, hashlib.sha256(manifest.text().encode()).hexdigest())

    @classmethod
    def at(cls, folder: Path) -> Self:
        """Return the identity of whatever a folder holds now, damaged or not."""
        found = cls(folder, "")
        found.sha256 = found._sha256()
        return found

    def __str__(self) -> str:
        return str(self.folder)

    def check(self) -> None:
        """Check that the folder still holds the dataset.

        A manifest with the same bytes in another file is that of the same dataset.

        Raises:
            ChangedError: it holds another one, or none.

        """
        with contextlib.suppress(OSError):
            if self._seen == _File.of(os.lstat(self.folder / MANIFEST_FILE)):
                return
        if self._sha256() != self.sha256:
            raise changed(str(self.folder))

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Check, after the files of a block were opened, that they are those of the dataset.

        A missing or damaged file of a dataset that was replaced is no fault of that file.

        Raises:
            ChangedError: as `check`.

        """
        try:
            yield
        except (DatasetError, RecordError, OSError):
            self.check()
            raise
        self.check()

    def _sha256(self) -> str:
        """Return the hash of the manifest's file, and note the file."""
        self._seen = None
        try:
            with open_regular(self.folder / MANIFEST_FILE) as file:
                data = read_open(file, MAX_DOCUMENT_BYTES)
                found = hashlib.sha256(data).hexdigest()
                if found == self.sha256:
                    self._seen = _File.of(os.fstat(file.fileno()))
        except OSError:
            return ""
        return found


def check_same(place: object, manifest: Manifest, sha256: str) -> None:
    """Check that the manifest read at a place is the one with a hash that was read there before.

    Raises:
        ChangedError: it is another one.

    """
    if manifest.sha256 != sha256:
        raise changed(str(place))
