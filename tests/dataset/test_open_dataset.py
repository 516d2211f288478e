"""The opened dataset: the same value for a folder and for object storage."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import shardprep
from shardprep import reader
from shardprep.dataset import example
from shardprep.dataset.item_table import read_items
from shardprep.dataset.local_files import read_index
from shardprep.dataset.open_dataset import OpenDataset, open_dataset
from shardprep.dataset.schema import FILENAME, parse_schema
from shardprep.errors import DatasetError, RecipeError, RecordError, ShardprepError
from shardprep.storage.store import ChangedError
from tests.support.builders import animals, build, tree, write, write_folder
from tests.support.examples import flipped
from tests.support.object_store import Bucket


@pytest.fixture(name="pets")
def _pets(tmp_path: Path) -> Path:
    source = write_folder(tmp_path / "source", animals(12))
    return build(source, tmp_path / "sets", name="pets", shards=3, size="16x16").path


def keys(dataset: OpenDataset) -> list[str]:
    """Return the keys of all records, read by their numbers."""
    total = dataset.manifest.totals.num_written
    read = [example.decode(dataset.read(number))[FILENAME] for number in range(total)]
    return [value.decode() for (value,) in read if isinstance(value, bytes)]


def test_records_and_rows_have_the_same_order_in_a_folder_and_in_object_storage(
    pets: Path, bucket: Bucket
) -> None:
    for name, data in tree(pets).items():
        bucket.put(f"sets/pets/1.0.0/{name}", data)
    for place, is_remote in ((pets, False), (f"{bucket.url}/sets", True)):
        dataset = open_dataset(place)
        assert dataset.is_remote == is_remote
        rows = dataset.record_rows(("key", "offset"))
        assert keys(dataset) == rows["key"].to_pylist() != sorted(rows["key"].to_pylist())
        assert keys(pickle.loads(pickle.dumps(dataset))) == keys(dataset)
        assert dataset.item_rows().equals(read_items(pets / "items.parquet"))
        with pytest.raises(IndexError):
            dataset.read(len(rows))
    assert open_dataset(pets).folder("shardprep bench") == pets
    with pytest.raises(RecipeError, match="shardprep fetch"):
        open_dataset(f"{bucket.url}/sets").folder("shardprep bench")


def test_a_damaged_record_is_named_and_the_others_are_read(pets: Path) -> None:
    shard = next(iter(open_dataset(pets).manifest.shards.values()))
    start = read_index(pets, shard)[1, 0].item()
    write(pets / shard.name, flipped((pets / shard.name).read_bytes(), 8 * (start + 40)))
    dataset = open_dataset(pets)
    with pytest.raises(RecordError, match=rf"{shard.name}, record 1: offset {start:,}: "):
        dataset.read(1)
    assert dataset.read(0)
    assert dataset.read(2)


def test_every_read_of_a_replaced_dataset_is_an_error(pets: Path, tmp_path: Path) -> None:
    dataset = open_dataset(pets)
    dataset.mark.check()
    other = build(tmp_path / "source", tmp_path / "other", name="pets", shards=2, size="8x8").path
    shutil.rmtree(pets)
    shutil.copytree(other, pets)
    for read in (
        lambda: dataset.read(0),
        dataset.item_rows,
        dataset.item_file,
        lambda: dataset.files.check_shards([*dataset.manifest.shards.values()]),
        dataset.mark.check,
    ):
        with pytest.raises(ChangedError):
            read()


def test_an_item_table_of_other_records_or_columns_is_an_error(pets: Path) -> None:
    dataset = open_dataset(pets)
    with pytest.raises(DatasetError, match="no column 'colour'; use one of key, status"):
        dataset.item_rows(("colour",))
    write(pets / "items.parquet", (pets / "items.parquet").read_bytes() + b"PAR1")
    with pytest.raises(DatasetError, match=r"items\.parquet"):
        dataset.item_rows(intact=True)


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


def test_a_newer_format_asks_for_a_newer_program_and_not_for_a_new_build(pets: Path) -> None:
    newer = {
        name: json.dumps({**json.loads((pets / name).read_text()), "format_version": 2, "x": {}})
        for name in ("manifest.json", "schema.json")
    }
    write(pets / "manifest.json", newer["manifest.json"].encode())
    for read in (
        lambda: shardprep.inspect(pets),
        lambda: shardprep.report(pets),
        lambda: reader.Dataset(pets, "train"),
        lambda: parse_schema(newer["schema.json"], "schema.json"),
    ):
        with pytest.raises(ShardprepError, match="format_version") as caught:
            read()
        assert caught.value.hint == "install a newer version of shardprep"
