"""`shardprep download`: an archive from Kaggle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from shardprep.cli import options as o
from shardprep.cli.streams import bar, console, picked, print_json
from shardprep.storage.url import local_path

EPILOG = (
    "Examples:\n\nshardprep download dogs-vs-cats\n\n"
    "shardprep download kaggle:owner/dataset --to archives"
)


def download(
    slug: Annotated[
        str,
        o.argument(
            "COMPETITION, OWNER/DATASET, OWNER/DATASET/VERSION, or the address of its page."
        ),
    ],
    to: Annotated[
        Path | None,
        o.value("Folder for the archive.", "DIR", "cache", parser=local_path),
    ] = None,
    refresh: o.Refresh = False,
    as_json: o.Json = False,
) -> None:
    """Download an archive from Kaggle, check every byte of it, and keep it.

    Data that Kaggle has mounted below /kaggle/input is not downloaded, unless you give --to or
    --refresh.
    """
    from shardprep.api.download import download as download_archive

    with bar() as progress:
        found = download_archive(slug, to=to, refresh=refresh, progress=progress)
    if as_json:
        from shardprep.api.json_types import DownloadJson

        print_json(picked(DownloadJson, found))
    else:
        console().notice(str(found.path))
