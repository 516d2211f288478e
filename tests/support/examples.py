"""How many random cases a test tries: all in the gate, a fifth while one works.

Hypothesis's profile decides, which `tests/conftest.py` loads.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st

_MANY = int(os.environ.get("SHARDPREP_FUZZ", "0"))
"""Cases of each kind of damage; for whoever has time SHARDPREP_FUZZ=10000 pytest …/test_fuzz.py."""
_FULL, _QUICK = 100, 20
"""Cases of a test that names no number, in the two profiles."""
in_time = pytest.mark.timeout(0 if _MANY else 120)


def texts(max_size: int | None = None) -> st.SearchStrategy[str]:
    """Return what draws any text that has UTF-8: `st.text` takes 2 s to find out which have."""
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=max_size)


def load_profile(*, quick: bool) -> None:
    """Choose how many cases the tests that are imported from now on try."""
    # A busy machine is no fault of the program: there is no deadline.
    settings.register_profile("full", deadline=None, max_examples=_FULL)
    settings.register_profile("quick", deadline=None, max_examples=_QUICK)
    settings.load_profile("quick" if quick else "full")


def examples(number: int, **more: Any) -> settings:
    """Return the settings of a test with this number of cases in the gate."""
    return settings(
        max_examples=max(number * settings().max_examples // _FULL, 1), deadline=None, **more
    )


def fuzzed(number: int, **more: Any) -> settings:
    """Return the settings of a test whose cases are damage, the same in every run."""
    if _MANY:
        return settings(max_examples=_MANY, deadline=None, database=None, derandomize=True, **more)
    return examples(number, database=None, derandomize=True, **more)
