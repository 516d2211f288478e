"""The rules of the house: which room may import which, and what may not be imported at all."""

import ast
import functools
import graphlib
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import shardprep
from tests.support.paths import ROOT
from tests.support.processes import loaded

PACKAGE = Path(__file__).parents[1] / "shardprep"
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}
GROUND_FLOOR = {"errors", "machine", "profiling", "progress", "processes"}
"""What any room may use, because it uses nothing of them; arrows to it are not counted."""
MAY_IMPORT = {
    "errors": "",
    "machine": "",
    "profiling": "",
    "progress": "",
    "storage": "errors",
    "processes": "",
    "image": "machine profiling",
    "dataset": "image storage progress errors",
    "source": "image storage progress errors",
    "recipe": "source dataset image storage errors",
    "catalog": "recipe source dataset image storage machine errors",
    "reader": "dataset image storage processes machine errors",
    "writer": "catalog recipe source dataset image storage processes machine profiling progress"
    " errors",
    "verifier": "writer dataset storage processes progress errors",
    "exporter": "dataset storage progress errors",
    "benchmark": "reader dataset processes machine errors",
    "reporter": "reader dataset image storage machine progress errors",
    "api": "reporter benchmark exporter verifier writer catalog reader recipe source dataset"
    " storage processes machine profiling progress errors",
    "cli": "api writer recipe dataset storage errors",
    "__main__": "cli",
}
"""Room → the rooms it imports, for types as well; a reader needs neither writer nor recipe."""
WITH_TENSORFLOW = ("reader.tf.", "reader.augment", "reader.diagnosis.", "benchmark.")
WITH_KERAS = (*WITH_TENSORFLOW, "reader.keras.", "reader.resume_in_epoch.")


@functools.cache
def imports(module: str) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(name if name in MODULES else node.module for name in inner)
    return frozenset(found)


def rooms() -> dict[str, set[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for module in MODULES:
        room = module.split(".")[1:2]
        for name in imports(module):
            other = name.split(".")[1:2] if name.startswith("shardprep.") else []
            if room and other and room != other:
                found[room[0]].add(other[0])
        found.update({room[0]: found[room[0]]} if room else {})
    return found


def test_each_room_imports_the_rooms_that_its_rule_names() -> None:
    """Exactly these rooms."""
    assert {room: set(names.split()) for room, names in MAY_IMPORT.items()} == rooms()


def test_rooms_are_listed_after_the_rooms_they_import() -> None:
    built: set[str] = set()
    for room, names in MAY_IMPORT.items():
        assert set(names.split()) <= built, f"{room} imports what stands above it"
        built.add(room)


def test_no_files_import_each_other_in_a_circle() -> None:
    order = graphlib.TopologicalSorter({name: imports(name) & MODULES.keys() for name in MODULES})
    order.prepare()  # raises CycleError, which names the files


def test_a_module_name_has_one_meaning() -> None:
    """Verbs of the command line may name a module in several rooms."""
    names = Counter(path.stem for path in MODULES.values() if path.stem != "__init__")
    assert {name for name, count in names.items() if count > 2} <= set(shardprep.__all__) | {
        "names"
    }


def test_the_hall_holds_seven_modules_at_most() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 7
    assert len(MAY_IMPORT) <= 20
    arrows = sum(len({*names.split()} - GROUND_FLOOR) for names in MAY_IMPORT.values())
    assert arrows <= 50


@pytest.mark.parametrize(
    ("library", "where"),
    [("tensorflow", WITH_TENSORFLOW), ("keras", WITH_KERAS), ("jax", ("reader.jax.",))],
)
def test_a_library_stays_in_its_rooms(library: str, where: tuple[str, ...]) -> None:
    users = {
        module.removeprefix("shardprep.")
        for module in MODULES
        if any(name.split(".")[0] == library for name in imports(module))
    }
    assert users
    assert not {name for name in users if not f"{name}.".startswith(where)}


def test_a_dataset_of_either_place_is_named_once() -> None:
    either = re.compile(r"\b(Path|LocalFiles) \| Remote\w+|\bRemote\w+ \| (Path|LocalFiles)\b")
    named = {name for name, path in MODULES.items() for _ in either.finditer(path.read_text())}
    assert named == {"shardprep.dataset.locate"}


def test_every_room_has_a_docstring() -> None:
    for path in PACKAGE.rglob("__init__.py"):
        assert len(ast.get_docstring(ast.parse(path.read_text())) or "") > 20, path


def test_a_wheel_carries_every_room() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    rooms = {
        ".".join(p.relative_to(PACKAGE.parent).parts[:-1]) for p in PACKAGE.rglob("__init__.py")
    }
    assert set(project["tool"]["setuptools"]["packages"]) == rooms | {"shardprep.schemas"}


def test_the_command_line_starts_without_heavy_modules() -> None:
    heavy = {"tensorflow", "numpy", "pyarrow", "PIL", "kaggle", "simplejpeg", "pydantic"}
    assert not loaded("from shardprep.cli import app; app.program()") & heavy


def test_the_viewer_starts_without_drawing_libraries() -> None:
    assert not loaded("import shardprep.api.reports") & {"PIL", "simplejpeg", "rich"}


def test_workers_never_import_tensorflow_or_protobuf() -> None:
    code = "import shardprep.writer.build, shardprep.dataset.describe"
    assert not loaded(code) & {"tensorflow", "google.protobuf", "keras", "kaggle"}


def test_importing_the_reader_costs_nothing() -> None:
    heavy = {"tensorflow", "numpy", "pyarrow", "PIL", "simplejpeg", "pydantic"}
    assert not loaded("from shardprep import reader") & heavy


def test_the_reader_of_arrays_does_not_import_pillow_or_pyarrow() -> None:
    found = loaded("from shardprep import reader; reader.Dataset")
    assert "numpy" in found
    assert not found & {"tensorflow", "pyarrow", "PIL"}


def test_help_imports_few_modules() -> None:
    """Their number decides how long it takes, which benchmarks.build measures."""
    code = """
import sys
sys.argv = ["shardprep", "--help"]
from shardprep.__main__ import main
try:
    main()
except SystemExit:
    print(len(sys.modules), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage" in done.stdout
    assert int(done.stderr) <= 400


def test_no_module_is_called_utils() -> None:
    assert not [name for name in MODULES if name.rpartition(".")[2] in {"utils", "helpers", "misc"}]


def test_no_test_module_imports_another() -> None:
    for path in (PACKAGE.parent / "tests").rglob("*.py"):
        found = re.findall(
            r"^ *(?:from|import) tests\.[^#\n]*\btest_\w+", path.read_text(), re.MULTILINE
        )
        assert not found, (path.name, found)


# --- the pages for contributors ---

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()


def test_the_page_has_a_row_for_each_room() -> None:
    rows = re.findall(
        r"^\| (`[^|]*) \|", ARCHITECTURE.split("## The way of one image")[0], re.MULTILINE
    )
    names = {name.rstrip("/") for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert names == MAY_IMPORT.keys() - {"__main__"}


@pytest.mark.parametrize("page", [ARCHITECTURE, CONTRIBUTING], ids=["architecture", "contributing"])
def test_modules_named_on_a_page_exist(page: str) -> None:
    named = set(re.findall(rf"`((?:{'|'.join(MAY_IMPORT)})/[\w/]*)`", page))
    assert named
    gone = {
        name
        for name in named
        if not (PACKAGE / name).is_dir() and not (PACKAGE / f"{name}.py").exists()
    }
    assert not gone


def test_words_stand_once_and_in_order() -> None:
    words = re.findall(r"^\| ([a-z ]+) \|", GLOSSARY, re.MULTILINE)[1:]
    assert words == sorted(set(words))
    assert len(words) > 30
