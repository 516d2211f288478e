"""Every command of the command line is a function of Python: the same options, the same result."""

import dataclasses
import importlib
import inspect
import re
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import typer

import shardprep
from shardprep.api import COMMANDS as MODULES
from shardprep.api.builds import Plan
from shardprep.cli import reports
from shardprep.cli.app import program
from shardprep.dataset.fetch import Fetched
from shardprep.recipe.keywords import Ids, Items, RecipeKeywords
from shardprep.recipe.options import BUILD_OPTIONS
from shardprep.recipe.recipe import _TYPES
from shardprep.reporter.report import Report
from shardprep.reporter.viewer.viewer import Viewer
from shardprep.verifier.problem import Verification
from shardprep.writer.build import PartResult
from shardprep.writer.finalize import BuildResult
from tests.support.json_page import RESULTS
from tests.support.paths import ROOT

COMMANDS: dict[str, Any] = vars(typer.main.get_command(program()))["commands"]
OUTPUT = {"as_json", "quiet", "log_level", "help_all"}
OF_A_TERMINAL = {*OUTPUT, "list_", "open_"}
"""Options of the command line only."""
NOT_WATCHED = {"inspect", "diff", "sample", "view"}
VALUES: dict[str, tuple[type, ...]] = {
    **RESULTS,
    "build": (BuildResult, PartResult, Plan),
    "finalize": (BuildResult,),
    "report": (Report,),
    "view": (Viewer,),
    "verify": (Verification,),
    "repack": (BuildResult,),
    "fetch": (Fetched,),
}
"""Command → types of the values that its function returns."""
OTHERWISE = {
    (BuildResult, "path"): "location",
    (PartResult, "path"): "location",
    (Verification, "path"): "location",
    (Fetched, "from"): "address",
    (Report, "path"): "name",  # the page has the one that the caller gave
}
"""Keys of JSON with another name in Python."""


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_a_function_with_its_options(name: str) -> None:
    command = inspect.signature(getattr(shardprep, name))
    here = set(command.parameters) - {"progress"}
    assert here == {one.name for one in COMMANDS[name].params} - OF_A_TERMINAL
    assert ("progress" in command.parameters) is (name not in NOT_WATCHED)
    for one in COMMANDS[name].params:
        assert one.default is None, "only the function has defaults"
        if one.name not in OF_A_TERMINAL:
            is_required = command.parameters[one.name].default is inspect.Parameter.empty
            assert one.required is is_required, one.name
    functions = importlib.import_module(f"shardprep.api.{MODULES[name]}")
    own = reports.OPTIONS.get(name, {})
    named = {one.name for one in COMMANDS[name].params} - OUTPUT
    assert {*functions.OPTIONS[name]} | {*own} == named


@pytest.mark.parametrize("name", COMMANDS)
def test_each_result_has_what_json_prints(name: str) -> None:
    assert len(VALUES[name]) == len(RESULTS[name])
    for value, printed in zip(VALUES[name], RESULTS[name], strict=True):
        for key in printed.__annotations__:
            attribute = OTHERWISE.get((value, key), key)
            fields = {one.name for one in dataclasses.fields(value)}
            assert attribute in fields or hasattr(value, attribute), (name, key)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_the_arguments_result_and_errors_of_a_function(name: str) -> None:
    text = inspect.getdoc(getattr(shardprep, name)) or ""
    assert text.splitlines()[0].endswith((".", ",", ":"))
    command = inspect.signature(getattr(shardprep, name))
    assert command.return_annotation is not inspect.Parameter.empty
    assert "Raises:" in text
    assert all(f"    {one}: " in text for one in command.parameters)


def test_the_types_of_an_option_include_the_declared_one() -> None:
    """They include text if the option is parsed from text, and tables for the rules of a table."""
    hints = typing.get_type_hints(RecipeKeywords)
    assert [*hints] == [name for name in BUILD_OPTIONS if name not in ("source", "out")]
    for name, hint in hints.items():
        declared = alternatives(_TYPES[name])
        assert declared <= alternatives(hint), name
        tables: dict[str, Any] = {
            "labels": Items,
            "relabel": Items,
            "items": Items,
            "exclude_list": Ids,
        }
        tables |= {"join": Items | Sequence[Items], "class_map": Path | Mapping[str, str]}
        more = alternatives(tables.get(name, str))
        assert alternatives(hint) - declared <= {str, int, list[str], dict[str, float], *more}
        assert (str in alternatives(hint)) >= (BUILD_OPTIONS[name].read is not None), name


def alternatives(hint: Any) -> set[Any]:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return set().union(*(alternatives(one) for one in typing.get_args(hint)))
    if typing.get_origin(hint) is Literal:
        return set(typing.get_args(hint))
    return {hint}


def test_the_table_has_each_function_and_its_result() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)\([^|]*\| `(\w+)` \|", page, re.MULTILINE))
    assert rows == {name: VALUES[name][0].__name__ for name in COMMANDS}
    assert {*rows} <= {*shardprep.__all__}
