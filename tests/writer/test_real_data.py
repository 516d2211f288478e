"""Real archives, as people have them. Skipped where they are not at hand."""

import json
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from shardprep.dataset.manifest import load_manifest
from shardprep.dataset.tfrecord import read_records
from shardprep.recipe.recipe import make_recipe
from shardprep.writer.build import build_dataset
from shardprep.writer.engine.job import Workers
from shardprep.writer.engine.pool import write_shards
from shardprep.writer.finalize import BuildResult
from tests.support.builders import SHARED_DATA, Quiet
from tests.support.command import run_process

pytestmark = pytest.mark.skipif(not SHARED_DATA.is_dir(), reason="the real archives are not here")


def build(name: str, out: Path, **keys: Any) -> BuildResult:
    recipe = make_recipe({"source": str(SHARED_DATA / name), "out": str(out), **keys}, "test")
    return build_dataset(recipe, Workers(write_shards, 2), Quiet())


@pytest.fixture(name="cats", scope="module")
def _cats(tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    out = tmp_path_factory.mktemp("cats")
    return build("dogs-vs-cats.zip", out, shards=20, size="64x64")


@pytest.mark.thorough
def test_dogs_vs_cats_gives_20_even_shards_and_an_unlabelled_test(cats: BuildResult) -> None:
    train, test = cats.manifest.splits["train"], cats.manifest.splits["test"]
    assert (train.num_records, len(train.shards), train.num_unlabelled) == (1800, 20, 0)
    assert {shard.num_records for shard in train.shards} == {90}
    assert (test.num_records, test.num_unlabelled) == (200, 200)
    assert cats.manifest.labels.names == ("cat", "dog")
    assert train.label_counts == {"cat": 900, "dog": 900}


@pytest.mark.thorough
def test_tfds_tensorflow_and_our_reader_give_the_same_dogs_and_cats(cats: BuildResult) -> None:
    import tensorflow as tf
    import tensorflow_datasets as tfds

    from shardprep import reader

    features = {
        "image": tf.io.FixedLenFeature((), tf.string),
        "label": tf.io.FixedLenFeature((), tf.int64),
        "image/filename": tf.io.FixedLenFeature((), tf.string),
    }
    for split, number in (("train", 1800), ("test", 200)):
        files = sorted(map(str, cats.path.glob(f"dogs_vs_cats-{split}.tfrecord*")))
        (records,) = tf.data.TFRecordDataset(files).batch(number + 1)
        plain = tf.io.parse_example(records, features)
        pairs = Counter(
            zip(plain["image/filename"].numpy(), plain["label"].numpy().tolist(), strict=True)
        )
        assert sum(pairs.values()) == number
        assert {label for _, label in pairs} == ({-1} if split == "test" else {0, 1})
        for builder in (
            tfds.builder_from_directory(cats.path),
            tfds.builder("dogs_vs_cats", data_dir=cats.path.parents[1]),
        ):
            skip = {"image": tfds.decode.SkipDecoding()}
            seen = tfds.as_numpy(builder.as_dataset(split=split, decoders=skip))
            assert Counter((e["image/filename"], int(e["label"])) for e in seen) == pairs
        ours = reader.load(cats.path, split=split, as_supervised=False, batch_size=100)
        found = Counter(
            pair
            for batch in ours.as_numpy_iterator()
            for pair in zip(batch["image/filename"], batch["label"].tolist(), strict=True)
        )
        assert found == pairs
    supervised = tfds.builder_from_directory(cats.path).as_dataset("train", as_supervised=True)
    image, label = next(iter(supervised))
    assert (image.shape, image.dtype, label.dtype) == ((64, 64, 3), tf.uint8, tf.int64)


@pytest.mark.parametrize("labels", ["auto", "csv:labels.csv"])
def test_dog_breeds_are_read_from_the_table_in_the_archive(tmp_path: Path, labels: str) -> None:
    manifest = build("dog-breed-identification.zip", tmp_path, labels=labels, size="64x64").manifest
    train, test = manifest.splits["train"], manifest.splits["test"]
    assert (train.num_records, train.num_unlabelled) == (500, 0)
    assert (test.num_records, test.num_unlabelled) == (60, 60)
    assert len(manifest.labels.names) == 120
    assert manifest.labels.num_rows_without_image == 9722


@pytest.mark.thorough
def test_blood_cells_have_several_labels_each(tmp_path: Path) -> None:
    result = build("bccd.zip", tmp_path, labels="csv:derived_multilabel.csv:id:labels")
    assert result.manifest.labels.names == ("Platelets", "RBC", "WBC")
    rows = pq.read_table(result.path / "items.parquet", columns=["key", "labels"]).to_pylist()
    by_key = {row["key"]: row["labels"] for row in rows}
    assert by_key["JPEGImages/BloodImage_00000.jpg"] == [1, 2]


@pytest.mark.thorough
def test_odd_and_hostile_images_all_end_as_written_or_rejected(tmp_path: Path) -> None:
    """None of each fourth hangs or is lost; `image/test_policy.py` processes all in one process."""
    source = tmp_path / "torture_images.tar"
    with (
        tarfile.open(SHARED_DATA / "torture-images.tar") as every,
        tarfile.open(source, "w") as some,
    ):
        for member in filter(tarfile.TarInfo.isfile, every.getmembers()[::4]):
            some.addfile(member, every.extractfile(member))
    done = run_process(
        "build", source, "--max-rejected", "100%", "--json",
        "--labels", "none", "--size", "64x64", "--timeout", 20, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "tfrecords" / "torture_images" / "1.0.0"
    rows = pq.read_table(folder / "items.parquet").to_pylist()
    manifest = load_manifest(folder)
    totals = manifest.totals
    assert json.loads(done.stdout)["manifest"]["totals"]["num_inputs"] == totals.num_inputs > 625
    assert totals.rejected.get("timeout", 0) == 0
    assert len(rows) == totals.num_inputs
    assert totals.num_inputs == totals.num_written + totals.num_rejected + totals.num_skipped
    assert all(row["status"] == "written" or row["reason"] for row in rows)
    assert totals.num_written > 225
    for shard in manifest.splits["train"].shards:
        with (folder / shard.name).open("rb") as file:
            assert sum(1 for _ in read_records(file, shard.name)) == shard.num_records
