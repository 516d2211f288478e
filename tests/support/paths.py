"""Where the files of the project lie."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The top of the checkout."""
DATA = ROOT / "tests" / "data"
"""Rows of tests that are data."""
README = (ROOT / "README.md").read_text()
