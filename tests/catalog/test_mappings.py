"""Mappings, lists and tables that a user names: one without any match is an error."""

from pathlib import Path
from typing import Any

import pytest

from shardprep.catalog.catalog import Catalog, make_catalog
from shardprep.errors import ShardprepError, SourceError
from shardprep.recipe.recipe import make_recipe
from tests.support.builders import jpeg, write, write_folder, zip_bytes
from tests.support.paths import data_rows

KEYS = [f"{place}/{name}/{i}.jpg" for place in "ab" for name in ("cane", "ragno") for i in "12"]
ROWS = "".join(f"{key},{i % 2},{i / 2},{'fit' if i % 4 else 'try'}\n" for i, key in enumerate(KEYS))
FILES = {
    "table.csv": f"id,number,size,use\n{ROWS}",
    "none.txt": "a line\nand, another\n",
    "map.csv": "name,english\ncane,dog\nragno,spider\ngatto,cat\n",
    "other.txt": "z/1.jpg\n",
}


def catalog(tmp_path: Path, **keys: Any) -> Catalog:
    members = {key: jpeg(seed=i) for i, key in enumerate(KEYS)}
    source = write_folder(tmp_path, members | {k: v.encode() for k, v in FILES.items()})
    return make_catalog(make_recipe({"source": str(source), **keys}, "test"), tmp_path, print)


TABLE = "csv:table.csv:id:"


@pytest.mark.parametrize(("keys", "line"), data_rows("labels", "mapping_errors"))
def test_a_mapping_that_maps_nothing_is_an_error_that_lists_what_there_is(
    tmp_path: Path, keys: dict[str, str], line: str
) -> None:
    with pytest.raises(ShardprepError) as caught:
        catalog(tmp_path, **keys)
    assert str(caught.value) == line


def test_a_class_map_that_fits_in_part_says_which_of_its_names_fit_nothing(tmp_path: Path) -> None:
    made = catalog(tmp_path, class_map="map.csv")
    assert "--class-map: no class is called gatto" in made.findings
    (note,) = catalog(tmp_path, class_map="cane=dog").findings
    assert note == "table.csv is not read: it begins with 'id,number,size,use'"


@pytest.mark.parametrize(("keys", "names"), data_rows("labels", "renamed_classes"))
def test_renamed_classes_keep_the_order_of_their_old_names(
    tmp_path: Path, keys: dict[str, str], names: tuple[str, ...]
) -> None:
    assert catalog(tmp_path, **keys).label_names == names


# Lists of images, and columns of tables

NAMES = ("a/my cat 1.jpg", "a/my.jpg", "b/dog.jpg", "b/dog (2).jpg")


@pytest.mark.parametrize(("file", "text", "left"), data_rows("labels", "lists"))
def test_a_list_has_a_name_a_line_and_a_table_has_a_column(
    tmp_path: Path, file: str, text: str, left: tuple[str, ...]
) -> None:
    source = write(tmp_path / "x.zip", zip_bytes({name: jpeg() for name in NAMES}))
    path = write(tmp_path / file, text.encode())
    recipe = make_recipe({"source": str(source), "exclude_list": str(path)}, "test")
    found = make_catalog(recipe, tmp_path / "work", print)
    assert {item.key for item in found.items} == {*left}
    assert len(found.skipped) == len(NAMES) - len(left)


@pytest.mark.parametrize(("keys", "column"), data_rows("labels", "missing_columns"))
def test_a_missing_column_is_an_error_before_anything_is_unpacked(
    tmp_path: Path, keys: dict[str, str], column: str
) -> None:
    rows = "".join(f"{name},{name[0]}\n" for name in NAMES)
    inner = zip_bytes({name: jpeg() for name in NAMES})
    members = {"in.zip": inner, "t.csv": f"id,kind\n{rows}".encode()}
    source = write(tmp_path / "x.zip", zip_bytes(members))
    work = tmp_path / "work"
    with pytest.raises(SourceError, match=rf"^t\.csv: has no column '{column}'; .*use one of"):
        make_catalog(make_recipe({"source": str(source), **keys}, "test"), work, print)
    assert not work.exists(), "nothing was unpacked"


def test_a_table_of_an_inner_archive_is_found_once_that_is_unpacked(tmp_path: Path) -> None:
    """Whatever lies under its name on the disk, or beside the archive."""
    rows = "".join(f"{name},{name[0]}\n" for name in NAMES)
    inner = {name: jpeg() for name in NAMES} | {"t.csv": f"id,breed\n{rows}".encode()}
    source = write(tmp_path / "x.zip", zip_bytes({"in.zip": zip_bytes(inner)}))
    recipe = make_recipe({"source": str(source), "labels": "csv:t.csv:id:breed"}, "test")
    assert make_catalog(recipe, tmp_path / "work", print).label_names == ("a", "b")
