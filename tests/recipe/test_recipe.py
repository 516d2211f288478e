"""A recipe that cannot be used is one plain line, which names the flag or the key it came from."""

import os
import re
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.errors import RecipeError, ShardprepError, printable
from shardprep.recipe.document import read_recipe
from shardprep.recipe.options import BUILD_OPTIONS, RUN_OPTIONS
from shardprep.recipe.recipe import Recipe, make_recipe
from tests.support.builders import animals, write, zip_bytes
from tests.support.command import error_of, run
from tests.support.examples import examples, texts
from tests.support.paths import ROOT, data_rows

KEYS = sorted(BUILD_OPTIONS)
MOST = 400
NUM_RANDOM = 200, 200
"""Recipes of random values, and files of random content."""


@pytest.fixture(name="here")
def _here(tmp_path: Path) -> Path:
    write(tmp_path / "pets.zip", zip_bytes(animals(4)))
    return tmp_path


def made(keys: dict[str, Any], flags: Collection[str] = ()) -> Recipe:
    """Return the recipe of these keys; `flags` are those of the command line."""
    file = {key: value for key, value in keys.items() if key not in flags}
    given = {key: value for key, value in keys.items() if key in flags}
    return make_recipe({"source": "x.zip", **file}, "shardprep.toml", given)


def said_of(keys: dict[str, Any], flags: tuple[str, ...] = ()) -> str:
    """Return the error of a recipe of these keys; `flags` are those of the command line."""
    with pytest.raises(RecipeError) as error:
        made(keys, flags)
    return str(error.value)


WRONG = data_rows("recipe", "wrong") | {
    "max_pixels": (10**400, "a number of twenty digits or more is not a whole number from 1 to 1"),
    "max_member_size": ("9" * 400, "'99999999999999999"),
    "include": ("a\0b", "must not contain a null character"),
    "source": ("x" * 5000, "must have at most 4,096 characters"),
}


@pytest.mark.parametrize("key", WRONG)
def test_a_wrong_value_names_the_flag_or_the_key_and_what_is_wanted(key: str) -> None:
    value, message = WRONG[key]
    flag = "SOURCE" if key == "source" else f"--{key.replace('_', '-')}"
    assert said_of({key: value}).startswith(f"shardprep.toml: {key}: {message}")
    assert said_of({key: value}, (key,)).startswith(f"{flag}: {message}")


def test_problems_of_both_origins_each_name_their_own() -> None:
    keys = {"version": "abc", "quality": 0, "fit": "zoom"}
    assert said_of(keys, ("version",)) == (
        "--version: 'abc' must be three numbers, such as 1.0.0; "
        "shardprep.toml: fit: 'zoom' is not one of auto, crop, pad, stretch, within, none; "
        "quality: 0 is not a whole number from 1 to 100"
    )


@pytest.mark.parametrize(("keys", "key", "message"), data_rows("recipe", "contradictions"))
def test_a_contradiction_names_where_it_came_from(
    keys: dict[str, Any], key: str, message: str
) -> None:
    assert said_of(keys).startswith(f"shardprep.toml: {key}: {message}")
    assert said_of(keys, tuple(keys)).startswith(f"--{key.replace('_', '-')}: {message}")


def test_the_command_line_blames_what_was_given(here: Path) -> None:
    file = b'source = "pets.zip"\nlabels = "fold"\nsplit = "train=2"\n'
    write(here / "shardprep.toml", file)
    said = error_of(run("build", "--version", "abc", cwd=here), 2)
    assert said.startswith("--version: 'abc' must be three numbers")
    said = error_of(run("build", cwd=here), 2)
    assert said.startswith("shardprep.toml: labels: 'fold' is not a rule for labels")
    said = error_of(run("build", "--labels", "fol", cwd=here), 2)
    assert said.startswith("--labels: 'fol' is not a rule for labels")


def test_options_of_one_run_are_no_keys_and_say_so() -> None:
    assert not RUN_OPTIONS.keys() & set(KEYS)
    for key in RUN_OPTIONS:
        flag = f"--{key.replace('_', '-')}"
        assert said_of({key: 1}) == (
            f"shardprep.toml: {key}: unknown key; is for one run: give {flag} on the command line"
        ).replace("unknown key; ", "")
    text = " ".join((ROOT / "docs" / "recipe.md").read_text().split())
    assert "Options that decide what the dataset contains are also keys of `shardprep.toml`" in text


def test_problems_of_many_keys_are_one_short_line() -> None:
    said = said_of({f"key-{i}\n\x1b[2J": i for i in range(500)})
    assert len(said) < MOST
    assert printable(said) == said
    assert re.search(r"; and 49\d more$", said)


HOSTILE = {
    "nested": ("a = " + "[" * 100_000, "is not TOML"),
    "nested tables": ("a = " + "{b = " * 5000, "is not TOML"),
    "digits": ("seed = " + "9" * 5000, "is not TOML"),
    "dotted": ("a." * 100_000 + "a = 1", "has a key of more than 16 parts"),
    "dotted header": ("[" + "'a' . " * 100_000 + "a]", "has a key of more than 16 parts"),
    "after a comment": (
        '# """ don\'t\n' + "a." * 100_000 + 'a = 1\n# """',
        "of more than 16 parts",
    ),
    "large": ("#" * (2 << 20), "bytes, more than 1 MiB"),
    "both": ("max-rejected = 1\nmax_rejected = 0.5\n", "has max_rejected twice, with - and with _"),
    "no text": ("\udcff", "cannot be read"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_one_line_within_seconds(kind: str, tmp_path: Path) -> None:
    text, message = HOSTILE[kind]
    path = write(tmp_path / "shardprep.toml", text.encode(errors="surrogateescape"))
    start = time.process_time()
    with pytest.raises(RecipeError) as error:
        read_recipe(path)
    assert time.process_time() - start < 2
    assert message in str(error.value)
    assert len(error.value.what) < MOST


def test_strings_with_dots_are_not_keys(tmp_path: Path) -> None:
    name = "'" + "a." * 40 + "'"
    text = f'null = [{name}, """{"b." * 40}\n"""]  # {"c." * 40}\nseed = 3\n'
    path = write(tmp_path / "shardprep.toml", b"\xef\xbb\xbf" + text.encode())
    assert read_recipe(path) == {"null": ["a." * 40, "b." * 40 + "\n"], "seed": 3}


def test_a_recipe_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "shardprep.toml")
    with pytest.raises(RecipeError, match="a pipe, not a regular file"):
        read_recipe(tmp_path / "shardprep.toml")


VALUES = st.recursive(
    st.one_of(
        st.booleans(), st.integers(), st.floats(), texts(), st.dates(), st.datetimes(),
        st.sampled_from([10**400, -(10**400), 2**63, "\0", "\x1b[2J", "1" * 5000, "none", "nan%"]),
        st.just("\u202e" * 300),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts(), inner, max_size=4),
    max_leaves=6,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(KEYS) | texts(max_size=50), VALUES, max_size=4))
@examples(NUM_RANDOM[0])
def test_no_value_is_a_traceback(keys: dict[str, Any]) -> None:
    for flags in ((), tuple(keys)):
        said = ""
        try:
            assert made(keys, flags).dataset_name
        except ShardprepError as error:
            said = str(error)
            assert len(said) < MOST, said
            assert printable(said) == said


@given(st.binary(max_size=200) | texts().map(lambda text: f"size = {text}".encode()))
@examples(NUM_RANDOM[1])
def test_no_file_is_a_traceback(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder, "shardprep.toml"), data)
        said = ""
        try:
            make_recipe({"source": "x.zip", **read_recipe(path)}, "shardprep.toml")
        except RecipeError as error:
            said = str(error).removeprefix(folder)
        assert printable(said) == said
        assert len(said) < MOST
