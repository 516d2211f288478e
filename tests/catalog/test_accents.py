"""Accents in names: one letter or two characters (NFC, NFD), they match wherever names are met."""

import unicodedata
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.catalog.catalog import Catalog
from shardprep.catalog.objects.mask_files import pair_masks
from shardprep.catalog.tables.key_index import AmbiguousIdError, KeyIndex
from shardprep.recipe.object_rules import parse_mask_pattern
from shardprep.source.string_column import Texts
from tests.catalog.builders import catalog, grey
from tests.catalog.objects.written import WRITERS
from tests.support.builders import png
from tests.support.examples import examples

FORMS: tuple[Any, ...] = ("NFC", "NFD")
NAMES = ("Müller", "café", "Ångström", "여자", "plain")
_TEXTS = st.text("aeoué̈̃ö여", min_size=1, max_size=4)


def in_form(form: Any, text: str) -> str:
    return unicodedata.normalize(form, text)


both = pytest.mark.parametrize(("ours", "theirs"), [FORMS, FORMS[::-1]])


@given(st.lists(_TEXTS, min_size=1, max_size=6), _TEXTS, st.sampled_from(["", ".jpg"]))
@examples(50, database=None)
def test_an_id_finds_the_same_images_in_every_form(stems: list[str], text: str, end: str) -> None:
    plain = sorted({in_form("NFC", f"d/{stem}.jpg") for stem in stems})
    wanted = list(KeyIndex(plain).find(in_form("NFC", text + end)))
    for keys in (plain, [in_form("NFD", key) for key in plain]):
        index = KeyIndex(keys)
        for form in FORMS:
            one = in_form(form, text + end)
            assert list(index.find(one)) == wanted
            assert index.find_all(Texts.of([one]), "t").tolist() == (wanted or [-1])
            assert index.num_found(Texts.of([one])) == len(wanted)


def test_of_two_names_that_differ_only_in_form_the_equal_one_fits() -> None:
    keys = sorted(in_form(form, "a/é.jpg") for form in FORMS)
    for i, key in enumerate(keys):
        for text in (key, key.removeprefix("a/"), key.removesuffix(".jpg")):
            assert KeyIndex(keys).find(text) == [i]
            assert KeyIndex(keys).find_all(Texts.of([text]), "t").tolist() == [i]
    with pytest.raises(AmbiguousIdError):
        KeyIndex([*keys, *(f"b/{key}" for key in keys)]).find_all(Texts.of(["é.jpg"]), "t")


def images(form: Any) -> dict[str, bytes]:
    return {in_form(form, f"Bücher/images/{name}.png"): png(8, 8, seed=i)
            for i, name in enumerate(NAMES)}  # fmt: skip


def table(head: str, row: str, names: list[str]) -> bytes:
    return "\n".join([head, *(f"{name}{row}" for name in names)]).encode()


SOURCES: dict[str, tuple[Callable[[list[str]], dict[str, bytes]], dict[str, Any]]] = {
    "table": (
        lambda names: {"Schlüssel.csv": table("id,label", ",a", names)},
        {"labels": "csv:Schlüssel.csv"},
    ),
    "runs": (
        lambda names: {"runs.csv": table("id,rle", ",1 3", names)},
        {"masks": "rle:runs.csv:id:rle", "rle": "column"},
    ),
    "masks": (
        lambda names: {f"Bücher/masks/{name}_ü.png": grey(0, 255) for name in names},
        {"masks": "Bücher/masks/{stem}_ü.png"},
    ),
    "masks of names": (
        lambda names: {f"Bücher/masks/{name}.png": grey(0, 255) for name in names},
        {"masks": "masks/{name}"},
    ),
    "found masks": (lambda names: {f"Bücher/masks/{name}.png": grey(0, 255) for name in names}, {}),
}


def boxes(option: str, names: list[str]) -> dict[str, bytes]:
    texts = WRITERS[option]({name: [("x", (1, 1, 5, 5))] for name in names}, ["x"], None)
    return {f"Bücher/{key}": text.encode() for key, text in texts.items()}


SOURCES |= {option: (partial(boxes, option), {"boxes": option}) for option in WRITERS}


def matched(made: Catalog) -> int:
    return sum(
        item.annotation is not None or item.target is not None or bool(item.companions)
        for item in made.items
    )


@both
@pytest.mark.parametrize("kind", SOURCES)
def test_documents_and_masks_find_images_in_the_other_form(
    tmp_path: Path, kind: str, ours: str, theirs: str
) -> None:
    make, keys = SOURCES[kind]
    names = [in_form(theirs, name) for name in NAMES]
    found = {in_form(theirs, key): data for key, data in make(names).items()}
    made = catalog(tmp_path, {**images(ours), **found}, **keys)
    assert matched(made) == len(NAMES)
    assert {item.key for item in made.items} == set(images(ours))  # keys stay as they are


@both
def test_lists_of_splits_and_of_images_to_leave_out(tmp_path: Path, ours: str, theirs: str) -> None:
    names = [in_form(theirs, name) for name in NAMES]
    lines = {"l.txt": "\n".join(names).encode()}
    made = catalog(
        tmp_path / "1", {**images(ours), **lines}, labels="none", split="list:train=l.txt"
    )
    assert [item.split for item in made.items] == ["train"] * len(NAMES)
    whole = next(iter(images(theirs)))
    out = {"out.txt": "\n".join([whole, *names[1:3]]).encode()}
    made = catalog(tmp_path / "2", {**images(ours), **out}, labels="none", exclude_list="out.txt")
    assert len(made.items) == 2


@both
@pytest.mark.parametrize(
    ("option", "glob", "number"),
    [("include", "*ü*", 5), ("exclude", "*/images/M?ller*", 4), ("root", "Bücher", 5)],
)
def test_globs_match_every_form(
    tmp_path: Path, option: str, glob: str, number: int, ours: str, theirs: str
) -> None:
    keys = {option: in_form(theirs, glob), "labels": "none"}
    assert len(catalog(tmp_path, images(ours), **keys).items) == number


def test_parts_of_names_count_letters_and_not_their_accents() -> None:
    image, mask = in_form("NFD", "i/é_ü.jpg"), "m/é.png"
    for pattern in ("m/{stem[:1]}.png", "m/{stem:(.)_ü}.png"):
        assert pair_masks([image, mask], parse_mask_pattern(pattern)).of_image == {image: [mask]}
    assert np.array_equal(list(Texts.of([image]).composed()), [in_form("NFC", image)])
