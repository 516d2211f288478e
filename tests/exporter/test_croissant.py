"""mlcroissant validates the Croissant description of datasets and exports, and loads records."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import shardprep
from shardprep import reader
from shardprep.dataset.item_table import read_items
from shardprep.dataset.schema import ANNOTATIONS
from shardprep.errors import BuildError, RecipeError
from tests.support.annotated import annotated
from tests.support.builders import build, png, write_folder
from tests.support.command import error_of, run

# mlcroissant uses what rdflib and pandas will remove.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ODD = "größe in cm~"
NAMES = ("cat", "a dog/ü")


@pytest.fixture(name="pets", scope="module")
def _pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with classes, an unlabelled split, a rejected file and a column of an odd name."""
    folder = tmp_path_factory.mktemp("pets")
    images = {
        f"{'train' if i else 'test'}/{name}.png": png(seed=i) for i, name in enumerate("abcdef")
    }
    rows = [f"{name},{NAMES[i % 2]},{i}" for i, name in enumerate(images) if i]
    table = "\n".join([f"id,label,{ODD}", *rows]).encode()
    members = {**images, "train/g.png": images["train/b.png"][:60], "t.csv": table}
    return build(
        write_folder(folder / "source", members), folder / "sets", name="pets", shards=2,
        size="24x24", format="png", labels="csv:t.csv:id:label", columns=ODD, max_rejected=0.5,
    ).path  # fmt: skip


@pytest.fixture(name="marked", scope="module")
def _marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return annotated(tmp_path_factory.mktemp("marked"), *ANNOTATIONS)


def opened(path: Path) -> Any:
    """Return the dataset as mlcroissant opens it, after a check for errors."""
    mlc = pytest.importorskip("mlcroissant")
    found = mlc.Dataset(path)
    assert not found.metadata.ctx.issues.errors
    return found


def records(path: Path, table: str) -> list[dict[str, Any]]:
    return [
        {name.partition("/")[2]: _plain(value) for name, value in row.items()}
        for row in opened(path).records(table)
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name.rpartition("/")[2]: one for name, one in value.items()}
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize("name", ["pets", "marked"])
def test_a_dataset_is_described_by_its_files_and_its_item_table(
    name: str, request: pytest.FixtureRequest
) -> None:
    dataset = request.getfixturevalue(name)
    done = shardprep.export(dataset, croissant=True)
    assert (done.path, done.was_there) == (dataset / "croissant.json", False)
    assert shardprep.export(dataset, croissant=True).was_there
    facts = json.loads(done.path.read_bytes())
    files = {one["contentUrl"]: one for one in facts["distribution"]}
    shards = {path.name for path in dataset.glob("*.tfrecord*")}
    assert files.keys() == shards | {"items.parquet"}
    for url, one in files.items():
        data = (dataset / url).read_bytes()
        assert one["sha256"] == hashlib.sha256(data).hexdigest()
        assert one["contentSize"] == f"{len(data)} B"
    rows, items = records(done.path, "items"), read_items(dataset / "items.parquet").to_pylist()
    assert len(rows) == len(items)
    (table,) = (one for one in facts["recordSet"] if one["name"] == "items")
    titles = {one["@id"].partition("/")[2]: one["name"] for one in table["field"]}
    for row, item in zip(rows, items, strict=True):
        assert row == {key: item[titles[key]] for key in row}
    assert {*items[0]} - {*titles.values()} <= {"dropped", "mask_pixels", "lost_points"}  # maps
    splits = {row["name"]: row["num_records"] for row in records(done.path, "splits")}
    assert splits == done.splits
    assert shardprep.verify(dataset).problems == ()


def test_the_images_and_labels_of_a_parquet_export_are_those_of_the_reader(
    pets: Path, tmp_path: Path
) -> None:
    out = shardprep.export(pets, to="parquet", out=tmp_path / "hub").path
    rows = records(out / "croissant.json", "records")
    names = {
        row["index"]: row["name"] for row in records(out / "croissant.json", "classes_of_label")
    }
    assert sorted(names.values()) == sorted(NAMES)
    for split in ("train", "test"):
        own = reader.Dataset(pets, split, as_supervised=False)
        mine = [row for row in rows if row["split"] == split]
        assert len(mine) == len(own) > 0
        by_key = {row["key"]: row for row in mine}
        for item in own:
            row = by_key[item["image/filename"]]
            assert np.array_equal(np.asarray(row["image"]), item["image"])
            assert row["label"] == item["label"]
            cell = item[ODD] if item["label"] >= 0 else None
            assert [row[key] for key in row if key.startswith("gr~")] == [cell]
    assert {row["label"] for row in rows} == {-1, 0, 1}


def test_boxes_masks_and_keypoints_of_a_parquet_export_are_those_of_the_files(
    marked: Path, tmp_path: Path
) -> None:
    out = shardprep.export(marked, to="parquet", out=tmp_path / "hub", split="train").path
    stored = [row for path in sorted(out.glob("data/*")) for row in pq.read_table(path).to_pylist()]
    rows = records(out / "croissant.json", "records")
    assert len(rows) == len(stored) > 0
    for row, expected in zip(rows, stored, strict=True):
        assert np.asarray(row["segmentation_mask"]).shape == (row["height"], row["width"])
        del expected["objects"]["segmentation"]  # Croissant has no structs in lists
        assert row["objects"] == expected["objects"]
        points = [one for one in expected if one.startswith(("centre_", "corner_"))]
        assert [row[one] for one in points] == [expected[one] for one in points] != []


def test_a_description_that_would_be_lost_or_wrong_is_refused(pets: Path, tmp_path: Path) -> None:
    path = shardprep.export(pets, croissant=True).path
    text = path.read_bytes()
    path.write_bytes(text.replace(b'"sc:Dataset"', b'"sc:Dataset", "license": "CC0"'))
    with pytest.raises(BuildError, match=r"croissant\.json: already exists with other content"):
        shardprep.export(pets, croissant=True)
    assert not shardprep.export(pets, croissant=True, overwrite=True).was_there
    assert path.read_bytes() == text
    both: dict[str, Any] = {"to": "folder", "croissant": True}
    for options in ({}, both):
        with pytest.raises(RecipeError, match=r"give either (--)?to or (--)?croissant"):
            shardprep.export(pets, **options)
    done = run("export", str(pets), "--croissant", "--split", "train", cwd=tmp_path)
    assert "--croissant: describes the whole dataset" in error_of(done, 2)
