"""A real browser, where the machine has one: Debian's Chromium, driven by playwright.

SHARDPREP_BROWSER names another. Where there is none the tests are skipped, and the last lines of
the run say so; with SHARDPREP_NEEDS_BROWSER, as CI sets it, that is a failure.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page as Tab

PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")
_NAMED, _NEEDED = "SHARDPREP_BROWSER", "SHARDPREP_NEEDS_BROWSER"
MISSING = f"no browser: apt-get install chromium-headless-shell, or set {_NAMED}"


def browser_program() -> str | None:
    """Return the path of a browser, or None if a browser or Playwright is missing."""
    if importlib.util.find_spec("playwright") is None:
        return None
    named = os.environ.get(_NAMED)
    return next(filter(None, map(shutil.which, (named,) if named else PROGRAMS)), None)


def need_browser() -> str:
    program = browser_program()
    if program is None:
        if os.environ.get(_NEEDED):
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    return program


def serious(page: Tab, within: str | None = None) -> list[tuple[str, str]]:
    """Return the serious findings of axe in a page, or in a part of it: rule and HTML."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, within).response["violations"]
    return [
        (one["id"], one["nodes"][0]["html"])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
