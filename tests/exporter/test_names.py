"""File names of keys are safe, readable and different within a split."""

import re

from hypothesis import given
from hypothesis import strategies as st

from shardprep.exporter.cells import file_names, folder_names

SAFE = re.compile(r"[\w+=@,][\w+=@,.~-]*")
_PART = st.text(
    st.one_of(
        st.sampled_from("aAbß._- ~/\\:é\u0301\u0130\0\n"), st.characters(exclude_categories=["Cs"])
    ),
    min_size=1,
    max_size=12,
)
KEYS = st.lists(st.lists(_PART, min_size=1, max_size=3).map("/".join), unique=True, max_size=12)


@given(KEYS, st.sampled_from([True, False]))
def test_names_are_safe_and_differ_even_without_case(
    keys: list[str],
    dots: bool,  # noqa: FBT001 - drawn
) -> None:
    scopes = ["train" if i % 3 else "test" for i in range(len(keys))]
    names = file_names(keys, scopes, dots=dots)
    assert all(SAFE.fullmatch(name) for name in names)
    assert dots or not any("." in name for name in names)
    assert len({(s, n.casefold()) for s, n in zip(scopes, names, strict=True)}) == len(keys)


@given(st.lists(_PART, unique=True, max_size=8))
def test_folders_of_classes_are_safe_and_differ(texts: list[str]) -> None:
    names = folder_names(texts)
    assert all(SAFE.fullmatch(name) for name in names)
    assert len({name.casefold() for name in names}) == len(texts)


def test_a_name_is_the_name_of_the_file_or_else_the_whole_key() -> None:
    keys = ["set.zip/train/cat.0.jpg", "set.zip/train/dog.0.jpg"]
    assert file_names(keys, ["train"] * 2) == ["cat.0", "dog.0"]
    assert file_names(keys, ["train"] * 2, dots=False) == ["cat_0", "dog_0"]
    assert file_names(["a/1.jpg", "b/1.jpg"], ["train", "test"]) == ["1", "1"]
    keys = ["a/1.jpg", "b/1.jpg", "b/2.jpg"]
    assert file_names(keys, ["train"] * 3) == ["a__1", "b__1", "b__2"]


def test_long_keys_and_keys_that_differ_in_unsafe_characters_get_a_hash() -> None:
    one, two, other = file_names(["x/a b.jpg", "x/a:b.jpg", "x/c.jpg"], ["train"] * 3)
    assert one != two
    assert re.fullmatch("x__a_b~[0-9a-f]{32}", one)
    assert other == "x__c"
    first = file_names(["a b.jpg", "a:b.jpg"], ["train"] * 2)
    again = file_names(["a b.jpg", "a:b.jpg", f"{first[0]}.jpg"], ["train"] * 3)
    assert len(set(again)) == 3, "a key cannot be made to look like another's hash"
    long = file_names([f"{'ü' * 300}{i}.jpg" for i in range(2)], ["train"] * 2)
    assert len(set(long)) == 2
    assert max(len(name.encode()) for name in long) < 160
