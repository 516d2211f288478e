"""Ids of a table find their images: all at once as one by one, and by the one rule of splits."""

import re
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardprep
from shardprep.catalog.tables.key_index import AmbiguousIdError, KeyIndex
from shardprep.catalog.tables.table import Table, parse_table
from shardprep.catalog.tables.united_tables import united
from shardprep.source import string_column
from shardprep.source.string_column import Texts
from tests.support.builders import jpeg, write, zip_bytes
from tests.support.examples import examples

_PARTS = st.sampled_from(["a", "b", "a.jpg", "b.png", "test", ".a", "a.b.jpg"])
KEYS = st.lists(
    st.lists(_PARTS, min_size=1, max_size=4).map("/".join), min_size=1, max_size=12, unique=True
)
IDS = st.lists(
    st.one_of(
        st.lists(_PARTS, min_size=1, max_size=5).map("/".join),
        st.sampled_from(["", "/a", "./a", "a\\b", "b//a", "./a/b.png", "a/", "/".join("a" * 20)]),
    ),
    max_size=12,
)


def one_by_one(keys: list[str], text: str) -> list[int]:
    """Return the positions of all keys that end in an id, with or without their extension."""
    path = re.sub(r"^(\.{0,2}/)*", "", text.replace("\\", "/"))
    named = [i for i, key in enumerate(keys) if f"/{key}".endswith(f"/{path}")]
    name = path.rpartition("/")[2]
    if named or any(key.rpartition("/")[2] == name for key in keys):
        return named
    bare = [re.sub(r"(?<=[^/])\.[^./]*$", "", key) for key in keys]
    return [i for i, key in enumerate(bare) if f"/{key}".endswith(f"/{path}")]


@given(KEYS, IDS, st.sampled_from([0, string_column._FEW_ROWS]))
@examples(100, database=None)
def test_an_id_finds_the_keys_that_end_in_it(
    keys: list[str], ids: list[str], few_rows: int
) -> None:
    with mock.patch.object(string_column, "_FEW_ROWS", few_rows):
        check_ids(keys, ids)


def check_ids(keys: list[str], ids: list[str]) -> None:
    index = KeyIndex(sorted(keys))
    found = [one_by_one(sorted(keys), text) for text in ids]
    assert [list(index.find(text)) for text in ids] == found
    if not any(found):
        return
    assert index.num_found(Texts.of(ids)) == sum(map(bool, found))
    if max(map(len, found)) == 1:
        assert index.find_all(Texts.of(ids), "t.csv").tolist() == [
            *(one[0] if one else -1 for one in found)
        ]
    else:
        with pytest.raises(AmbiguousIdError):
            index.find_all(Texts.of(ids), "t.csv")


def test_the_first_id_that_fits_several_is_the_one_of_the_error() -> None:
    index = KeyIndex(["a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.jpg"])
    with pytest.raises(
        AmbiguousIdError, match=r"id '2' fits several images: a/2\.jpg and b/2\.jpg"
    ):
        index.find_all(Texts.of(["a/1", "2", "1"]), "t.csv")


def test_joined_tables_hold_the_cells_of_their_parts_once() -> None:
    several = [
        parse_table(f"id,label\n{split}/1,a\n{split}/2,b\n".encode(), f"{split}.csv")
        for split in ("train", "test")
    ]
    [whole] = united(KeyIndex(["train/1.png", "test/2.png"]), several)
    assert [[*one.rows] for one in several] == [[*whole.rows][:2], [*whole.rows][2:]]
    for place in (0, 1):
        cells = {one.cells(place).array.buffers()[2].address for one in (whole, *several)}
        assert len(cells) == 1


def test_the_tables_of_many_images_are_one_table_with_a_pattern() -> None:
    names = [f"{i:02}" for i in range(20)]
    index = KeyIndex([f"images/{name}.png" for name in names])

    def tables(ids: list[str]) -> list[Table]:
        pairs = zip(names, ids, strict=True)
        own = (parse_table(f"id\n{one}\n".encode(), f"boxes/{name}.csv") for name, one in pairs)
        return [replace(one, num_beside=20) for one in own]

    [whole] = united(index, tables(names))
    assert [*whole.cells(0)] == names
    assert whole.files == "boxes/{file}.csv"  # the tables have a column id
    assert len(united(index, tables(["00", *names[1:-1], "00"]))) == 2
    [few] = united(index, tables(names)[:2])
    assert few.files == "boxes/00.csv,boxes/01.csv"


def test_a_build_takes_the_boxes_of_a_table_for_each_image(tmp_path: Path) -> None:
    row = b"id,xmin,ymin,xmax,ymax,label\n%02d,1,2,5,6,cat\n%02d,2,3,5,6,dog\n"
    tables = {f"boxes/{i:02}.csv": row % (i, i) for i in range(20)}
    images = {f"images/{i:02}.jpg": jpeg(seed=i) for i in range(20)}
    source = write(tmp_path / "set.zip", zip_bytes(images | tables))
    boxes = "csv:boxes/{file}.csv:id:xmin,ymin,xmax,ymax:label"
    found = shardprep.build(source, dry_run=True)
    assert f"--boxes '{boxes}' is decided" in " ".join(found.plan.findings)
    for plan in (found, shardprep.build(source, boxes=boxes, dry_run=True)):
        assert "objects: cat 20, dog 20" in repr(plan)
