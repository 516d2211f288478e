"""`shardprep upload`: upload a dataset to Kaggle, and check the uploaded copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardprep.cli.streams import console, print_json
from shardprep.errors import counted

if TYPE_CHECKING:
    from shardprep.api.upload import Upload
    from shardprep.cli.options import Call

EPILOG = (
    "Examples:\n\nshardprep upload tfrecords/pets kaggle:owner/pets-shards\n\n"
    "shardprep upload tfrecords/pets owner/pets-shards --public --license CC-BY-4.0"
)


def run(call: Call, *, as_json: bool) -> None:
    """Upload a dataset to Kaggle, as a new private dataset or a new version.

    The dataset is verified first, and compared with Kaggle's copy at the end. If the upload is
    interrupted, the same command continues it; files that Kaggle already has are not sent again.
    """
    done = call()
    if as_json:
        print_json(done)
    else:
        _show(done)


def _show(done: Upload) -> None:
    from shardprep.storage.space import megabytes

    console().notice(done.page)
    seen = {True: "private", False: "public", None: "visibility unknown"}[done.is_private]
    how = "already exists" if done.was_there else f"{done.elapsed_s:,.0f} s"
    checked = "every byte is equal" if done.is_checked else "not downloaded for a check"
    files = f"{counted(done.num_files, 'file')}, {megabytes(done.num_bytes)}"
    console().notice(f"version {done.version}, {seen}: {files}, {how}; {checked}")
