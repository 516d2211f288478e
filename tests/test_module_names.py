"""Names of modules that are written as strings: a move must not break one without a word.

A string of the form `shardprep.room.module` is the name of a module. The other forms are listed
here: a new one needs a row.
"""

import importlib
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from shardprep import reader
from shardprep.exporter.export import LAYOUTS
from shardprep.source.kaggle import client
from shardprep.writer.engine import PRELOADED

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "shardprep"
PARTLY = {
    ("cli/options.py", "shardprep.cli."): "module of a command",
    ("cli/options.py", "shardprep.api."): "module of a command",
    ("exporter/export.py", "shardprep.exporter."): "layout",
    ("reporter/viewer/viewer.py", "shardprep.reporter."): "room with the file of a page",
    ("__init__.py", "shardprep.api."): "module of a command",
    ("reader/tf/finish.py", "shardprep.reader.augment."): "module of an op",
}
"""File and the f-string that names a module there → meaning of the placeholder."""
LOGGERS = {"shardprep.view"}
FILES = {"shardprep.toml"}


def test_each_dotted_name_in_a_string_is_a_module_or_listed_here() -> None:
    partly = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for text in set(re.findall(r'"(shardprep(?:\.\w+)+)"', source)) - LOGGERS - FILES:
            assert importlib.util.find_spec(text), f"{path}: {text}"
        parts = re.findall(r'"(shardprep\.(?:[a-z_]+\.)+)["{]', source)
        partly |= {(str(path.relative_to(PACKAGE)), text) for text in parts}
    assert partly == PARTLY.keys()


@pytest.mark.parametrize("name", [name for name in reader.__all__ if name != "augment"])
def test_each_public_name_of_the_reader_is_there(name: str) -> None:
    assert getattr(reader, name) is not None


@pytest.mark.parametrize(("layout", "module"), LAYOUTS.items())
def test_each_layout_of_export_is_in_a_module(layout: str, module: str) -> None:
    assert layout in importlib.import_module(f"shardprep.exporter.{module}").WRITERS


def test_launched_and_preloaded_modules_exist() -> None:
    assert importlib.util.find_spec(client.__name__)
    for name in PRELOADED:
        assert importlib.util.find_spec(name), name


def test_names_in_the_project_file_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    tool = project["tool"]
    for pattern in tool["ruff"]["lint"]["per-file-ignores"]:
        assert list(ROOT.glob(pattern)), pattern
    for name in tool["ruff"]["lint"]["flake8-type-checking"]["runtime-evaluated-base-classes"]:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name
    for script in project["project"]["scripts"].values():
        module, _, attribute = script.partition(":")
        assert hasattr(importlib.import_module(module), attribute), script
