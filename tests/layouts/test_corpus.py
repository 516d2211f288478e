"""No row of the corpus is read worse than it was, and the flags of each row build it right."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.support.competitions.page import COMPETITIONS
from tests.support.corpus import Fact, Row, options_of, rows, without_choices
from tests.support.first_contact import STATUSES, judged, outcome, stored_statuses, wanted_facts
from tests.support.layouts import LAYOUTS

ROWS = {row.id: row for row in rows()}
STORED = stored_statuses()
_KAGGLE = [row.id for row in rows() if row.family == "kaggle"]
_COPIES = [row.id for row in rows() if row.family == "competitions"]
LAYOUT_OF = dict(zip(_KAGGLE, LAYOUTS, strict=True))
TWIN_OF = dict(zip(_COPIES, COMPETITIONS, strict=True))
_TILE = re.compile(r"/y\d+_x\d+$")


def test_each_row_has_a_name_of_its_own_and_a_status() -> None:
    assert len(rows()) == len(ROWS) >= 150
    assert Counter(row.family for row in rows())["controls"] >= 15
    assert STORED.keys() == ROWS.keys(), "run: python -m tests.layouts --write"


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.id)
def test_a_row_is_right_with_its_flags_and_not_worse_without_them(row: Row, tmp_path: Path) -> None:
    source = row.write_source(tmp_path)
    wanted, free = wanted_facts(row, source)
    if row.facts is not None:
        found = outcome(source, without_choices(row.flags))
        if row.cannot:
            assert found.facts != row.facts
        else:
            assert not found.error
            assert {key: one for key, one in found.facts.items() if key not in free} == row.facts
    elif row.id in LAYOUT_OF:
        layout = LAYOUT_OF[row.id]
        if row.flags == layout.flags and without_choices(row.flags) == options_of(row.flags):
            assert {key: _target(wanted[key]) for key in layout.targets} == layout.targets
    else:
        twin = TWIN_OF[row.id]
        keys = {_TILE.sub("", key) for key in twin.expected(twin.members())}
        assert keys - {*free} <= wanted.keys() <= keys
    stored = STORED[row.id]
    status, detail = judged(row, source, wanted, free, enough=stored)
    assert STATUSES.index(status) <= STATUSES.index(stored), detail


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
    status, detail = judged(row, row.write_source(tmp_path), facts, row.free)
    assert status == "wrong"
    assert detail.startswith(f"{key}: train label=cat, not ")


def _target(fact: Fact) -> object:
    if "labels" in fact:
        return tuple(filter(None, fact["labels"].split(",")))
    return float(fact["number"]) if "number" in fact else fact.get("label", fact.get("text"))
