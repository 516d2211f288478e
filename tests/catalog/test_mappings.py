"""Mappings that a user gives (class names, splits): one that maps nothing is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shardprep.catalog.catalog import Catalog, make_catalog
from shardprep.errors import ShardprepError
from shardprep.recipe.recipe import make_recipe
from tests.support.builders import jpeg, write_folder

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


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (
            {"class_map": "hund=dog,spinne=spider"},
            (
                "--class-map: none of its 2 names is a class, such as 'hund'; "
                "classes are cane, ragno"
            ),
        ),
        (
            {"class_map": "none.txt"},
            ("--class-map: none of its 1 names is a class, such as 'and'; classes are cane, ragno"),
        ),
        (
            {"class_map": "2=two", "labels": f"{TABLE}number"},
            "--class-map: none of its 1 names is a class, such as '2'; classes are 0, 1",
        ),
        (
            {"class_map": "0.5=half", "labels": f"{TABLE}size", "target": "regression"},
            (
                "--class-map: there are no classes to rename: targets are of kind regression; "
                "leave it out"
            ),
        ),
        (
            {"class_map": "cane=dog", "labels": "none"},
            "--class-map: there are no classes to rename: no labels are found; leave it out",
        ),
        (
            {"split": "roots:train=a,test=B"},
            (
                "--split roots: test=B has no image below it, or none that an earlier "
                "split leaves; "
                "folders are a, b, cane, ragno; case matters"
            ),
        ),
        (
            {"split": "roots:train=a,test=a/cane"},
            (
                "--split roots: test=a/cane has no image below it, or none that an earlier "
                "split leaves; "
                "folders are a, b, cane, ragno; case matters"
            ),
        ),
        (
            {"split": "list:test=other.txt"},
            (
                "other.txt: names no image of the source, such as z/1.jpg; "
                "a key looks like a/cane/1.jpg"
            ),
        ),
        (
            {"split": "column:use:fit=train,tri=test", "labels": f"{TABLE}number"},
            "--split column: no image has tri in column 'use'; its cells are fit, try",
        ),
    ],
)
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


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ({"class_map": "cane=spider,ragno=dog"}, ("spider", "dog")),
        ({"class_map": "cane=zebra"}, ("zebra", "ragno")),
        ({"class_map": "cane=animal,ragno=animal"}, ("animal",)),
        ({"class_map": "cane=zebra", "classes": "ragno,zebra"}, ("ragno", "zebra")),
        ({"class_map": "0=two,1=one", "labels": f"{TABLE}number"}, ("two", "one")),
    ],
)
def test_renamed_classes_keep_the_order_of_their_old_names(
    tmp_path: Path, keys: dict[str, str], names: tuple[str, ...]
) -> None:
    assert catalog(tmp_path, **keys).label_names == names
