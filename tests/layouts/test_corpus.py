"""No row of the corpus is read worse than it was, and the flags of each row build it right."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.competitions.page import COMPETITIONS
from tests.support.corpus import Fact, Row, options_of, rows, without_choices
from tests.support.first_contact import STATUSES, judged, outcome, stored_statuses, wanted_facts
from tests.support.layouts import LAYOUTS

ROWS = {row.id: row for row in rows()}
STORED = stored_statuses()
OWN = [row for row in rows() if row.facts is not None]
KAGGLE = [row for row in rows() if row.family == "kaggle"]
COPIES = [row for row in rows() if row.family == "competitions"]
_TILE = re.compile(r"/y\d+_x\d+$")


def test_each_row_has_a_name_of_its_own_and_a_status() -> None:
    assert len(rows()) == len(ROWS) >= 150
    assert Counter(row.family for row in rows())["controls"] >= 15
    assert STORED.keys() == ROWS.keys(), "run: python -m tests.layouts --write"


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.id)
def test_a_build_without_flags_is_not_worse_than_it_was(row: Row, tmp_path: Path) -> None:
    status, detail = judged(row, tmp_path)
    assert STATUSES.index(status) <= STATUSES.index(STORED[row.id]), detail


@pytest.mark.parametrize("change", ["another class", "a mask", "no record", "another split"])
def test_a_record_that_nobody_wants_is_never_right(change: str, tmp_path: Path) -> None:
    row = ROWS["controls/equal-numbers"]
    key, facts = "pets/cat/001.jpg", dict(row.facts or {})
    facts[key] = {
        "another class": {"split": "train", "label": "dog"},
        "a mask": {"split": "train", "mask": "pets/dog/001.jpg"},
        "another split": {"split": "test", "label": "cat"},
        "no record": {},
    }[change]
    if not facts[key]:
        del facts[key]
    status, detail = judged(replace(row, facts=facts), tmp_path)
    assert status == "wrong"
    assert detail.startswith(f"{key}: train label=cat, not ")


@pytest.mark.parametrize("row", [row for row in OWN if not row.cannot], ids=lambda row: row.id)
def test_the_flags_of_a_row_build_it_right(row: Row, tmp_path: Path) -> None:
    found = outcome(row.write_source(tmp_path), without_choices(row.flags))
    assert not found.error
    bare = {key: fact for key, fact in found.facts.items() if key not in row.free}
    assert bare == row.facts


@pytest.mark.parametrize("row", [row for row in OWN if row.cannot], ids=lambda row: row.id)
def test_no_flags_build_a_row_that_says_so(row: Row, tmp_path: Path) -> None:
    found = outcome(row.write_source(tmp_path), without_choices(row.flags))
    assert found.facts != row.facts


def test_what_a_person_wants_of_a_layout_is_what_its_table_says(tmp_path: Path) -> None:
    for layout, row in zip(LAYOUTS, KAGGLE, strict=True):
        facts, _ = wanted_facts(row, row.write_source(tmp_path / row.name))
        if row.flags == layout.flags and without_choices(row.flags) == options_of(row.flags):
            assert {key: _target(facts[key]) for key in layout.targets} == layout.targets, row.name


def _target(fact: Fact) -> object:
    if "labels" in fact:
        return tuple(filter(None, fact["labels"].split(",")))
    return float(fact["number"]) if "number" in fact else fact.get("label", fact.get("text"))


def test_what_a_person_wants_of_a_competition_are_the_records_of_its_copy(tmp_path: Path) -> None:
    for twin, row in zip(COMPETITIONS, COPIES, strict=True):
        facts, free = wanted_facts(row, row.write_source(tmp_path / row.name))
        keys = {_TILE.sub("", key) for key in twin.expected(twin.members())}
        assert keys - {*free} <= facts.keys() <= keys, row.name
