"""The groups of measurements, and the places of their figures in docs/performance.md."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import parent
from benchmarks.measure import ROOT
from benchmarks.table import machine, replaced, table

if TYPE_CHECKING:
    from benchmarks.measure import Measure, Row

GROUPS = (
    "build", "start", "formats", "sources", "parent", "many_workers", "memory", "plan",
    "verify", "read", "read_arrays", "read_workers", "read_formats", "read_torch", "read_store",
    "first_batch", "resample", "augment", "report", "near", "view", "reuse",
)  # fmt: skip
"""Names of scripts, and of the markers in the document."""
DOCUMENT = ROOT / "docs" / "performance.md"


def declared(group: str) -> tuple[Measure, ...]:
    """Return the measures of a group, without running it."""
    measures: tuple[Measure, ...] = importlib.import_module(f"benchmarks.{group}").MEASURES
    return measures


def measured(group: str, rounds: int, *, quick: bool) -> list[Row]:
    """Return the rows of a group, measured now."""
    script = importlib.import_module(f"benchmarks.{group}")
    with tempfile.TemporaryDirectory() as folder:
        found: list[Row] = script.rows(Path(folder), rounds, quick=quick)
    return found


def written(text: str, group: str, rows: list[Row]) -> str:
    """Return the text of the document with new figures of one group."""
    text = replaced(text, group, f"{table(rows)}\n\n{machine()}")
    if group == "parent":
        text = replaced(text, "scaling", parent.scaling(rows))
    return text
