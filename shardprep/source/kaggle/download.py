"""Download an archive, with retries, until it is complete and checked."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from shardprep.errors import OptionName, SourceError
from shardprep.progress import Watcher
from shardprep.source.kaggle.archive_cache import ArchiveFolder, cache_folder, cached_archive
from shardprep.source.kaggle.archive_check import damage, is_page
from shardprep.source.kaggle.client_error import ClientError, RetryLimits, explained, no_credentials
from shardprep.source.kaggle.client_process import arrived, bytes_in, check_space, receive
from shardprep.source.kaggle.credentials import credentials
from shardprep.source.kaggle.ref import KaggleRef


def download(
    ref: KaggleRef,
    *,
    to: Path | None = None,
    refresh: bool = False,
    watcher: Watcher,
    retries: RetryLimits | None = None,
) -> Path:
    """Return the checked archive of a ref, downloading it if necessary.

    An interrupted download is continued. A second process waits for the first and uses its archive.

    Args:
        ref: what to download.
        to: folder for the archive, instead of the cache.
        refresh: download it again; the old archive stays until the new one is complete.
        watcher: gets the progress.
        retries: limits of the retries.

    Raises:
        SourceError: the archive cannot be downloaded.

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
        raise SourceError(
            place, f"{error.strerror}", f"choose another {OptionName('to')} or SHARDPREP_CACHE"
        ) from error


def _copied(archive: Path, folder: Path, watcher: Watcher) -> Path:
    num_bytes = archive.stat().st_size
    watcher.start("copying", num_bytes, "bytes")
    check_space(folder, archive.name, num_bytes)
    copy = folder / archive.name
    shutil.copy2(archive, copy)
    watcher.advance(num_bytes)
    return copy


def _whole(archives: ArchiveFolder, lock: int, watcher: Watcher, retries: RetryLimits) -> Path:
    """Download and check the archive; a damaged one is downloaded once more from the start."""
    ref = archives.ref
    found = ""
    for _ in range(2):
        _download_once(archives, lock, watcher, retries)
        paths = arrived(archives.incoming)
        found = damage(paths[0], watcher) if len(paths) == 1 else "not an archive"
        if not found:
            return paths[0]
        got_page = len(paths) == 1 and is_page(paths[0])
        _clear(archives.incoming)
        if got_page:
            raise SourceError(
                str(ref),
                "Kaggle sent a web page instead of an archive",
                f"open {ref.page} in a browser: Kaggle may ask you to confirm something first",
            )
        watcher.notice(f"{ref} arrived damaged ({found}): starting again from zero")
    raise SourceError(
        str(ref),
        f"arrived damaged twice ({found})",
        f"try again later, or download it from {ref.page} in a browser and give that file",
    )


def _download_once(
    archives: ArchiveFolder, lock: int, watcher: Watcher, retries: RetryLimits
) -> None:
    """Run the client until it is done, with retries for passing faults."""
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
            seen = fault.after_answer() if most > at_first else fault
            wait = retries.wait_s(seen, failures)
            if wait is None:
                raise error from fault
        watcher.notice(f"{error.what}: trying again in {wait:,.0f} s")
        time.sleep(wait)


def _clear(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
