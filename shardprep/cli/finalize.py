"""`shardprep finalize`: join the parts of a build into a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardprep.cli.options import Call

EPILOG = "Examples:\n\nshardprep finalize\n\nshardprep finalize tfrecords/dogs_vs_cats"


def run(call: Call, *, as_json: bool) -> None:
    """Join the shards of `build --part` into a dataset, when all parts are done.

    It needs neither the source nor options. If shards are missing, it names the parts to run again.
    """
    from shardprep.cli.show.summary import show_refused, show_result
    from shardprep.writer.finalize import TooManyRejectedError

    try:
        result = call()
    except TooManyRejectedError as error:
        show_refused(error)
        raise
    show_result(result, as_json=as_json)
