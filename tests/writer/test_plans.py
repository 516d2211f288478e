"""Plans do not change, item by item."""

import importlib.util
import json
from pathlib import Path

import pytest

from tests.writer.plans import CASES, HASHES, digest, planned

KNOWN: dict[str, str] = json.loads(HASHES.read_text(encoding="utf-8"))


def test_every_case_has_its_hash() -> None:
    assert KNOWN.keys() == CASES.keys()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.thorough) if name.startswith("many") else name
        for name in CASES
    ],
)
def test_a_plan_has_its_golden_hash(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    if case.needs and importlib.util.find_spec(case.needs) is None:
        pytest.skip(f"needs {case.needs}")
    plan = planned(case, tmp_path)
    assert digest(plan, has_sizes=name.startswith("many")) == KNOWN[name]
