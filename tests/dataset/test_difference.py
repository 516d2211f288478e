"""`diff` names each change of each item, as plain dictionaries of the item tables have them."""

from __future__ import annotations

import hashlib
import re
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from shardprep.dataset import item_table
from shardprep.dataset.difference import MEANINGS, Change, Difference, compare
from shardprep.dataset.folder import ITEMS_FILE
from tests.support.builders import animals, build, jpeg, write, zip_bytes
from tests.support.command import run
from tests.support.json_page import printed

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

KEYS: dict[str, Any] = {"shards": 1, "size": "16x16", "format": "png"}


def made(folder: Path, images: dict[str, bytes], **keys: Any) -> Path:
    source = write(folder / "pets.zip", zip_bytes(images))
    return build(source, folder / "out", **{**KEYS, **keys}).path


def all_changes(before: Path, after: Path) -> list[Change]:
    found = compare(before, after)
    return [one for kind in MEANINGS for one in sorted(found.some(kind, 1000))]


def test_the_same_recipe_gives_the_same_records(tmp_path: Path) -> None:
    one, two = (made(tmp_path / name, animals()) for name in "ab")
    found = compare(one, two)
    assert found.is_equal
    assert (found.num_before, found.num_after, found.num_same) == (12, 12, 12)
    assert set(found.num_changes.values()) == {0}
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
    found = compare(one, two)
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


def test_another_split_and_another_size_of_what_is_stored_are_named(tmp_path: Path) -> None:
    one = made(tmp_path / "a", animals(40))
    two = made(
        tmp_path / "b",
        animals(40),
        split="train=0.5,test=0.5",
        size="12x12",
        shards=None,
        dedup=True,
    )
    found = compare(one, two)
    assert found.num_changes["split"] == 20
    assert found.num_changes["record"] > 30
    assert {(one.before, one.after) for one in found.some("split", 99)} == {("train", "test")}
    assert "size (16x16, now 12x12)" in found.recipe
    assert "shards (1, now not given)" in found.recipe
    assert "dedup (no, now yes)" in found.recipe
    assert any(line.startswith("image: shape 16x16x3, now 12x12x3") for line in found.features)


def test_targets_are_compared_by_the_names_of_their_classes(tmp_path: Path) -> None:
    one = made(tmp_path / "a", animals(), labels="prefix")
    two = made(tmp_path / "b", animals(), labels="prefix", classes="dog,cat")
    found = compare(one, two)
    assert found.num_changes["target"] == 0
    assert not found.is_equal
    three = made(tmp_path / "c", animals(), labels="prefix", class_map="dog=wolf")
    assert compare(one, three).num_changes["target"] == 6


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


def test_any_two_tables_differ_as_dictionaries_do(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("tables")
    whole = made(folder, animals(), labels="prefix")
    one, two = (folder / name for name in "ab")
    for copy in (one, two):
        shutil.copytree(whole, copy)

    @given(TABLE, TABLE)
    def check(before: list[Any], after: list[Any]) -> None:
        for place, rows in ((one, before), (two, after)):
            names = ("key", "status", "split", "label", "labels", "original_sha256", "length")
            empty = dict.fromkeys(item_table.COLUMNS.names)
            filled = [{**empty, **dict(zip(names, row, strict=True))} for row in rows]
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
