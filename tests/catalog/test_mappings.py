"""Mappings that a user gives (class names, splits): one that maps nothing is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shardprep.catalog.catalog import Catalog, make_catalog
from shardprep.errors import ShardprepError
from shardprep.recipe.recipe import make_recipe
from tests.support.builders import jpeg, write_folder
from tests.support.paths import data_rows

if TYPE_CHECKING:
    from pathlib import Path

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
    assert "--class-map: no class is called name, gatto" in made.findings
    assert not catalog(tmp_path, class_map="cane=dog").findings


@pytest.mark.parametrize(("keys", "names"), data_rows("labels", "renamed_classes"))
def test_renamed_classes_keep_the_order_of_their_old_names(
    tmp_path: Path, keys: dict[str, str], names: tuple[str, ...]
) -> None:
    assert catalog(tmp_path, **keys).label_names == names
