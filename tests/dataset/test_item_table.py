"""Tables of written shards: what is kept of them until a build is finished."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

ROUND_TRIP = """
import os, sys
from pathlib import Path
from shardprep.dataset import item_table
from shardprep.writer import shard
from shardprep.storage.folder import LocalFolder

rows = item_table.COLUMNS.empty_table()
before = len(os.listdir("/proc/self/task"))
folder = LocalFolder(Path(sys.argv[1]))
shard.write_skipped(folder, [])
read = shard.read_skipped(folder)
assert read is not None and read.equals(rows)
item_table.write_items(folder, "items.parquet", [rows])
assert item_table.read_items(Path(sys.argv[1]) / "items.parquet", ["key"]).num_rows == 0
assert len(os.listdir("/proc/self/task")) == before
"""


@pytest.mark.thorough
def test_reading_a_table_leaves_no_thread_that_could_abort_the_end_of_a_command(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ROUND_TRIP, str(tmp_path)],
        env=os.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
