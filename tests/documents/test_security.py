"""Each claim of docs/security.md is held by a test; docs/trust.md has what the suite has tried."""

import ast
import re
from typing import Any

import pytest

from shardprep.catalog import patterns
from shardprep.recipe.document import read_recipe
from shardprep.source.file_listing import LEADS_OUTSIDE
from tests.dataset.resigned import MANIFESTS
from tests.documents.trust import PAGE as TRUST
from tests.documents.trust import page_text
from tests.source.ordeal import Ordeal
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text()
TEXT = " ".join(PAGE.split())
ROWS = re.findall(r"`(\w+/test_\w+\.py)::(test_\w+)` \|", TEXT)


def test_every_row_names_a_test() -> None:
    assert len(ROWS) == len(re.findall(r"^\|", PAGE, re.MULTILINE)) - 2 >= 16


@pytest.mark.parametrize(("file", "test"), ROWS)
def test_the_test_of_each_row_exists(file: str, test: str) -> None:
    assert f"\ndef {test}(" in (ROOT / "tests" / file).read_text()


def test_the_limits_equal_those_of_the_program() -> None:
    free, more = patterns.FREE_S, patterns.S_PER_NAME * 1e6
    assert f"more than {free:g} s of a processor and {more:g} µs for each name" in TEXT
    assert "larger than 1 MiB" in TEXT
    assert read_recipe.__globals__["_MOST_FILE_BYTES"] == 1 << 20
    assert f"reason `{LEADS_OUTSIDE}`" in TEXT


def constant(file: str, name: str) -> Any:
    """Return the expression that a test module assigns to a name."""
    (value,) = (
        node.value
        for node in ast.parse((ROOT / "tests" / file).read_text()).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and re.match(rf"{name}\b", ast.unparse(node))
    )
    return value


def test_the_counts_equal_those_of_the_tests() -> None:
    links = len(constant("source/test_links.py", "OUTSIDE").elts)
    slow = len(constant("catalog/test_patterns.py", "SLOW").keys)
    files = len(constant("recipe/test_recipe.py", "HOSTILE").keys)
    random, documents = (
        sum(ast.literal_eval(constant(file, "NUM_RANDOM")))
        for file in ("recipe/test_recipe.py", "dataset/test_hostile_documents.py")
    )
    assert f"{links} kinds of links in an untrusted folder, {slow} options with a pattern" in TEXT
    assert f"{files} hostile recipe files and {random} random ones" in TEXT
    assert f"{len(MANIFESTS)} manifests make false claims under a correct hash" in TEXT
    assert f"changed at random, {documents} times in each run" in TEXT


@pytest.mark.thorough
def test_the_trust_page_equals_the_results(ordeal: Ordeal) -> None:
    text = TRUST.read_text(encoding="utf-8")
    assert text == page_text(ordeal), "run: python -m tests.documents.trust"
