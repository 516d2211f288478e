"""A column of pairs of numbers is run lengths only if it can be."""

from pathlib import Path

import pytest

from shardprep.catalog.catalog import make_catalog
from shardprep.errors import QuestionError, SourceError
from shardprep.recipe.recipe import make_recipe
from tests.catalog.builders import catalog, facts_of, objects_of, survey
from tests.support.arrays import parquet
from tests.support.builders import jpeg, write


def members(title: str, *cells: str) -> dict[str, bytes]:
    """Return 12 images of 48x64 and a table with these cells in turn."""
    found = {f"{i}.jpg": jpeg(48, 64, seed=i) for i in range(12)}
    rows = (f"{i},{cells[i % len(cells)]}" for i in range(12))
    return found | {"train.csv": "\n".join([f"id,{title}", *rows]).encode()}


@pytest.mark.parametrize(
    ("title", "cells"),
    [
        ("center", ("10 20", "31 7")),
        ("bbox", ("3 5 40 41", "9 9 20 30")),
        ("bbox", ("30 20 5 4",)),
        ("size", ("64 48",)),
        ("Target", ("1 7", "3 12 0 5")),
        ("label", ("1 2", "3 4", "5 6")),
        ("runs", ("1 3 10 4", "3000 20 3060 90")),  # beyond 48 x 64 pixels
    ],
)
def test_pairs_of_numbers_are_not_run_lengths(
    title: str, cells: tuple[str, ...], tmp_path: Path
) -> None:
    is_annotated = has_masks = False
    try:
        is_annotated = catalog(tmp_path, members(title, *cells)).annotations is not None
    except QuestionError as error:  # the table names the images
        has_masks = any("masks" in one.options for one in error.choices)
    assert not is_annotated
    assert not has_masks
    found = survey(tmp_path / "init", members(title, *cells))
    assert not [one for one in found.annotations if one.key == "masks"]


def test_run_lengths_are_recognised_and_may_be_named(tmp_path: Path) -> None:
    runs = members("EncodedPixels", "1 3 10 4", "3000 20", "")
    assert facts_of(catalog(tmp_path, runs)).names == ("background", "object")
    single = members("center", "10 20")
    named = catalog(tmp_path / "2", single, "none", masks="rle:train.csv:id:center")
    assert facts_of(named).names == ("background", "object")


def test_run_lengths_whose_ids_end_in_a_class_are_recognised(tmp_path: Path) -> None:
    found = {f"{i}.jpg": jpeg(48, 64, seed=i) for i in range(6)}
    rows = [f"{i}.jpg_{c},{'1 3 10 4 90 2' if c == 1 else ''}" for i in range(6) for c in (1, 2)]
    found["train.csv"] = "\n".join(["ImageId_ClassId,EncodedPixels", *rows]).encode()
    assert facts_of(catalog(tmp_path, found)).names == ("background", "1", "2")


@pytest.mark.parametrize("kind", ["text", "list"])
def test_run_lengths_in_a_parquet_are_read_from_its_own_columns(kind: str, tmp_path: Path) -> None:
    runs = [f"{i + 1} 3 100 4 {200 + i} 2" for i in range(6)]
    cells = runs if kind == "text" else [[int(one) for one in text.split()] for text in runs]
    columns = {"image": [jpeg(48, 64, seed=i) for i in range(6)], "rle": cells}
    source = write(tmp_path / "a.parquet", parquet(columns))
    recipe = make_recipe({"source": str(source)}, "test")
    made = make_catalog(recipe, tmp_path / "work", lambda _: None)
    assert [objects_of(item).outlines[0].text for item in made.items] == runs  # type: ignore[union-attr]


def test_a_parquet_is_no_table_of_text(tmp_path: Path) -> None:
    table = write(tmp_path / "t.parquet", parquet({"id": ["0"], "label": ["a"]}))
    for keys in ({"labels": f"csv:{table}:id:label"}, {"exclude_list": str(table)}):
        with pytest.raises(SourceError, match=r"is a Parquet file, not a text"):
            catalog(tmp_path, members("x", "1"), **keys)
