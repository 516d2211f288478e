"""Which module may import which, and what may not be imported at all."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "shardprep"
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}


def imports(path: Path, *, typing: bool = False) -> set[str]:
    """Return the modules of ours that a file imports; those for types alone only if asked."""
    found = set()
    tree = ast.parse(path.read_text())
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not typing:
            skipped.update(child for part in node.body for child in ast.walk(part))
    for node in ast.walk(tree):
        if node in skipped or not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        if node.module.split(".")[0] == "shardprep":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else node.module)
    return {name.removeprefix("shardprep").removeprefix(".") for name in found}


def loaded(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(*sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return {module.split(".")[0] for module in out.stdout.split()}


def test_the_command_line_starts_without_heavy_modules() -> None:
    heavy = {"tensorflow", "numpy", "pyarrow", "PIL", "kaggle", "simplejpeg", "pydantic"}
    assert not loaded("import shardprep.cli.app") & heavy


def test_workers_never_import_tensorflow_or_protobuf() -> None:
    code = "import shardprep.writer.build, shardprep.dataset.describe"
    assert not loaded(code) & {"tensorflow", "google.protobuf", "keras", "kaggle"}


def test_importing_the_reader_costs_nothing() -> None:
    heavy = {"tensorflow", "numpy", "pyarrow", "PIL", "simplejpeg", "pydantic"}
    assert not loaded("from shardprep import reader") & heavy


def test_only_the_reader_imports_tensorflow() -> None:
    users = {
        name
        for name, path in MODULES.items()
        if "import tensorflow" in path.read_text() or "from tensorflow" in path.read_text()
    }
    assert users
    assert all(name.startswith("shardprep.reader.") for name in users)


def test_help_answers_in_under_0_3_seconds() -> None:
    """Seconds of its processor: those of the wall would be those of the tests beside it.

    They too grow where another test shares the core, so the least of several counts.
    """
    times: list[float] = []
    while len(times) < 15 and min(times, default=1.0) >= 0.3:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "shardprep", "--help"], check=True, stdout=-3)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.3


def test_there_is_no_room_for_odds_and_ends() -> None:
    assert not [name for name in MODULES if name.rpartition(".")[2] in {"utils", "helpers", "misc"}]
