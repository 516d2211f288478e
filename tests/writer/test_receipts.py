"""A receipt with rows of another shard is ignored."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shardprep.dataset.item_table import COLUMNS
from shardprep.dataset.manifest import Shard
from shardprep.storage.folder import LocalFolder
from shardprep.writer.shard import Receipt, ReceiptFacts, read_receipt, write_receipt
from shardprep.writer.workspace.files import Folders

NAME = "pets-train.tfrecord-00000-of-00001"
SHARD = Shard(name=NAME, num_records=2, num_bytes=50, sha256="0" * 64)
REJECTED = {"key": "c.jpg", "status": "rejected", "kind": "empty", "split": "train", "shard": NAME}
WRITTEN: dict[str, Any] = {
    "status": "written", "split": "train", "shard": NAME, "original_width": 4,
    "original_height": 3, "original_sha256": "0123456789abcdef" * 4,
}  # fmt: skip
ROWS = (
    WRITTEN | {"key": "a.jpg", "record": 0, "offset": 0, "length": 20},
    REJECTED,
    WRITTEN | {"key": "b.jpg", "record": 1, "offset": 20, "length": 30},
)


def read_back(folder: Path, rows: list[dict[str, Any]], shard: Shard) -> Receipt | None:
    folders = Folders(LocalFolder(folder), LocalFolder(folder / ".parts"))
    facts = ReceiptFacts(shard=shard, mark="", build="")
    write_receipt(folders.state, facts, pa.Table.from_pylist(rows, schema=COLUMNS))
    return read_receipt(folders, shard.name)


def test_a_receipt_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = read_back(tmp_path, [*ROWS], SHARD)
    assert found is not None
    assert found.table.to_pylist() == pa.Table.from_pylist([*ROWS], schema=COLUMNS).to_pylist()


def test_a_shard_of_rejections_alone_has_a_receipt(tmp_path: Path) -> None:
    shard = SHARD.model_copy(update={"num_records": 0, "num_bytes": 0})
    assert read_back(tmp_path, [REJECTED], shard) is not None


@pytest.mark.parametrize(
    "other",
    [
        {"status": "skipped"},
        {"key": None},
        {"shard": "pets-train.tfrecord-00001-of-00002"},
        {"record": 2},
        {"record": None},
        {"offset": 21},
        {"length": 31},
        {"length": None},
        {"original_width": 0},
        {"original_height": None},
        {"original_sha256": "0123456789ABCDEF" * 4},
        {"original_sha256": "0123456789abcdef" * 4 + "\n"},
        {"original_sha256": None},
    ],
    ids=str,
)
def test_rows_that_are_not_those_of_the_shard_are_no_receipt(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    rows = [*ROWS[:2], ROWS[2] | other]
    assert read_back(tmp_path, rows, SHARD) is None
