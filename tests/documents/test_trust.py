"""docs/trust.md claims what the suite has tried, and no more."""

from __future__ import annotations

from tests.support.trust import PAGE, page_text


def test_the_page_is_what_was_tried() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_text(), "run: python -m tests.support.trust"
