"""`shardprep repack`: merge datasets, or write their records into other shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardprep.cli.options import Call

EPILOG = (
    "Examples:\n\nshardprep repack tfrecords/pets --shards 64 --version 1.0.1\n\n"
    "shardprep repack tfrecords/cats tfrecords/dogs --name pets\n\n"
    "shardprep repack tfrecords/pets --split 'train[:10%]' --name pets_small\n\n"
    "shardprep repack tfrecords/pets --out s3://bucket/sets"
)


def run(call: Call, *, as_json: bool) -> None:
    """Merge datasets, or write the records of a dataset into other shards, without decoding.

    Classes are merged by name. If several datasets have the same key, the name of the dataset is
    put in front. Every checksum is compared. If the command is interrupted, run it again.
    """
    from shardprep.cli.show.summary import show_result
    from shardprep.writer.record_copier import share_heap

    share_heap()
    show_result(call(), as_json=as_json)
