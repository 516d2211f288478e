"""Where the files of the project lie."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The top of the checkout."""
README = (ROOT / "README.md").read_text()
