"""`shardprep.download`: download an archive from Kaggle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shardprep.api.arguments import mount_notice
from shardprep.api.progress import Show
from shardprep.api.watched import watched
from shardprep.dataset.card import Card
from shardprep.recipe.options import ARGUMENTS, RUN_OPTIONS, Option
from shardprep.storage.url import local_path


@dataclass(frozen=True, slots=True, repr=False)
class Download(Card):
    """An archive from Kaggle."""

    path: Path
    """The archive, or the folder where Kaggle has mounted its content."""
    num_bytes: int
    """Size of the archive in bytes; 0 for a mounted folder."""
    is_mounted: bool = False
    """True if Kaggle has mounted the content, so that nothing was downloaded."""


OPTIONS = {
    "slug": Option(
        "COMPETITION, OWNER/DATASET, OWNER/DATASET/VERSION, or the address of its page.", ARGUMENTS
    ),
    "to": Option("Folder for the archive.", metavar="DIR", shown="cache"),
    "refresh": RUN_OPTIONS["refresh"],
}


def download(
    slug: str,
    *,
    to: str | Path | None = None,
    refresh: bool = False,
    progress: Show | bool = False,
) -> Download:
    """Download an archive from Kaggle, check every byte, and keep it in the cache or in `to`.

    Data that Kaggle has mounted is not downloaded, unless `to` or `refresh` is given.

    Raises:
        SourceError: the archive cannot be downloaded. The error says why and what to do.

    """
    from shardprep.source.kaggle import download as kaggle
    from shardprep.source.kaggle.download import mounted
    from shardprep.source.kaggle.ref import parse_ref

    folder = None if to is None else local_path(to)
    ref = parse_ref(slug)
    with watched(progress) as watch:
        place = mounted(ref) if folder is None and not refresh else None
        if place is not None:
            watch.notice(mount_notice(ref, place))
            return Download(place, 0, is_mounted=True)
        path = kaggle.download(ref, to=folder, refresh=refresh, watcher=watch)
    return Download(path, path.stat().st_size)
