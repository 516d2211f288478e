"""Downloads of archives, tried again until one is whole and in the cache, or an error ends it."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardprep.errors import SourceError
from shardprep.source.kaggle.archive_cache import Shelf, cache_folder, cached_archive
from shardprep.source.kaggle.client_process import Order, arrived, bytes_in, run_client
from shardprep.source.kaggle.credentials import credentials
from shardprep.source.kaggle.errors import ClientError, explained, no_credentials
from shardprep.source.kaggle.integrity import damage, is_page

if TYPE_CHECKING:
    from pathlib import Path

    from shardprep.source.kaggle.ref import KaggleRef
    from shardprep.source.kaggle.watcher import DownloadWatcher

_KEEP_FREE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits of a download: seconds to wait and number of attempts."""

    silence_s: float = 60.0
    """Without a byte or a sign of life, after which the client is ended."""
    attempts: int = 5
    """In a row that bring nothing new; one that does starts the count again."""
    backoff_s: float = 2.0
    """Before the second attempt; twice as much before each further one."""
    longest_wait_s: float = 300.0
    """A server that asks for more is not waited for."""


def download(
    ref: KaggleRef,
    *,
    to: Path | None = None,
    refresh: bool = False,
    watcher: DownloadWatcher,
    patience: Patience | None = None,
) -> Path:
    """Return the checked archive of a ref, downloaded unless it is there already.

    An interrupted download is taken up again. A second process waits for the first and takes what
    that one has brought.

    Args:
        ref: what to download.
        to: a folder of the user's to put it into, instead of the cache.
        refresh: download it even if it is there; what is there stays until the new one is whole.
        watcher: told how it goes.
        patience: how long and how often to try.

    Raises:
        SourceError: it cannot be had; says why and what to do.

    """
    shelf = Shelf(to or cache_folder(ref), ref)
    if not refresh and (archive := shelf.checked()):
        return archive
    in_cache = cached_archive(ref) if to and not refresh else None
    known = credentials()
    if not (in_cache or known or ref.kind == "dataset"):  # a public dataset needs no account
        raise no_credentials(ref)
    try:
        with shelf.locked(watcher) as lock:
            if archive := shelf.archive_since_start(refresh=refresh):
                return archive
            if to and not refresh:
                shelf.refuse_to_replace()
            if in_cache:
                return shelf.keep(_copied(in_cache, shelf.incoming, watcher))
            watcher.notice(f"downloading {ref} to {shelf.folder}")
            return shelf.keep(_whole(shelf, lock, watcher, patience or Patience()))
    except OSError as error:
        place = str(error.filename or shelf.folder)
        raise SourceError(
            place, f"{error.strerror}", "choose another --to or SHARDPREP_CACHE"
        ) from error


def _copied(archive: Path, folder: Path, watcher: DownloadWatcher) -> Path:
    num_bytes = archive.stat().st_size
    watcher.begin("copying", num_bytes)
    _check_space(folder, archive.name, num_bytes)
    copy = folder / archive.name
    shutil.copy2(archive, copy)
    watcher.progress(num_bytes)
    return copy


def _whole(shelf: Shelf, lock: int, watcher: DownloadWatcher, patience: Patience) -> Path:
    """Download until every checksum holds; damage costs a second download from zero, no third."""
    ref = shelf.ref
    found = ""
    for _ in range(2):
        _download_once(shelf, lock, watcher, patience)
        paths = arrived(shelf.incoming)
        found = damage(paths[0], watcher) if len(paths) == 1 else "no archive"
        if not found:
            return paths[0]
        got_page = len(paths) == 1 and is_page(paths[0])
        _clear(shelf.incoming)
        if got_page:
            raise SourceError(
                str(ref),
                "Kaggle sent a web page instead of an archive",
                f"open {ref.page} in a browser: something there may have to be confirmed first",
            )
        watcher.notice(f"{ref} arrived damaged ({found}): starting again from zero")
    raise SourceError(
        str(ref),
        f"arrived damaged twice ({found})",
        f"try again later, or download it from {ref.page} in a browser and give that file",
    )


def _download_once(shelf: Shelf, lock: int, watcher: DownloadWatcher, patience: Patience) -> None:
    """Let the client run until it says that it is done, again and again while that may help."""
    order = Order(shelf.ref.kind, shelf.ref.slug, shelf.incoming)
    gauge = _Gauge(shelf, watcher)
    most = bytes_in(shelf.incoming)
    failures = 0
    while True:
        try:
            return run_client(order, gauge, lock=lock, silence_s=patience.silence_s)
        except ClientError as fault:
            if fault.spoils_file or bytes_in(shelf.incoming) < gauge.most:
                _clear(shelf.incoming)
            have = bytes_in(shelf.incoming)
            failures = failures + 1 if have <= most else 1
            most = max(most, have)
            error = explained(shelf.ref, fault)
            wait = patience.backoff_s * 2 ** (failures - 1)
            if fault.retry_after_s is not None:
                wait = fault.retry_after_s
            if (
                not fault.is_passing
                or failures >= patience.attempts
                or wait > patience.longest_wait_s
            ):
                raise error from fault
        watcher.notice(f"{error.what}: trying again in {wait:,.0f} s")
        time.sleep(wait)


class _Gauge:
    """Passes on what the client reports, and ends it before the disk is full."""

    def __init__(self, shelf: Shelf, watcher: DownloadWatcher) -> None:
        self.shelf = shelf
        self.watcher = watcher
        self.most = 0
        """The largest that the file has been; it shrinks where the client wrote over it."""
        self.num_bytes: int | None = None

    def size(self, num_bytes: int | None) -> None:
        self.num_bytes = num_bytes
        self.watcher.begin("downloading", num_bytes)

    def progress(self, num_bytes: int) -> None:
        self.most = max(self.most, num_bytes)
        missing = max(0, self.num_bytes - num_bytes) if self.num_bytes else 0
        _check_space(self.shelf.incoming, str(self.shelf.ref), missing)
        self.watcher.progress(num_bytes)


def _check_space(folder: Path, name: str, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < num_bytes + _KEEP_FREE_BYTES:
        raise SourceError(
            name,
            f"does not fit: {num_bytes / 1e6:,.0f} MB are still to come, and {folder} has "
            f"{free / 1e6:,.0f} MB left",
            "free some space, or choose another place with --to or SHARDPREP_CACHE",
        )


def _clear(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
