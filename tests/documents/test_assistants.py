"""The cheat sheet, SKILL.md and llms.txt have the right commands for the tasks that people have."""

import ast
import inspect
import re
import shlex
from typing import Any

import pytest

from shardprep import reader
from shardprep.recipe.options import BUILD_OPTIONS
from shardprep.recipe.recipe import make_recipe
from tests.documents.assistant_pages import DOCS, llms_text, skill_text
from tests.documents.cli_page import parser

SKILL = (DOCS / "SKILL.md").read_text(encoding="utf-8")
SHEET = (DOCS / "cheatsheet.md").read_text(encoding="utf-8")
QUOTED = re.compile(r"`(shardprep [a-z].*?)`")
TASKS: dict[str, tuple[str, dict[str, str]]] = {
    "labels from a CSV": ("build", {"labels": "csv:.+"}),
    "patients": ("build", {"group": ".+"}),
    "leaks": ("report", {"dataset": ".+"}),
    "near copies": ("build", {"dedup": "near"}),
    "masks": ("build", {"masks": ".*{.+}.*"}),
    "machines": ("build", {"part": r"\d/\d"}),
    "damaged": ("verify", {"repair": "True", "source": ".+"}),
    "images or labels changed": ("build", {"reuse": ".+", "version": ".+"}),
    "Hugging Face": ("export", {"to": "parquet"}),
    "bucket": ("fetch", {"url": "s3://.+"}),
    "plan only": ("build", {"dry_run": "True"}),
    "merge": ("repack", {"datasets": ".+"}),
}
"""Words of a row → the command that it must have, and patterns of its options."""


def parsed(command: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the parameters of a command line, as the program reads them."""
    _, name, *arguments = shlex.split(command)
    context = parser().commands[name].make_context(name, arguments)
    return name, {key: one for key, one in context.params.items() if one not in (None, [])}


def commands(text: str) -> list[str]:
    return [one for one in QUOTED.findall(text) if "COMMAND" not in one and "SOURCE" not in one]


def test_the_pages_for_assistants_are_made_of_the_others() -> None:
    again = "run python -m tests.documents.assistant_pages"
    assert skill_text() == SKILL, again
    assert llms_text() == (DOCS / "llms.txt").read_text(encoding="utf-8"), again
    linked = re.findall(r"\]\(([\w.]+)\)", SKILL + llms_text())
    assert {path.name for path in DOCS.glob("*.md")} - {"SKILL.md"} <= {*linked}
    assert all((DOCS / name).is_file() for name in linked)


def test_the_program_understands_every_command_of_the_cheat_sheet() -> None:
    lines = commands(SHEET)
    assert len({*lines}) >= 25
    assert {*lines} <= {*commands(SKILL)}
    for line in [*lines, *commands(SKILL)]:
        name, given = parsed(line)
        if name == "build":
            keys = {key: one for key, one in given.items() if key in BUILD_OPTIONS}
            make_recipe({}, line, {"source": "x", **keys})


def test_the_cheat_sheet_fits_on_a_printed_page() -> None:
    assert len(SHEET.splitlines()) <= 62


@pytest.mark.parametrize("words", TASKS)
def test_an_assistant_finds_the_command_of_a_task(words: str) -> None:
    name, options = TASKS[words]
    rows = [row for row in SKILL.splitlines() if words in row.split("`")[0]]
    found = [parsed(line) for row in rows for line in commands(row)]
    assert any(
        name == one
        and all(re.fullmatch(like, str(given.get(key))) for key, like in options.items())
        for one, given in found
    ), found


def test_the_functions_of_the_cheat_sheet_take_the_arguments_that_it_gives_them() -> None:
    tree = ast.parse(SHEET.split("```python\n")[1].split("```")[0])
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    calls = {node.func.attr: node for node in nodes if isinstance(node.func, ast.Attribute)}
    known = {"load", "Dataset", "batches", "loader", "keras", "state_dict", "select", "table"}
    assert {*calls} == known
    del calls["state_dict"]  # of the batches
    for name, call in calls.items():
        owner = reader if name in reader.__all__ else reader.Dataset
        itself = [None] if owner is reader.Dataset else []
        given = {word.arg: None for word in call.keywords if word.arg}
        inspect.signature(getattr(owner, name)).bind(*itself, *call.args, **given)
