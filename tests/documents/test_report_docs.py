"""docs/report.md and its picture say and show what the program does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from shardprep.reporter.findings.finding import MEANINGS
from tests.documents.report_picture import MOST_BYTES, PICTURE, SIZE, draw
from tests.support.browser import need_browser
from tests.support.paths import README, ROOT

PAGE = (ROOT / "docs" / "report.md").read_text()


def test_the_page_names_every_finding_and_its_meaning() -> None:
    rows = re.findall(r"^\| `([a-z][a-z-]*)` \| (.*) \|$", PAGE, re.MULTILINE)
    assert rows == list(MEANINGS.items())


def test_the_picture_of_the_readme_is_small() -> None:
    assert f"]({PICTURE.relative_to(ROOT)})" in README
    assert PICTURE.stat().st_size <= MOST_BYTES
    assert Image.open(PICTURE).size == SIZE


@pytest.mark.thorough
def test_the_picture_can_be_drawn_anew(tmp_path: Path) -> None:
    """Fonts differ between machines, so it is not compared dot by dot."""
    drawn = draw(need_browser(), tmp_path)
    (tmp_path / "drawn.png").write_bytes(drawn)
    assert len(drawn) <= MOST_BYTES
    colours = Image.open(tmp_path / "drawn.png").convert("RGB").resize((60, 75))
    kept = Image.open(PICTURE).convert("RGB").resize((60, 75))
    apart = [abs(a - b) for a, b in zip(colours.tobytes(), kept.tobytes(), strict=True)]
    assert sum(apart) / len(apart) < 8
