"""Cells of tables for spreadsheets: no text is a formula, and each can be read back."""

import csv
import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardprep.dataset.card import from_cell, to_cell
from tests.support.examples import texts

STARTS = "=+-@\t\r\n＝＋－＠"


@example("'=1")
@example("''-1")
@given(texts() | st.text(alphabet="'=+-@19.e\t "))
def test_a_text_is_restored_and_its_cell_is_not_a_formula(text: str) -> None:
    cell = to_cell(text)
    assert from_cell(cell) == text
    assert not cell.startswith(tuple(STARTS)) or float(cell) is not None


@pytest.mark.parametrize("start", STARTS)
def test_a_possible_formula_gets_an_apostrophe(start: str) -> None:
    for text in (f"{start}cmd|' /C calc'!A0", start, f"{start}1+1"):
        assert to_cell(text) == f"'{text}"


@pytest.mark.parametrize("value", ["cat.1.jpg", "", "a=b", "-1.5", "+3e-7", "-.5", 3, -1.5, None])
def test_numbers_and_other_values_stay(value: object) -> None:
    assert to_cell(value) == value


def test_a_row_is_read_back_from_csv() -> None:
    row = ['=HYPERLINK("http://x","y")', "@a,b", "-\n", "'+x", "plain"]  # fmt: skip
    text = io.StringIO()
    csv.writer(text).writerow(map(to_cell, row))
    text.seek(0)
    assert [from_cell(one) for one in next(csv.reader(text))] == row
