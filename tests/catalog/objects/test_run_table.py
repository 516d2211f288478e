"""Tables of run lengths: their columns, their classes, and the order of the runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardprep.catalog.catalog import Catalog
from shardprep.catalog.objects.formats.rle_table import detected_order
from shardprep.catalog.tables.table import Rows
from shardprep.errors import QuestionError, RecipeError, SourceError
from shardprep.image.annotation_types import RunOrder, Runs
from shardprep.recipe.object_rules import RunTableRule, parse_mask_rule
from tests.catalog.builders import catalog, facts_of, objects_of
from tests.support.builders import jpeg
from tests.support.paths import data_rows


def runs_of(mask: np.ndarray[Any, Any], order: RunOrder) -> str:
    """Return a mask as Kaggle's notebooks write it, the starts counted from 1."""
    flat = mask.flatten(order="C" if order == "row" else "F")
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flat, [0]))))
    starts, ends = edges[::2], edges[1::2]
    if order == "relative":  # from the end of the run before
        starts = starts - np.concatenate(([0], ends[:-1])) - 1
    return " ".join(
        f"{start + 1} {length}" for start, length in zip(starts, ends - edges[::2], strict=True)
    )


def blobs(height: int, width: int, seed: int) -> np.ndarray[Any, Any]:
    """Return a mask of some discs."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width]
    mask = np.zeros((height, width), np.uint8)
    for _ in range(3):
        y, x, r = rng.integers(height), rng.integers(width), rng.integers(4, 9)
        mask |= (rows - y) ** 2 + (columns - x) ** 2 < r**2
    return mask


def table(header: str, *rows: str) -> bytes:
    """Return a CSV."""
    return "\n".join([header, *rows, ""]).encode()


def outlines(made: Catalog) -> dict[str, list[str] | None]:
    """Return the run lengths of each image, None where nothing lists it."""
    found: dict[str, list[str] | None] = dict.fromkeys(item.key for item in made.items)
    for item in made.items:
        if item.annotation is not None:
            runs = [one for one in item.annotation.outlines if isinstance(one, Runs)]
            found[item.key] = [one.text for one in runs]
    return found


@pytest.mark.parametrize(("text", "parts"), data_rows("objects", "run_rules"))
def test_the_parts_of_the_option(text: str, parts: tuple[Any, ...]) -> None:
    assert parse_mask_rule(f"rle:{text}").runs == RunTableRule(*parts)


@pytest.mark.parametrize("text", ["", "a.csv", "a.csv:id", "a.csv:id:", "a.csv:a:b:c:d"])
def test_an_option_that_lacks_a_part_is_an_error(text: str) -> None:
    with pytest.raises(RecipeError, match="is not FILE:ID:RLE"):
        parse_mask_rule(f"rle:{text}")


def test_a_row_is_an_object_and_an_empty_cell_background(tmp_path: Path) -> None:
    members = {f"train/{name}.jpg": jpeg(32, 48) for name in "abcd"} | {"test/t.jpg": jpeg(32, 48)}
    rows = ["a.jpg,1 3 10 5", "a.jpg,100 4", "b.jpg,", "c.jpg,-1", "z.jpg,1 2"]
    members["ships.csv"] = table("ImageId, EncodedPixels", *rows)
    keys: dict[str, Any] = {"classes": "ship", "max_dropped": 0.5}
    made = catalog(tmp_path, members, masks="rle:ships.csv:ImageId:EncodedPixels", **keys)
    assert outlines(made) == {
        "test/t.jpg": None,
        "train/a.jpg": ["1 3 10 5", "100 4"],
        "train/b.jpg": [],
        "train/c.jpg": [],
    }
    assert [(one.key, one.reason) for one in made.skipped] == [("train/d.jpg", "no annotation")]
    facts = facts_of(made)
    assert facts.names == ("background", "ship")
    assert facts.without_image == ("z.jpg",)
    assert facts.num_objects == {"ship": 2}
    assert facts.num_background == 2
    item = made.items[1]
    assert objects_of(item).labels == (1, 1)
    assert np.isnan(objects_of(item).boxes).all()


def test_a_column_or_the_end_of_the_id_names_the_class(tmp_path: Path) -> None:
    members = {f"{name}.jpg": jpeg(32, 48) for name in "ab"}
    members["long.csv"] = table("id,c,runs", "a.jpg,10,1 2", "a.jpg,2,", "b.jpg,2,5 1")
    long = catalog(tmp_path / "1", members, masks="rle:long.csv:id:runs:c", instances=True)
    members["short.csv"] = table("Image_Class,runs", "a.jpg_10,1 2", "a.jpg_2,", "b.jpg_2,5 1")
    short = catalog(tmp_path / "2", members, masks="rle:short.csv:Image_Class:runs", instances=True)
    for made in (long, short):
        assert facts_of(made).names == ("2", "10")
        found = [(item.annotation and item.annotation.labels) for item in made.items]
        assert found == [(1,), (0,)]
        assert facts_of(made).spec.boxes


def test_ids_that_fit_no_image_are_an_error(tmp_path: Path) -> None:
    members = {"a.jpg": jpeg(8, 8), "x.csv": table("id,rle", "q,1 2")}
    with pytest.raises(SourceError, match="no id of column 'id' fits an image"):
        catalog(tmp_path, members, masks="rle:x.csv:id:rle")


@given(st.lists(st.tuples(st.integers(20, 60), st.integers(61, 90), st.integers(0, 999)),
                min_size=3, max_size=8))  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_the_order_of_runs_is_detected(drawn: list[tuple[int, int, int]]) -> None:
    masks = {i: blobs(*one) for i, one in enumerate(drawn)}
    orders: tuple[RunOrder, ...] = ("column", "row", "relative")
    for order in orders:
        cells = {i: [runs_of(mask, order)] for i, mask in masks.items()}
        found, why = detected_order(cells, lambda i: (drawn[i][0], drawn[i][1]))
        assert (found, why) == (order, "")


def test_square_images_do_not_tell_it_and_a_remark_says_so(tmp_path: Path) -> None:
    members = {"a.jpg": jpeg(32, 32), "b.jpg": jpeg(32, 32)}
    cells = [runs_of(blobs(32, 32, seed), "row") for seed in (1, 2)]
    members["x.csv"] = table("id,rle", f"a,{cells[0]}", f"b,{cells[1]}")
    made = catalog(tmp_path / "1", members, masks="rle:x.csv:id:rle")
    assert any("all images are square; --rle row" in line for line in made.findings)
    made = catalog(tmp_path / "2", members, masks="rle:x.csv:id:rle", rle="row")
    assert made.findings == []
    assert "along each row" in facts_of(made).how


def test_damaged_and_hostile_cells_do_not_stop_the_search() -> None:
    good = [runs_of(blobs(30, 70, seed), "row") for seed in range(4)]
    bad = ["1 2 3", "x y", "9" * 30 + " 1", "0 5", "-3 4", "1 " + "9" * 12, "1 1 " * 9 + "3000 1"]
    cells = dict(enumerate([[one] for one in (*good, *bad)]))
    assert detected_order(cells, lambda i: None if i == 2 else (30, 70)) == ("row", "")
    assert detected_order({}, lambda _: None)[0] == "column"


def test_the_rows_of_a_wide_table_are_not_read_again_for_each_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"pixel{i}" for i in range(60)]
    lines = [",".join(map(str, (f"{i}.jpg", *range(i, i + 60)))) for i in range(4)]
    others = {"pixels.csv": table(",".join(("file", *names)), *lines)}
    passes: list[int] = []
    read = Rows.__iter__

    def counted(rows: Rows) -> Any:
        passes.append(len(rows))
        return read(rows)

    monkeypatch.setattr(Rows, "__iter__", counted)
    with pytest.raises(QuestionError):  # of points or a vector: all columns were looked at
        catalog(tmp_path, {f"{i}.jpg": jpeg(seed=i) for i in range(4)} | others)
    assert 0 < len(passes) < len(names)
