"""A table's ids are found all at once as they are one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.catalog.tables.row_matching import AmbiguousIdError, KeyIndex
from shardprep.source.string_column import Texts
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


def one_by_one(index: KeyIndex, ids: list[str]) -> list[int] | str:
    """Return the position of the key of each id, or the error of the first that fits several."""
    try:
        found = [index.find_one(text, "t.csv") for text in ids]
    except AmbiguousIdError as error:
        return str(error)
    return [-1 if one is None else one for one in found]


@given(KEYS, IDS)
@examples(100, database=None)
def test_ids_are_found_all_at_once_as_they_are_one_by_one(keys: list[str], ids: list[str]) -> None:
    keys = sorted(keys)
    try:
        found: list[int] | str = KeyIndex(keys).find_all(Texts.of(ids), "t.csv").tolist()
    except AmbiguousIdError as error:
        found = str(error)
    assert found == one_by_one(KeyIndex(keys), ids)


@given(KEYS, IDS)
@examples(60, database=None)
def test_the_ids_that_fit_are_counted(keys: list[str], ids: list[str]) -> None:
    index = KeyIndex(sorted(keys))
    assert index.num_found(Texts.of(ids)) == sum(bool(index.find(text)) for text in ids)


def test_the_first_id_that_fits_several_is_the_one_of_the_error() -> None:
    index = KeyIndex(["a/1.jpg", "a/2.jpg", "b/1.jpg", "b/2.jpg"])
    with pytest.raises(
        AmbiguousIdError, match=r"id '2' fits several images: a/2\.jpg and b/2\.jpg"
    ):
        index.find_all(Texts.of(["a/1", "2", "1"]), "t.csv")
