"""Archives on this machine: the mounts of a Kaggle notebook, and the cache of downloads.

A download goes to a hidden folder next to its final place, one process at a time. The archive gets
its name after it is checked. A note records size and time of the checked archive, so that later
runs send no request.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.errors import OptionName, SourceError
from shardprep.storage.atomic_file import sync_folder, write_durably
from shardprep.storage.cache import cache_root
from shardprep.storage.lock import take

if TYPE_CHECKING:
    from shardprep.source.kaggle.ref import KaggleRef

MOUNT_ROOT = Path("/kaggle/input")
_MOUNT_PARENTS = ("competitions", "datasets", "models")
"""Parent folders of mounts; older notebooks mount directly below `MOUNT_ROOT`."""
_STATE = ".shardprep"


def mounted(ref: KaggleRef) -> Path | None:
    """Return the folder where Kaggle has mounted an archive, or None.

    Neither place shows the version of a dataset; the older place does not show its owner either.
    """
    places = [MOUNT_ROOT / "competitions" / ref.name]
    if ref.kind == "dataset":
        places = [MOUNT_ROOT / "datasets" / ref.owner / ref.name]
    if ref.name not in _MOUNT_PARENTS:
        places.append(MOUNT_ROOT / ref.name)
    return next((place for place in places if os.path.isdir(place)), None)  # noqa: PTH112 - never raises


def cache_folder(ref: KaggleRef) -> Path:
    """Return the cache folder of an archive."""
    return cache_root() / ref.cache_path


def cached_archive(ref: KaggleRef) -> Path | None:
    """Return the checked archive in the cache, or None. Sends no request."""
    return ArchiveFolder(cache_folder(ref), ref).checked()


class ArchiveFolder:
    """The folder of an archive, with the notes about it in `.shardprep`."""

    def __init__(self, folder: Path, ref: KaggleRef) -> None:
        self.folder = folder
        self.ref = ref
        self.state = folder / _STATE / ref.cache_path
        self.incoming = self.state / "incoming"
        self._note = self.state / "checked.json"
        self._noted_at_start = self._noted_at()

    def checked(self) -> Path | None:
        """Return the archive if size and time show that it is the checked one."""
        note = self._read_note()
        path = self.folder / str(note.get("file"))
        return path if path.is_file() and self._describe(path) == note else None

    def archive_since_start(self, *, refresh: bool) -> Path | None:
        """Return the archive that another process downloaded while this one waited for the lock."""
        is_news = self._noted_at() != self._noted_at_start
        return self.checked() if is_news or not refresh else None

    def refuse_to_replace(self) -> None:
        """Raise SourceError rather than overwrite a file that may belong to the user."""
        path = self.folder / f"{self.ref.name}.zip"
        if path.exists():
            raise SourceError(
                str(path),
                f"exists already, and is not a checked download of {self.ref}",
                f"use this file, move it away, or replace it with {OptionName('refresh')}",
            )

    @contextlib.contextmanager
    def locked(self, notice: Callable[[str], None]) -> Iterator[int]:
        """Lock the folder, and yield the descriptor of the lock."""
        self.state.mkdir(parents=True, exist_ok=True)
        with (self.state / "lock").open("w") as lock:
            try:
                take(lock.fileno())
            except BlockingIOError:
                notice(f"another process is downloading {self.ref}: waiting for it")
                take(lock.fileno(), waits=True)
            self.incoming.mkdir(exist_ok=True)
            yield lock.fileno()

    def keep(self, archive: Path) -> Path:
        """Give a checked archive its name. The note is written first: alone it proves nothing."""
        with archive.open("rb") as file:
            os.fsync(file.fileno())
        path = self.folder / archive.name
        write_durably(self._note, json.dumps(self._describe(archive)).encode())
        archive.replace(path)
        sync_folder(self.folder)
        shutil.rmtree(self.incoming, ignore_errors=True)
        return path

    def _describe(self, path: Path) -> dict[str, object]:
        status = path.stat()
        return {
            "source": str(self.ref),
            "file": path.name,
            "num_bytes": status.st_size,
            "mtime_ns": status.st_mtime_ns,
        }

    def _noted_at(self) -> int:
        return self._note.stat().st_mtime_ns if self._note.exists() else 0

    def _read_note(self) -> dict[str, object]:
        try:
            note = json.loads(self._note.read_text())
        except (OSError, ValueError):
            return {}
        return note if isinstance(note, dict) else {}
