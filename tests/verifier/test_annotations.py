"""Every damage of boxes, masks and their counts is a problem of `verify`."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from PIL import Image

from shardprep.dataset import example, tfrecord
from shardprep.dataset.annotated_pictures import annotated_pictures
from shardprep.dataset.describe import read_facts
from shardprep.dataset.item_table import read_items, rows_by_shard
from shardprep.dataset.local_files import LocalFiles
from shardprep.dataset.manifest import Manifest, load_manifest
from shardprep.dataset.open_dataset import open_dataset
from shardprep.dataset.schema import (
    ANNOTATIONS,
    BOX,
    BOX_LABEL,
    CROWD,
    KEYPOINTS,
    KEYPOINTS_VISIBLE,
    MASK,
    OBJECT_MASK,
    POINTS,
    POINTS_VISIBLE,
)
from shardprep.storage.folder import LocalFolder
from shardprep.verifier.dataset import verify_dataset
from shardprep.verifier.problem import Problem
from shardprep.verifier.repair import repair_dataset
from shardprep.writer.shard import ReceiptFacts, read_receipt, write_receipt
from tests.support.annotated import ANNOTATED_COLUMNS, HEIGHT, MARKED, WIDTH, annotated, grey_png
from tests.support.builders import Quiet, Told, build, encoded, tree, write, write_folder
from tests.support.examples import fuzzed, texts

SHARD = "marked-train.tfrecord-00000-of-00003"
KEY = "train/d.png"
"""An image of three objects."""


def problems(folder: Path, *, decode: bool = False) -> list[Problem]:
    return list(
        verify_dataset(LocalFiles.at(folder), decode=decode, num_workers=1, watcher=Told()).problems
    )


@pytest.fixture(name="good", scope="module")
def _good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with every feature; nobody may change it."""
    return annotated(tmp_path_factory.mktemp("good"), *ANNOTATIONS)


@pytest.fixture(name="folder")
def _folder(good: Path, tmp_path: Path) -> Path:
    return shutil.copytree(good, tmp_path / "marked" / "1.0.0")


def damaged(folder: Path, name: str, change: Callable[[list[Any]], list[Any]]) -> None:
    """Change a feature of the record of `KEY`; the frame is correct."""
    for path in sorted(folder.glob("*.tfrecord-*")):
        with path.open("rb") as file:
            records = [record.payload for record in tfrecord.read_records(file, path.name)]
        for number, payload in enumerate(records):
            features = example.decode(payload)
            if features["image/filename"] == [KEY.encode()]:
                changed = {**features, name: change(list(features[name]))}
                records[number] = example.encode(changed, {name: "bytes"})
        write(path, b"".join(map(tfrecord.frame, records)))


def png(mask: Any, mode: str | None = None) -> bytes:
    image = Image.fromarray(np.asarray(mask))
    return encoded(image.convert(mode) if mode else image, "PNG")


ONES = np.ones((HEIGHT, WIDTH), np.uint8)
WIDE = ONES.astype(np.uint16)
BIT = encoded(Image.new("1", (WIDTH, HEIGHT)), "PNG")

DAMAGES: dict[str, tuple[str, Callable[[list[Any]], list[Any]], str, str]] = {
    "a side lost": (BOX, lambda v: v[:-1], "objects", "has 11 values, which is not 4"),
    "a box lost": (BOX, lambda v: v[4:], "objects", "objects/bbox of 2, objects/label of 3"),
    "a box added": (BOX, lambda v: [*v, *v[:4]], "objects", "objects/bbox of 4"),
    "min and max swapped": (BOX, lambda v: [v[2], v[1], v[0], *v[3:]], "objects", "box 0 (0.625,"),
    "of no height": (BOX, lambda v: [*v[:6], v[4], *v[7:]], "objects", "box 1 "),
    "past the edge": (BOX, lambda v: [*v[:11], 1.0000001], "objects", "box 2 "),
    "below 0": (BOX, lambda v: [-1e-7, *v[1:]], "objects", "box 0 (-1e-07"),
    "not a number": (BOX, lambda v: [*v[:5], float("nan"), *v[6:]], "objects", "nan"),
    "without end": (BOX, lambda v: [*v[:6], float("inf"), *v[7:]], "objects", "inf"),
    "several boxes": (BOX, lambda v: [2.0] * len(v), "objects", "nor are 2 more"),
    "boxes of whole numbers": (BOX, lambda v: [0] * len(v), "example", "holds int"),
    "a label lost": (BOX_LABEL, lambda v: v[1:], "objects", "objects/label of 2"),
    "a label of no class": (BOX_LABEL, lambda v: [2, *v[1:]], "label", "2 is not a class"),
    "no label": (BOX_LABEL, lambda v: [*v[:2], -1], "label", "-1 is not a class"),
    "another label": (BOX_LABEL, lambda v: [1, *v[1:]], "items", "[1, 0, 1], but items.parquet"),
    "a flag of 2": (CROWD, lambda v: [2, *v[1:]], "objects", "2 is not 0 or 1"),
    "a flag lost": (CROWD, lambda v: v[1:], "objects", "objects/is_crowd of 2"),
    "a keypoint lost": (KEYPOINTS, lambda v: v[:-2], "objects", "values, which is not 6 for each"),
    "an object without keypoints": (KEYPOINTS, lambda v: v[6:], "objects", "keypoints of 2"),
    "a keypoint outside": (KEYPOINTS, lambda v: [1.5, *v[1:]], "objects", "1.5 is not from 0 to 1"),
    "a keypoint of no place": (KEYPOINTS, lambda v: [float("nan"), *v[1:]], "objects", "nan is"),
    "a visibility of 3": (KEYPOINTS_VISIBLE, lambda v: [3, *v[1:]], "objects", "3 is not 0, 1 or"),
    "an unseen keypoint": (KEYPOINTS_VISIBLE, lambda v: [0, *v[1:]], "objects", "of visibility 0"),
    "another visibility": (
        KEYPOINTS_VISIBLE, lambda v: [*v[:2], 1, *v[3:]], "items", "[3, 2, 2, 1], but items",
    ),
    "a point lost": (POINTS, lambda v: v[:2], "example", "has 2 values, not 4"),
    "no point": (POINTS_VISIBLE, lambda _: [2, 2], "items", "items.parquet says [2, 2, 2, 1]"),
    "a mask lost": (OBJECT_MASK, lambda v: v[1:], "objects", "objects/mask of 2"),
    "no masks": (OBJECT_MASK, lambda _: [], "objects", "objects/mask of 0"),
    "a mask of another size": (
        OBJECT_MASK, lambda v: [v[0], png(ONES[1:]), v[2]], "mask",
        "objects/mask 1 is 64x47 pixels, its image 64x48",
    ),
    "a mask of 1 bit": (OBJECT_MASK, lambda v: [BIT, *v[1:]], "mask", "has 1 bits a pixel, not 8"),
    "a palette": (MASK, lambda _: [png(ONES, "P")], "mask", "is a PNG of a palette, not of grey"),
    "colours": (MASK, lambda _: [png(ONES, "RGB")], "mask", "is a PNG of colours, not of grey"),
    "16 bits": (MASK, lambda _: [png(WIDE)], "mask", "has 16 bits a pixel, not 8"),
    "a mask turned": (MASK, lambda _: [png(ONES.T)], "mask", "is 48x64 pixels, its image 64x48"),
    "a JPEG": (MASK, lambda _: [encoded(Image.fromarray(ONES), "JPEG")], "mask", "is not a PNG"),
    "a cut mask": (MASK, lambda v: [v[0][:-3]], "mask", "is a PNG without an end"),
    "an empty mask": (MASK, lambda _: [b""], "mask", "is not a PNG"),
    "two masks": (MASK, lambda v: v * 2, "example", "has 2 values, not 1"),
}  # fmt: skip
"""Damage → feature, change, and the kind and words of the problem."""

PIXELS: dict[str, tuple[str, Callable[[list[Any]], list[Any]], str, str]] = {
    "a value of no class": (
        MASK, lambda _: [png(ONES * 3)], "mask", "pixels of 3 which is not a class; there are 3",
    ),
    "an object of 255": (
        OBJECT_MASK, lambda v: [*v[:2], png(ONES * 255)], "mask",
        "objects/mask 2 has pixels of 255",
    ),
    "other pixels": (MASK, lambda _: [png(ONES)], "items", "{1: 3072}, but items.parquet says {"),
    "bytes of a mask": (
        MASK, lambda v: [v[0][:50] + b"\0\0\0\0" + v[0][54:]], "mask", "does not decode",
    ),
}  # fmt: skip


@pytest.mark.parametrize("features", [ANNOTATIONS, (BOX, BOX_LABEL), (MASK,)])
def test_a_good_dataset_has_no_problem(tmp_path: Path, features: tuple[str, ...]) -> None:
    assert problems(annotated(tmp_path, *features), decode=True) == []


def of_key(found: list[Problem], kind: str) -> str:
    """Return the texts of the problems of a kind of the record of `KEY`."""
    return "; ".join(one.what for one in found if (one.kind, one.key) == (kind, KEY))


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_annotation_is_named_with_the_key_of_its_record(folder: Path, what: str) -> None:
    name, change, kind, said = DAMAGES[what]
    damaged(folder, name, change)
    found = problems(folder)
    assert said in of_key(found, kind)
    assert {one.key for one in found} <= {KEY, *MARKED, ""}


@pytest.mark.parametrize("what", PIXELS)
def test_damage_of_pixels_is_named_where_images_are_decoded(folder: Path, what: str) -> None:
    name, change, kind, said = PIXELS[what]
    damaged(folder, name, change)
    assert not of_key(problems(folder), kind)
    assert said in of_key(problems(folder, decode=True), kind)


def test_a_record_of_many_bad_boxes_is_one_problem(folder: Path) -> None:
    damaged(folder, BOX, lambda _: [1.0, 0.0, 0.0, 1.0] * 50_000)
    found = [one for one in problems(folder) if one.kind == "objects" and one.key == KEY]
    assert len(found) == 2
    assert all(len(one.what) < 300 for one in found)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("num_objects", 2, "says that num_objects is 2, but lists 3"),
        ("num_dropped", 1, "says that num_dropped is 1, but lists 0"),
        ("object_labels", [0, 0], "says that num_objects is 3, but lists 2"),
        ("object_labels", [0, 1, 1], "is [0, 0, 1], but items.parquet says [0, 1, 1]"),
        ("dropped", [("outside", 3)], "annotations.train.dropped.outside is 1, not 4"),
        ("num_clipped", 7, "annotations.train.num_clipped is 1, not 8"),
        ("mask_pixels", [(0, 3072)], "annotations.train.masks.pixels.ground is "),
        ("num_clipped", -7, "cannot be counted"),
    ],
)
def test_a_row_that_contradicts_its_record_is_a_problem(
    folder: Path, column: str, value: Any, said: str
) -> None:
    rows = pq.read_table(folder / "items.parquet").to_pylist()
    next(row for row in rows if row["key"] == KEY)[column] = value
    table = pa.Table.from_pylist(rows, schema=ANNOTATED_COLUMNS)
    pq.write_table(table, folder / "items.parquet")
    found = [one.what for one in problems(folder) if one.kind == "items"]
    assert any(said in what for what in found), found


def test_counts_of_the_manifest_are_counted_again(folder: Path) -> None:
    """Its own hash is right again: only the rows can tell."""
    document = json.loads((folder / "manifest.json").read_text())
    train = document["annotations"]["train"]
    train["objects"]["objects"] = {"red": 3, "blue": 4}
    train["masks"]["num_ignored"] = 1
    write(folder / "manifest.json", Manifest.model_validate(document).dumps().encode())
    found = " ".join(one.what for one in problems(folder))
    assert "annotations.train.objects.objects.red is 3, not 4" in found
    assert f"annotations.train.masks.num_ignored is 1, not {5 * WIDTH}" in found
    bare = load_manifest(folder).model_copy(update={"annotations": {}})
    write(folder / "manifest.json", bare.dumps().encode())
    assert any("annotations is not there" in one.what for one in problems(folder))


def test_a_receipt_keeps_the_annotation_columns(folder: Path, tmp_path: Path) -> None:
    """A repair writes the same manifest only with these columns of its intact shards."""
    shard = load_manifest(folder).shards[SHARD]
    table = rows_by_shard(read_items(folder / "items.parquet"))[SHARD]
    folders: Any = SimpleNamespace(state=LocalFolder(tmp_path / "state"), build="")
    facts = ReceiptFacts(shard=shard, mark="", build="")
    write_receipt(folders.state, facts, table.replace_schema_metadata(None))
    found = read_receipt(folders, SHARD)
    assert found is not None
    assert found.table.schema.names == ANNOTATED_COLUMNS.names
    assert found.table.to_pylist() == table.to_pylist()


def test_a_repaired_dataset_has_the_same_counts(tmp_path: Path) -> None:
    """The rows of intact shards give the counts of their masks."""
    members = {f"images/{key[6:]}": one.image() for key, one in MARKED.items()}
    members |= {f"masks/{key[6:]}": grey_png(one.classes()) for key, one in MARKED.items()}
    source = write_folder(tmp_path / "source", members)
    folder = build(source, tmp_path / "out", masks="masks/{stem}.png", size="none", shards=3).path
    before = tree(folder)
    assert load_manifest(folder).annotations
    shard = next(iter(load_manifest(folder).shards))
    (folder / shard).unlink()
    damage = verify_dataset(LocalFiles.at(folder), decode=False, num_workers=1, watcher=Told())
    repair_dataset(damage, str(source), num_workers=1, watcher=Quiet())
    assert tree(folder) == before
    assert problems(folder, decode=True) == []


INT64 = st.integers(-(2**63), 2**63 - 1)
CELLS: dict[str, st.SearchStrategy[Any]] = {
    "num_objects": INT64,
    "object_labels": st.lists(st.one_of(st.none(), INT64), max_size=4),
    "num_dropped": INT64,
    "dropped": st.lists(st.tuples(texts(max_size=5), st.one_of(st.none(), INT64)), max_size=3),
    "num_clipped": INT64,
    "mask_key": texts(max_size=9),
    "mask_pixels": st.lists(st.tuples(INT64, st.one_of(st.none(), INT64)), max_size=3),
}


@fuzzed(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(CELLS)), st.data())
def test_any_cell_of_the_annotation_columns_is_valid_or_a_problem(
    folder: Path, column: str, data: st.DataObject
) -> None:
    rows = pq.read_table(folder / "items.parquet").to_pylist()
    for row in rows:
        row[column] = data.draw(st.one_of(st.none(), CELLS[column]))
    try:
        table = pa.Table.from_pylist(rows, schema=ANNOTATED_COLUMNS)
    except UnicodeEncodeError:
        return
    pq.write_table(table, folder / "items.parquet")
    assert "hash" in {one.kind for one in problems(folder)}
    dataset = open_dataset(folder)
    read_facts(dataset)
    list(annotated_pictures(dataset, 3))
