"""Ids of tables in random layouts: each row reaches its image, or the build ends in one line."""

import random
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.catalog.id_layouts import (
    USES,
    IdTable,
    Layout,
    Row,
    make_layout,
    meanings,
    try_layout,
    try_number,
)
from tests.support.examples import examples

_LAYOUTS = st.randoms(use_true_random=False).map(make_layout)


@examples(300)
@given(_LAYOUTS)
def test_each_row_reaches_its_image_or_the_build_ends_in_one_line(layout: Layout) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert try_layout(layout, Path(folder)).faults == []


@given(_LAYOUTS)
def test_the_resolution_is_what_the_author_of_the_layout_means(layout: Layout) -> None:
    """A row whose image is there means this image, or nothing decides between it and others."""
    for (number, i), meaning in meanings(layout).items():
        row = layout.tables[number].rows[i]
        if row.intended:
            assert meaning.images == {row.intended} or row.intended in meaning.rivals


@pytest.mark.parametrize("use", [one for one in USES if one != "auto"])
def test_wrong_images_lost_rows_and_needless_errors_are_noticed(tmp_path: Path, use: str) -> None:
    """The resolution is told another split or another file than the build reads."""
    images: dict[str, str | None] = {"train/0.png": "train", "test/0.png": "test"}
    table = IdTable("train.csv", "train", (Row("0", "a", intended="train/0.png"),))
    more = IdTable("test.csv", "test", (Row("0", "b", intended="test/0.png"),))
    right = Layout(images, (table, more), use, "train.csv,test.csv")
    assert try_layout(right, tmp_path / "1").faults == []
    (fault,) = try_layout(replace(right, files="train.csv"), tmp_path / "2").faults
    assert fault.startswith("missed row: row Row(id='0', label='b'")
    swapped = replace(right, tables=(replace(table, split="test"),), files="train.csv")
    (fault,) = try_layout(swapped, tmp_path / "3").faults
    assert fault.startswith("wrong label: row Row(id='0', label='a'")
    unclear = replace(right, tables=(replace(table, path="x.csv"),), files="x.csv")
    assert try_layout(unclear, tmp_path / "4").counts["refused without need"] == 1


def test_layouts_are_the_same_each_time_and_of_every_kind() -> None:
    some = [make_layout(random.Random(f"0 {number}")) for number in range(60)]
    assert some == [make_layout(random.Random(f"0 {number}")) for number in range(60)]
    assert {one.use for one in some} == {*USES}
    assert {len(one.tables) for one in some} == {1, 2, 3}
    assert {len({*one.images.values()}) for one in some} == {1, 2, 3}


def test_errors_are_no_way_out() -> None:
    counts = sum((try_number(number).counts for number in range(60)), Counter[str]())
    assert counts["built"] >= 30
    assert counts["refused without need"] <= 3
