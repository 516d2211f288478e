"""`shardprep download`: download an archive from Kaggle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardprep.cli.streams import console, picked, print_json

if TYPE_CHECKING:
    from shardprep.cli.options import Call

EPILOG = (
    "Examples:\n\nshardprep download dogs-vs-cats\n\n"
    "shardprep download kaggle:owner/dataset --to archives"
)


def run(call: Call, *, as_json: bool) -> None:
    """Download an archive from Kaggle, check every byte of it, and keep it.

    Data that Kaggle has mounted below /kaggle/input is not downloaded, unless you give --to or
    --refresh.
    """
    result = call()
    if as_json:
        from shardprep.api.json_types import DownloadJson

        print_json(picked(DownloadJson, result))
    else:
        console().notice(str(result.path))
