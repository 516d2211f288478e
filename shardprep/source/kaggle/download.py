"""Download an archive, with retries, until it is complete and checked; find downloaded archives.

One process at a time downloads into a hidden folder below the final folder, and moves the archive
out after checking it. A note records size and time of the checked archive, so that later runs send
no request. In a Kaggle notebook, archives are mounted.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from shardprep.errors import OptionName, SourceError
from shardprep.progress import Watch
from shardprep.source.kaggle.archive_check import WEB_PAGE, damage
from shardprep.source.kaggle.client_error import ClientError, RetryLimits, explained, no_credentials
from shardprep.source.kaggle.client_process import arrived, bytes_in, check_space, receive
from shardprep.source.kaggle.credentials import credentials
from shardprep.source.kaggle.ref import KaggleRef
from shardprep.storage.atomic_file import sync_folder, write_durably
from shardprep.storage.cache import cache_root
from shardprep.storage.lock import take

MOUNT_ROOT = Path("/kaggle/input")
_MOUNT_PARENTS = ("competitions", "datasets", "models")
"""Parent folders of mounts; older notebooks mount directly below `MOUNT_ROOT`."""


def mounted(ref: KaggleRef) -> Path | None:
    """Return the folder where Kaggle has mounted an archive of any version, or None."""
    places = [MOUNT_ROOT / "competitions" / ref.name]
    if ref.kind == "dataset":
        places = [MOUNT_ROOT / "datasets" / ref.owner / ref.name]
    if ref.name not in _MOUNT_PARENTS:
        places.append(MOUNT_ROOT / ref.name)
    return next((place for place in places if os.path.isdir(place)), None)  # noqa: PTH112 - never raises


def cache_folder(ref: KaggleRef) -> Path:
    """Return the cache folder of an archive; it may not exist."""
    return cache_root() / ref.cache_path


def cached_archive(ref: KaggleRef) -> Path | None:
    """Return the checked archive in the cache, or None."""
    return ArchiveFolder(cache_folder(ref), ref).checked()


class ArchiveFolder:
    """A folder for the archive `ref`. Its note, lock and partial files are in `.shardprep`."""

    def __init__(self, folder: Path, ref: KaggleRef) -> None:
        self.folder = folder
        self.ref = ref
        self.state = folder / ".shardprep" / ref.cache_path
        self.incoming = self.state / "incoming"
        self._note = self.state / "checked.json"
        self._noted_at_start = self._noted_at()

    def checked(self) -> Path | None:
        """Return the archive if its size and time match the note, otherwise None."""
        try:
            note = json.loads(self._note.read_text())
            path = self.folder / note["file"]
        except (OSError, ValueError, LookupError, TypeError):  # missing or damaged
            return None
        return path if path.is_file() and self._describe(path) == note else None

    def archive_since_start(self, *, refresh: bool) -> Path | None:
        """Return the checked archive, or None.

        With `refresh`, return only an archive that was checked after this object was created, which
        another process may have downloaded.
        """
        is_news = self._noted_at() != self._noted_at_start
        return self.checked() if is_news or not refresh else None

    def refuse_to_replace(self) -> None:
        """Raise SourceError if the archive's path exists: the file may belong to the user."""
        path = self.folder / f"{self.ref.name}.zip"
        if path.exists():
            what = f"exists already, and is not a checked download of {self.ref}"
            hint = f"use this file, move it away, or replace it with {OptionName('refresh')}"
            raise SourceError(str(path), what, hint)

    @contextlib.contextmanager
    def locked(self, notice: Callable[[str], None]) -> Iterator[int]:
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
        """Move a checked archive into the folder, and return its new path."""
        with archive.open("rb") as file:
            os.fsync(file.fileno())
        path = self.folder / archive.name
        # First the note: it has no effect without the file that it describes.
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


def download(
    ref: KaggleRef,
    *,
    to: Path | None = None,
    refresh: bool = False,
    watcher: Watch,
    retries: RetryLimits | None = None,
) -> Path:
    """Return the checked archive in `to` or the cache, after downloading it if necessary.

    An archive in the cache is copied to `to`. An interrupted download is continued. A second
    process waits for the first and uses its archive. With `refresh`, the archive is downloaded
    again, and replaces the old one after the check. SourceError if the download fails.
    """
    archives = ArchiveFolder(to or cache_folder(ref), ref)
    if not refresh and (archive := archives.checked()):
        return archive
    in_cache = cached_archive(ref) if to and not refresh else None
    known = credentials()
    if not (in_cache or known or ref.kind == "dataset"):  # a public dataset needs no account
        raise no_credentials(ref)
    try:
        with archives.locked(watcher.notice) as lock:
            if archive := archives.archive_since_start(refresh=refresh):
                return archive
            if to and not refresh:
                archives.refuse_to_replace()
            if in_cache:
                return archives.keep(_copied(in_cache, archives.incoming, watcher))
            watcher.notice(f"downloading {ref} to {archives.folder}")
            return archives.keep(_whole(archives, lock, watcher, retries or RetryLimits()))
    except OSError as error:
        place = str(error.filename or archives.folder)
        hint = f"choose another SHARDPREP_CACHE (download: {OptionName('to')})"
        raise SourceError(place, f"cannot be written ({error.strerror})", hint) from error


def _copied(archive: Path, folder: Path, watcher: Watch) -> Path:
    num_bytes = archive.stat().st_size
    watcher.start("copying", num_bytes, "bytes")
    check_space(folder, archive.name, num_bytes)
    copy = folder / archive.name
    shutil.copy2(archive, copy)
    watcher.advance(num_bytes)
    return copy


def _whole(archives: ArchiveFolder, lock: int, watcher: Watch, retries: RetryLimits) -> Path:
    """Download the archive, check it and return it; repeat once from the start if it is damaged."""
    ref = archives.ref
    found = ""
    for _ in range(2):
        _download_once(archives, lock, watcher, retries)
        paths = arrived(archives.incoming)
        found = damage(paths[0], watcher) if len(paths) == 1 else "not an archive"
        if not found:
            return paths[0]
        _clear(archives.incoming)
        if found == WEB_PAGE:
            what = "Kaggle sent a web page instead of an archive"
            hint = f"open {ref.page} in a browser: Kaggle may ask you to confirm something first"
            raise SourceError(str(ref), what, hint)
        watcher.notice(f"{ref} arrived damaged ({found}): downloading it again")
    hint = f"try again later, or download the archive from {ref.page} and give that file"
    raise SourceError(str(ref), f"arrived damaged twice ({found})", hint)


def _download_once(
    archives: ArchiveFolder, lock: int, watcher: Watch, retries: RetryLimits
) -> None:
    ref, folder = archives.ref, archives.incoming
    have = most = at_first = bytes_in(folder)
    failures = 0
    while True:
        try:
            return receive(ref, folder, watcher, lock=lock, silence_s=retries.silence_s)
        except ClientError as fault:
            if fault.spoils_file or bytes_in(folder) < have:  # the client overwrote it
                _clear(folder)
            have = bytes_in(folder)
            failures = failures + 1 if have <= most else 1
            most = max(most, have)
            error = explained(ref, fault)
            retries.pause(fault, failures, error, watcher, has_answered=most > at_first)


def _clear(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
