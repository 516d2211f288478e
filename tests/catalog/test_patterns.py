"""A pattern of the user's on a stranger's names ends in time, or in one line that names both."""

import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.catalog import patterns
from shardprep.catalog.label_rules import label_keys
from shardprep.catalog.names import natural_order
from shardprep.catalog.patterns import Pattern
from shardprep.catalog.splits import group_keys
from shardprep.catalog.tables.key_index import KeyIndex
from shardprep.catalog.tables.row_matching import row_ids
from shardprep.catalog.tables.table import Table
from shardprep.errors import OptionName, RecipeError
from shardprep.recipe.rules import parse_group_rule, parse_label_rule
from tests.support.builders import build, jpeg, write, zip_bytes
from tests.support.command import run
from tests.support.examples import examples
from tests.support.paths import ROOT

LONG = "a" * 60 + "!.jpg"
DEEP = "a/" * 2040 + "x.jpg"
SLOW_GLOB = "a*" + "?" * 100 + "b"
SLOW: dict[str, tuple[str, dict[str, Any]]] = {
    "--labels": (LONG, {"labels": r"regex:(?P<label>([a-z]+)*)$"}),
    "--group": (LONG, {"group": r"regex:([a-z]+)*$"}),
    "--include": (DEEP, {"include": SLOW_GLOB}),
    "--exclude": (DEEP, {"exclude": SLOW_GLOB}),
    "--root": ("a" * 3900 + "/x.jpg", {"root": "a*" + "?" * 1000 + "b"}),
    "--split": (DEEP, {"split": f"roots:train={SLOW_GLOB}"}),
}


@pytest.mark.parametrize("option", SLOW)
def test_a_pattern_that_takes_too_long_is_one_line_that_names_it(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patterns, "FREE_S", 0.01)
    monkeypatch.setattr(patterns, "S_PER_NAME", 0.0)
    name, keys = SLOW[option]
    names = {name.replace(".jpg", f"{i}.jpg"): jpeg() for i in range(20)}
    source = write(tmp_path / "photos.zip", zip_bytes(names))
    start = time.process_time()
    with pytest.raises(RecipeError) as error:
        build(source, tmp_path / "out", **keys)
    assert time.process_time() - start < 5
    said = str(error.value)
    assert said.startswith(f"{option}: ")
    assert " takes more than 0.01 s to match, at last " in said
    assert len(said) < 400
    assert not (tmp_path / "out").exists()


def test_the_signals_of_the_program_are_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a search that ends; other threads have no signals, and search without a limit."""
    monkeypatch.setattr(patterns, "FREE_S", 0.05)
    seen = list[int]()
    before = signal.signal(signal.SIGVTALRM, lambda *_: seen.append(1))
    try:
        with pytest.raises(
            RecipeError, match=r"^--group: it takes more than 0\.05 s to match, at last aa"
        ):
            Pattern("([a-z]+)*$", OptionName("group"), "it").search(["1.jpg", LONG])
        assert Pattern("a", OptionName(""), "").search(["b"]) == [None]
        assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)
        with ThreadPoolExecutor(1) as other:
            assert other.submit(Pattern("a", OptionName(""), "").search, ["a", "b"]).result() == [
                "", None,
            ]  # fmt: skip
        signal.raise_signal(signal.SIGVTALRM)
        assert seen == [1]
    finally:
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("pattern", [r"(\d)?a(b+)?", r"^(.*?)[._](?P<label>.)", "|(x)", r"\s(.)"])
def test_what_is_found_is_what_python_finds(pattern: str, *, is_whole: bool) -> None:
    letters = "ab1._/\n é\udce9"
    names = ["".join(letters[(i * k) % 9] for k in range(1, i % 13)) for i in range(10_000)]
    compiled = re.compile(pattern)
    matches = [(compiled.fullmatch if is_whole else compiled.search)(name) for name in names]
    expected = [None if match is None else match[1] or "" for match in matches]
    assert (
        Pattern(pattern, OptionName(""), "", group=1, is_whole=is_whole).search(names) == expected
    )
    plain = Pattern(pattern, OptionName(""), "", is_whole=is_whole).search(names)
    assert [one is None for one in plain] == [match is None for match in matches]


def test_a_pattern_nested_too_deep_is_one_line(tmp_path: Path) -> None:
    write(tmp_path / "photos.zip", zip_bytes({f"cat_{i}.jpg": jpeg() for i in range(3)}))
    done = run("build", "photos.zip", "--labels", "regex:" + "(" * 5000, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("--labels: regex:((((")
    assert len(done.stderr) < 400


_OLD_PREFIX = re.compile(r"(?P<label>.*?)[\s._-]*\(?\d+\)?$")


@given(st.lists(st.text("ab1 2._-()٣", min_size=1, max_size=12), min_size=1))
@examples(100)
def test_the_label_before_a_number_is_found_from_the_end(names: list[str]) -> None:
    keys = [f"{name}.jpg" for name in names]
    matches = [_OLD_PREFIX.match(PurePosixPath(key).stem) for key in keys]
    expected = [match["label"] or None if match else None for match in matches]
    assert label_keys(KeyIndex(keys), parse_label_rule("prefix"), ()).names == expected


@pytest.mark.parametrize("part", ["_", "1", " -_.", "1_", "(", "cat."])
def test_our_own_patterns_take_no_square_of_a_name_s_length(part: str) -> None:
    """Four hundred names of the greatest length, which took 0.15 to 0.26 s each."""
    keys = [part * (4000 // len(part)) + f"x{i}y.jpg" for i in range(400)]
    start = time.process_time()
    for rule in ("prefix", "folder", "auto"):
        label_keys(KeyIndex(keys), parse_label_rule(rule), ())
    assert time.process_time() - start < 5


def test_numbers_of_any_length_are_ordered() -> None:
    nines = "9" * 100_000
    names = [f"a{nines}1", f"a{nines}", "a10", "a9", "a00", "a0009b"]
    assert sorted(names, key=natural_order) == [
        "a00", "a9", "a0009b", "a10", f"a{nines}", f"a{nines}1",
    ]  # fmt: skip


@pytest.mark.parametrize("depth", ["9" * 5000, "0", "x", "-1"])
def test_an_invalid_folder_number_is_an_error(depth: str) -> None:
    with pytest.raises(RecipeError, match=r"^--labels: folder:.* is not folder:N"):
        parse_label_rule(f"folder:{depth}")
    with pytest.raises(RecipeError, match=r"^--group: folder:.* is not folder:N"):
        group_keys(["a/b.jpg"], parse_group_rule(f"folder:{depth}"), None)


def test_a_slice_with_a_very_long_number_is_not_a_field() -> None:
    _, ids = row_ids(Table("t.csv", ("id",), [["abc"]]), "{id[0:2]}/{id[%s]}" % ("9" * 5000))
    assert ids[0].startswith("ab/{id[999")


def test_the_document_states_the_limits() -> None:
    text = " ".join((ROOT / "docs" / "splits.md").read_text().split())
    free, more = patterns.FREE_S, patterns.S_PER_NAME * 1e6
    assert f"{free:g} s of a processor and {more:g} µs more for each image" in text
