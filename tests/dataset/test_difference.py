"""`diff` names each change of each item, as plain dictionaries of the item tables have them."""

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardprep
from shardprep.dataset import item_table
from shardprep.dataset.diff import MEANINGS, Difference, ItemChange, compare
from shardprep.dataset.folder import ITEMS_FILE
from shardprep.dataset.open_dataset import open_dataset
from shardprep.dataset.schema import BOX, BOX_LABEL, MASK, OBJECT_MASK
from tests.support import annotated
from tests.support.annotated import MARKED, Marked, rewritten
from tests.support.builders import animals, build, jpeg, tree, write, write_folder, zip_bytes
from tests.support.command import run
from tests.support.examples import examples
from tests.support.json_page import printed
from tests.support.object_store import Bucket

KEYS: dict[str, Any] = {"shards": 1, "size": "16x16", "format": "png"}


def made(folder: Path, images: dict[str, bytes], **keys: Any) -> Path:
    source = write(folder / "pets.zip", zip_bytes(images))
    return build(source, folder / "out", **{**KEYS, **keys}).path


def all_changes(before: Path, after: Path) -> list[ItemChange]:
    found = compare(open_dataset(before), open_dataset(after))
    return [one for kind in MEANINGS for one in sorted(found.some(kind, 1000))]


def test_the_same_recipe_gives_the_same_records(tmp_path: Path) -> None:
    one, two = (made(tmp_path / name, animals()) for name in "ab")
    found = compare(open_dataset(one), open_dataset(two))
    assert found.is_equal
    assert (found.num_before, found.num_after, found.num_same) == (12, 12, 12)
    assert {*found.num_changes.values()} == {0}
    assert (found.recipe, found.features, found.changes.num_rows) == ((), (), 0)


def test_each_kind_of_change_is_named(tmp_path: Path) -> None:
    images = animals()
    table = "".join(f"{key},{key.split('/')[1][:3]}\n" for key in images)
    before = {**images, "labels.csv": f"id,label\n{table}".encode()}
    table = table.replace("cat.1.jpg,cat", "cat.1.jpg,wolf") + "train/new.jpg,dog\n"
    after = {**images, "train/new.jpg": jpeg(seed=99), "labels.csv": f"id,label\n{table}".encode()}
    del after["train/cat.0.jpg"]
    after["train/cat.2.jpg"] = jpeg(seed=77)
    after["train/dog.4.jpg"] = after["train/dog.4.jpg"][:100]
    one = made(tmp_path / "a", before, labels="csv:labels.csv:id:label")
    two = made(tmp_path / "b", after, labels="csv:labels.csv:id:label", max_rejected=1.0)
    found = compare(open_dataset(one), open_dataset(two))
    added, gone, cut, label, source = all_changes(one, two)
    assert added == ("train/new.jpg", "added", "", "train")
    assert gone == ("train/cat.0.jpg", "removed", "train", "")
    assert cut[:3] == ("train/dog.4.jpg", "removed", "train")
    assert cut.after.startswith("rejected: the file ends before its image")
    assert label == ("train/cat.1.jpg", "target", "cat", "wolf")
    assert source[:2] == ("train/cat.2.jpg", "source")
    hashes = [hashlib.sha256(side["train/cat.2.jpg"]).hexdigest() for side in (before, after)]
    assert [source.before, source.after] == hashes
    assert found.classes_added == ("wolf",)
    assert not found.is_equal
    assert found.num_same == 12 - 2 - 2


def test_another_split_and_another_stored_size_are_named(tmp_path: Path) -> None:
    one = made(tmp_path / "a", animals(40))
    other = {"split": "train=0.5,test=0.5", "size": "12x12", "shards": None, "dedup": True}
    two = made(tmp_path / "b", animals(40), **other)
    found = compare(open_dataset(one), open_dataset(two))
    assert found.num_changes["split"] == 20
    assert found.num_changes["record"] > 30
    assert MEANINGS["record"].endswith("stored with another size, fit or encoding")
    assert {(one.before, one.after) for one in found.some("split", 99)} == {("train", "test")}
    assert "size (16x16, now 12x12)" in found.recipe
    assert "shards (1, now not given)" in found.recipe
    assert "dedup (no, now yes)" in found.recipe
    assert any(line.startswith("image: shape 16x16x3, now 12x12x3") for line in found.features)


def test_targets_are_compared_by_the_names_of_their_classes(tmp_path: Path) -> None:
    one = made(tmp_path / "a", animals(), labels="prefix")
    two = made(tmp_path / "b", animals(), labels="prefix", classes="dog,cat")
    found = compare(open_dataset(one), open_dataset(two))
    assert found.num_changes["target"] == 0
    assert not found.is_equal
    three = made(tmp_path / "c", animals(), labels="prefix", class_map="dog=wolf")
    assert compare(open_dataset(one), open_dataset(three)).num_changes["target"] == 6


FEATURES = (BOX, BOX_LABEL, OBJECT_MASK, MASK)


class Hollow(Marked):
    """Objects with a hole of one pixel in each outline."""

    def masks(self) -> list[Any]:
        found = super().masks()
        for (top, left, *_), mask in zip(self.rectangles, found, strict=True):
            mask[top + 1, left + 1] = 0
        return found


class Mirrored(Marked):
    """Objects whose mask of classes is upside down: it has as many pixels of each class."""

    def classes(self) -> Any:
        return super().classes()[::-1]


@pytest.fixture(name="marked", scope="module")
def _marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return marked_set(tmp_path_factory.mktemp("marked"), {})


def marked_set(folder: Path, changed: Mapping[str, Marked], **keys: Any) -> Path:
    """Return a dataset of the images of `MARKED`, some of them with other objects."""
    source = write_folder(folder / "source", {key: one.image() for key, one in MARKED.items()})
    plain = build(source, folder / "out", **{**KEYS, "labels": "none", "size": "64x48", **keys})
    return rewritten(plain.path, FEATURES, {**MARKED, **changed})


OUTLINES = {key: marked.rectangles for key, marked in MARKED.items()}
CHANGES: dict[str, tuple[str, Marked, str, str]] = {
    "moved box": (
        "train/c.png", Marked(((0, 0, 48, 60),), (1,)), "blue 0,0 64x48", "blue 0,0 60x48"
    ),
    "class of an object": (
        "train/d.png", Marked(OUTLINES["train/d.png"], (0, 1, 1)),
        "red 10,10 21x20", "blue 10,10 21x20",
    ),
    "outline": (
        "test/f.png", Hollow(OUTLINES["test/f.png"], (1,)),
        "blue 20,20 30x20 with 600 pixels", "blue 20,20 30x20 with 599 pixels",
    ),
    "mask of as many pixels": (
        "train/a.png", Mirrored(OUTLINES["train/a.png"], (0, 1), 1, {"zero size": 2}),
        "", "(1,320 pixels differ)",
    ),
    "new object": ("train/b.png", Marked(((1, 2, 3, 4),), (0,)), "", "red 2,1 2x2"),
}  # fmt: skip
"""Change → its item, the new objects of the item, and the words before and after."""


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_object_or_mask_is_a_change_of_its_item(
    change: str, marked: Path, tmp_path: Path
) -> None:
    """In the same order of records, or with another seed and more shards."""
    key, other, before, after = CHANGES[change]
    is_mask = isinstance(other, Mirrored)
    kinds = ["mask"] if is_mask else ["objects", "mask"]
    keys = {"seed": 7, "shards": 3} if is_mask or change == "outline" else {}
    one, two = marked, marked_set(tmp_path / "b", {key: other}, **keys)
    changes = all_changes(one, two)
    assert [(found.key, found.kind) for found in changes] == [(key, kind) for kind in kinds]
    assert (changes[0].before, changes[0].after) == (before, after)
    found = compare(open_dataset(one), open_dataset(two))
    assert (found.num_same, found.is_equal) == (len(MARKED) - 1, False)


@pytest.mark.parametrize("instances", [True, False], ids=["masks of objects", "a mask"])
def test_another_size_is_no_change_of_objects_and_masks(instances: object, tmp_path: Path) -> None:
    """Places agree within half a pixel of the coarser grid; a real change is shown alone."""
    keys = {**KEYS, "size": "64x48", "fit": "stretch", "boxes": "coco", "masks": "coco"}
    keys |= {"instances": instances, "min_visible": 0.0}
    images = annotated.outlined(animals(4))
    document = json.loads(images["annotations.json"])
    first, *_ = document["annotations"]
    first["category_id"] = 3 - first["category_id"]
    other = images | {"annotations.json": json.dumps(document).encode()}
    one, two = (made(tmp_path / name, each, **keys) for name, each in (("a", images), ("b", other)))
    key = document["images"][first["image_id"]]["file_name"]
    for size in ("32x24", "128x96", "21x60"):
        small, changed = (
            shardprep.repack(path, tmp_path / size / path.parts[-4], size=size, workers=1).path
            for path in (one, two)
        )
        assert {change.kind for change in all_changes(one, small)} == {"record"}
        found = [change for change in all_changes(one, changed) if change.kind != "record"]
        assert {change.key for change in found} == {key}
        words = found[0].kind, found[0].before[:5], found[0].after[:5]
        assert words == ("objects", "cell ", "dust ")


def test_objects_are_compared_by_the_names_of_their_classes(marked: Path, tmp_path: Path) -> None:
    with mock.patch.object(annotated, "CLASSES", ("green", "blue")):
        two = marked_set(tmp_path / "b", {}, seed=3)
    of_red = {key for key, image in MARKED.items() if 0 in image.labels}
    assert {c.key for c in all_changes(marked, two) if c.kind == "objects"} == of_red


def test_objects_are_compared_by_the_features_of_both_datasets(
    marked: Path, tmp_path: Path
) -> None:
    source = write_folder(tmp_path / "source", {key: one.image() for key, one in MARKED.items()})
    plain = build(source, tmp_path / "out", **{**KEYS, "labels": "none", "size": "64x48"})
    without_masks = rewritten(plain.path, (BOX, BOX_LABEL), MARKED)
    found = compare(open_dataset(marked), open_dataset(without_masks))
    assert found.num_same == len(MARKED)
    assert len(found.features) == 2, found.features


def test_other_pixels_of_the_same_number_of_bytes_are_a_change(tmp_path: Path) -> None:
    keys = {"format": "raw", "size": "16x16", "labels": "none"}
    one, two = (made(tmp_path / fit, animals(3), fit=fit, **keys) for fit in ("stretch", "crop"))
    changes = all_changes(one, two)
    assert [change.kind for change in changes] == ["record"] * 3
    assert {change.before for change in changes} == {change.after for change in changes}
    shown = run("diff", one, two, cwd=tmp_path)
    assert shown.returncode == 3
    assert "bytes, other pixels" in shown.stdout
    assert shown.stdout.endswith("3 records before, 3 after: 0 items unchanged\n")


def test_another_value_of_a_further_feature_is_a_change(tmp_path: Path) -> None:
    images = animals(4)
    tables = [
        "id,label,age\n" + "".join(f"{key},cat,{age}\n" for key in images) for age in (41, 42)
    ]
    keys = {"labels": "csv:t.csv:id:label", "columns": "age"}
    one, two = (
        made(tmp_path / name, {**images, "t.csv": table.encode()}, **keys)
        for name, table in zip("ab", tables, strict=True)
    )
    changes = all_changes(one, two)
    assert [(change.kind, change.before, change.after) for change in changes] == [
        ("feature", "age 41", "age 42")
    ] * 4


def test_records_in_another_order_are_equal_and_a_missing_shard_is_an_error(tmp_path: Path) -> None:
    one = made(tmp_path / "a", animals(8), labels="prefix")
    two = made(tmp_path / "b", animals(8), labels="prefix", seed=9)
    found = compare(open_dataset(one), open_dataset(two))
    assert (found.num_same, found.is_equal) == (8, False)
    shown = run("diff", one, two, cwd=tmp_path)
    assert shown.returncode == 3
    assert "the same items, but the shards differ" in shown.stdout
    next(two.glob("*.tfrecord*")).unlink()
    shown = run("diff", one, two, cwd=tmp_path)
    assert (shown.returncode, len(shown.stderr.splitlines())) == (1, 1)
    assert "No such file" in shown.stderr


def test_a_dataset_in_object_storage_is_compared_record_by_record(
    bucket: Bucket, marked: Path, tmp_path: Path
) -> None:
    two = marked_set(tmp_path / "b", {"train/b.png": Marked(((1, 2, 3, 4),), (0,))})
    for name, data in tree(two).items():
        bucket.put(f"sets/marked/1.0.0/{name}", data)
    found = shardprep.diff(marked, f"{bucket.url}/sets/marked")
    assert [(change.key, change.after) for change in found.some("objects", 9)] == [
        ("train/b.png", "red 2,1 2x2")
    ]


ROW = st.tuples(
    st.sampled_from("abcdefgh"),
    st.sampled_from(["written", "rejected", "skipped"]),
    st.sampled_from(["train", "test"]),
    st.sampled_from([None, -1, 0, 1]),
    st.sampled_from([None, [], [0], [0, 1]]),
    st.sampled_from(["11", "22"]),
    st.integers(40, 42),
)
TABLE = st.lists(ROW, max_size=8, unique_by=lambda row: row[0])


def test_two_item_tables_differ_like_two_dictionaries(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("tables")
    whole = made(folder, animals(), labels="prefix")
    shard = next(whole.glob("*.tfrecord*")).name
    one, two = (folder / name for name in "ab")
    for copy in (one, two):
        shutil.copytree(whole, copy)

    @examples(50)
    @given(TABLE, TABLE)
    def check(before: list[Any], after: list[Any]) -> None:
        for place, rows in ((one, before), (two, after)):
            names = ("key", "status", "split", "label", "labels", "original_sha256", "length")
            empty = dict.fromkeys(item_table.COLUMNS.names)
            # Both have the same shards, and an item at one place in them: no record is read.
            places = [{"shard": shard, "offset": 50 * ord(row[0])} for row in rows]
            filled = [
                {**empty, **dict(zip(names, row, strict=True)), **at}
                for row, at in zip(rows, places, strict=True)
            ]
            table = pa.Table.from_pylist(filled, item_table.COLUMNS)
            pq.write_table(table, place / ITEMS_FILE)
        was, now = ({row[0]: row for row in rows} for rows in (before, after))
        expected: set[tuple[str, str]] = set()
        for key in was.keys() | now.keys():
            there = [key in side and side[key][1] == "written" for side in (was, now)]
            if there != [True, True]:
                expected |= {(key, "added")} if there[1] else set()
                expected |= {(key, "removed")} if there[0] else set()
                continue
            a, b = was[key], now[key]
            is_relabelled = shown(a) != shown(b)
            expected |= {(key, "split")} if a[2] != b[2] else set()
            expected |= {(key, "target")} if is_relabelled else set()
            expected |= {(key, "source")} if a[5] != b[5] else set()
            is_stored_anew = a[6] != b[6] and a[5] == b[5] and not is_relabelled
            expected |= {(key, "record")} if is_stored_anew else set()
        assert {(change.key, change.kind) for change in all_changes(one, two)} == expected

    check()


def shown(row: Any) -> object:
    """Return the target of a row in words, as `diff` tells it."""
    if row[3] in (0, 1):
        return ("cat", "dog")[row[3]]
    return None if row[4] is None else "\x1f".join(("cat", "dog")[i] for i in row[4])


def test_the_command_exits_with_3_where_records_differ(tmp_path: Path) -> None:
    one, two = made(tmp_path / "a", animals(8)), made(tmp_path / "b", animals(14))
    same = run("diff", one, one, cwd=tmp_path)
    assert (same.returncode, same.stderr) == (0, "")
    assert same.stdout.endswith("8 records before, 8 after: the same records\n")
    other = run("diff", one, two, cwd=tmp_path)
    assert other.returncode == 3
    assert re.search(r"^added +6  written in the second alone", other.stdout, re.MULTILINE)
    assert "and 3 more; --json lists them all" in other.stdout
    assert "8 records before, 14 after: 8 items unchanged" in other.stdout
    as_json = run("diff", one, two, "--json", cwd=tmp_path)
    assert as_json.returncode == 3
    assert len(printed(as_json.stdout, Difference)["changes"]) == 6
    lost = run("diff", one, tmp_path / "nowhere", cwd=tmp_path)
    assert (lost.returncode, len(lost.stderr.splitlines())) == (1, 1)
