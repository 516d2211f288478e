"""The pages for contributors: rooms, modules and words that they name are there."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import ROOT
from tests.test_architecture import MAY_IMPORT, PACKAGE

PAGE = (ROOT / "docs" / "architecture.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()


def test_the_page_has_a_row_for_each_room() -> None:
    rows = re.findall(r"^\| (`[^|]*) \|", PAGE.split("## The way of one image")[0], re.MULTILINE)
    names = {name.rstrip("/") for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert names == MAY_IMPORT.keys() - {"__main__"}


@pytest.mark.parametrize("page", [PAGE, CONTRIBUTING], ids=["architecture", "contributing"])
def test_modules_that_a_page_names_are_there(page: str) -> None:
    named = set(re.findall(rf"`((?:{'|'.join(MAY_IMPORT)})/[\w/]*)`", page))
    assert named
    gone = {
        name
        for name in named
        if not (PACKAGE / name).is_dir() and not (PACKAGE / f"{name}.py").exists()
    }
    assert not gone


def test_the_states_of_a_build_are_those_of_the_room_that_has_them() -> None:
    def rows(text: str) -> list[str]:
        """Return the cells of the table of states, those of a row that goes on joined."""
        found: list[list[str]] = []
        for line in text.split("| state", 1)[1].splitlines()[2:]:
            if not line.startswith("|"):
                break
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if cells[0]:
                found.append(cells)
            else:
                found[-1] = [f"{a} {b}".strip() for a, b in zip(found[-1], cells, strict=True)]
        return ["; ".join(cells) for cells in found]

    states = rows((PACKAGE / "writer" / "workspace" / "__init__.py").read_text())
    assert len(states) == 9
    assert rows(PAGE) == states


def test_words_stand_once_and_in_order() -> None:
    words = re.findall(r"^\| ([a-z ]+) \|", GLOSSARY, re.MULTILINE)[1:]
    assert words == sorted(set(words))
    assert len(words) > 30
