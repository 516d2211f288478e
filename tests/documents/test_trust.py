"""docs/trust.md claims what the suite has tried, and no more."""

from __future__ import annotations

import pytest

from tests.documents.trust import PAGE, page_text
from tests.source.ordeal import Ordeal


@pytest.mark.thorough
def test_the_page_is_what_was_tried(ordeal: Ordeal) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page_text(ordeal), "run: python -m tests.documents.trust"
