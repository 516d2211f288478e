"""Receive the archive that the client writes into a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardprep.errors import OptionName, SourceError
from shardprep.progress import Watcher
from shardprep.source.kaggle.client_error import ClientError
from shardprep.source.kaggle.client_process import client_reports
from shardprep.storage.space import shortage

if TYPE_CHECKING:
    from pathlib import Path

    from shardprep.source.kaggle.ref import KaggleRef

_PARTIAL_SUFFIX = ".kaggle-partial"
"""Suffix of the client's note next to an incomplete file."""


def receive(ref: KaggleRef, folder: Path, watcher: Watcher, *, lock: int, silence_s: float) -> None:
    """Download an archive with the client, which continues a partial file that still matches.

    Args:
        ref: the archive.
        folder: folder of the archive, with only the client's files.
        watcher: gets the size and the progress; if it raises, the child is ended.
        lock: descriptor of a locked file; the child inherits it.
        silence_s: seconds without data or a report after which the child is ended.

    Raises:
        ClientError: the client failed, died or was silent.
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
    """Return the number of downloaded bytes in a folder."""
    return sum(path.stat().st_size for path in arrived(folder))


def arrived(folder: Path) -> list[Path]:
    """Return the files that the client wrote, complete or not."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in paths if path.suffix != _PARTIAL_SUFFIX]


def check_space(folder: Path, name: str, num_bytes: int) -> None:
    """Check that a folder has space for the missing bytes."""
    if lacking := shortage(folder, num_bytes):
        hint = (
            f"free some space, or choose another place with {OptionName('to')} or SHARDPREP_CACHE"
        )
        raise SourceError(name, f"does not fit {folder}: {lacking}", hint)
