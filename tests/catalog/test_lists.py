"""Lists of images: names may hold spaces, and lists of ImageNet have labels behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardprep.catalog.catalog import make_catalog
from shardprep.errors import SourceError
from shardprep.recipe.recipe import make_recipe
from tests.support.builders import jpeg, write, zip_bytes
from tests.support.paths import data_rows

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("a/my cat 1.jpg", "a/my.jpg", "b/dog.jpg", "b/dog (2).jpg")


@pytest.mark.parametrize(("file", "text", "left"), data_rows("labels", "lists"))
def test_a_list_has_a_name_a_line_and_a_table_has_a_column(
    tmp_path: Path, file: str, text: str, left: tuple[str, ...]
) -> None:
    source = write(tmp_path / "x.zip", zip_bytes({name: jpeg() for name in NAMES}))
    path = write(tmp_path / file, text.encode())
    recipe = make_recipe({"source": str(source), "exclude_list": str(path)}, "test")
    catalog = make_catalog(recipe, tmp_path / "work", print)
    assert {item.key for item in catalog.items} == {*left}
    assert len(catalog.skipped) == len(NAMES) - len(left)


@pytest.mark.parametrize(("keys", "column"), data_rows("labels", "missing_columns"))
def test_a_column_that_a_table_lacks_is_told_before_anything_is_unpacked(
    tmp_path: Path, keys: dict[str, str], column: str
) -> None:
    rows = "".join(f"{name},{name[0]}\n" for name in NAMES)
    inner = zip_bytes({name: jpeg() for name in NAMES})
    members = {"in.zip": inner, "t.csv": f"id,kind\n{rows}".encode()}
    source = write(tmp_path / "x.zip", zip_bytes(members))
    work = tmp_path / "work"
    with pytest.raises(SourceError, match=rf"^t\.csv: has no column '{column}'; its columns are"):
        make_catalog(make_recipe({"source": str(source), **keys}, "test"), work, print)
    assert not work.exists(), "nothing was unpacked"


def test_a_table_of_an_inner_archive_is_found_once_that_is_unpacked(tmp_path: Path) -> None:
    """Whatever lies under its name on the disk, or beside the archive."""
    rows = "".join(f"{name},{name[0]}\n" for name in NAMES)
    inner = {name: jpeg() for name in NAMES} | {"t.csv": f"id,breed\n{rows}".encode()}
    source = write(tmp_path / "x.zip", zip_bytes({"in.zip": zip_bytes(inner)}))
    recipe = make_recipe({"source": str(source), "labels": "csv:t.csv:id:breed"}, "test")
    assert make_catalog(recipe, tmp_path / "work", print).label_names == ("a", "b")
