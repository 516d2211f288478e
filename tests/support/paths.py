"""Where the files of the project lie."""

import fcntl
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
WHEEL_SOURCES = (
    *("pyproject.toml", "README.md", "LICENSE", "schemas", "shardprep"),
    *("docs/man", "docs/completions"),
)
"""What a wheel is built of."""
README = (ROOT / "README.md").read_text()


def data_rows(file: str, table: str) -> Any:
    """Return a table of `tests/data/<file>.toml`; arrays outside of tables become tuples."""

    def frozen(value: Any) -> Any:
        return tuple(map(frozen, value)) if isinstance(value, list) else value

    return frozen(tomllib.loads((DATA / f"{file}.toml").read_text("utf-8"))[table])


def with_part(page: str, marks: tuple[str, str], part: str) -> str:
    """Replace the part of a page between two marks."""
    before, _, rest = page.partition(marks[0])
    return f"{before}{marks[0]}\n{part}\n{marks[1]}{rest.partition(marks[1])[2]}"


def shared_folder(
    factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]
) -> Path:
    """Return a folder that `make` fills once per run of the suite; read only."""
    top = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        top = top.parent
    folder = top / f"shared-{name}"
    with (top / f"shared-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            begun = factory.mktemp(name)
            make(begun)
            begun.rename(folder)
    return folder
