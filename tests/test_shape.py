"""The shape of the package in numbers that may not grow."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pathlib import Path

import pytest

import shardprep
from shardprep.cli.app import _COMMANDS

PACKAGE = Path(shardprep.__file__).parent


def classes() -> list[ast.ClassDef]:
    """Return all classes of the package."""
    trees = (ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py"))
    return [one for tree in trees for one in ast.walk(tree) if isinstance(one, ast.ClassDef)]


def test_one_protocol_receives_progress() -> None:
    """And one class makes of it what users see."""
    receivers = {
        one.name
        for one in classes()
        if {"start", "advance"} <= {part.name for part in one.body if hasattr(part, "name")}
    }
    assert receivers == {"Watcher", "Watch"}


@pytest.mark.parametrize("name", _COMMANDS)
def test_an_option_is_declared_once(name: str) -> None:
    """Beside the function of Python; the command line declares only options of its own."""
    module = import_module(f"shardprep.api.{name}")
    parameters = set(inspect.signature(getattr(module, name)).parameters)
    assert parameters - {"progress", "recipe"} <= set(module.OPTIONS)
    terminal = inspect.signature(import_module(f"shardprep.cli.{name}").run).parameters
    assert not {"dataset", "workers", "split", "out"} & set(terminal)
