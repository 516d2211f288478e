"""The archive that the client writes, as it arrives in a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardprep.errors import SourceError
from shardprep.progress import Watcher
from shardprep.source.kaggle.client_error import ClientError
from shardprep.source.kaggle.client_process import client_reports
from shardprep.storage.space import shortage

if TYPE_CHECKING:
    from pathlib import Path

    from shardprep.source.kaggle.ref import KaggleRef

_PARTIAL_SUFFIX = ".kaggle-partial"
"""Suffix of the note that the client keeps beside a file until it is complete."""


def receive(ref: KaggleRef, folder: Path, watcher: Watcher, *, lock: int, silence_s: float) -> None:
    """Let the client fetch an archive; it goes on with a partial file that still fits.

    Args:
        ref: the archive.
        folder: the folder for it, with nothing in it but what the client left there.
        watcher: told the size and every change of the file; where it raises, the child is ended.
        lock: descriptor of a locked file; the child holds it too, as long as it writes.
        silence_s: seconds without a byte or a report after which the child is ended.

    Raises:
        ClientError: it failed, died or was silent.
        SourceError: the archive does not fit on the disk.

    """
    order = ["download", ref.kind, ref.slug, str(folder)]
    num_bytes = bytes_in(folder)
    total: int | None = None
    in_body = False
    with client_reports(
        order, folder, silence_s=silence_s, lock=lock, progress=lambda: bytes_in(folder)
    ) as reports:
        try:
            for report in reports:
                before, num_bytes = num_bytes, bytes_in(folder)
                if "size" in report:
                    in_body, total = True, report["size"]
                    check_space(folder, str(ref), max(0, (total or 0) - num_bytes))
                    watcher.start("downloading", total, "bytes", num_bytes)
                elif num_bytes != before:
                    check_space(folder, str(ref), max(0, (total or 0) - num_bytes))
                    watcher.advance(num_bytes - before)
        except ClientError as fault:
            fault.in_body = in_body
            raise


def bytes_in(folder: Path) -> int:
    """Return how many bytes of the archive have arrived in a folder."""
    return sum(path.stat().st_size for path in arrived(folder))


def arrived(folder: Path) -> list[Path]:
    """Return the files that the client wrote, complete or not."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in paths if path.suffix != _PARTIAL_SUFFIX]


def check_space(folder: Path, name: str, num_bytes: int) -> None:
    """Check that a folder has room for bytes that are still to come."""
    if lacking := shortage(folder, num_bytes):
        hint = "free some space, or choose another place with --to or SHARDPREP_CACHE"
        raise SourceError(name, f"does not fit {folder}: {lacking}", hint)
