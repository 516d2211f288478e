"""Ids of tables in random layouts: each row reaches its image, or the build ends in one line."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.catalog.id_layouts import (
    USES,
    IdTable,
    Layout,
    Row,
    Tally,
    make_layout,
    meanings,
    try_layout,
    try_number,
)

_LAYOUTS = st.randoms(use_true_random=False).map(make_layout)
_NUM_LAYOUTS = 200
"""`python -m tests.catalog.id_layouts` tries others."""


def test_each_row_reaches_its_image_or_the_build_ends_in_one_line() -> None:
    """Errors are no way out: few of them are needless."""
    tally, number = Tally(), _NUM_LAYOUTS * settings().max_examples // 100
    for one in map(try_number, range(number)):
        tally.add(one)
    assert tally.faults == []
    assert tally.counts["built"] >= 0.7 * number
    assert tally.counts["refused without need"] <= 0.06 * number


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
