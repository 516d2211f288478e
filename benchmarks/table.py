"""Rows as Markdown tables. Each table is between markers, so that it can be replaced alone."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.measure import Row

_PACKAGES = ("Pillow", "simplejpeg", "TensorFlow", "numpy")


class Rows(Protocol):
    """The function `rows` of a script. The folder is for its files.

    With `quick`, it measures a few images, to show that it runs.
    """

    def __call__(self, folder: Path, rounds: int, *, quick: bool) -> list[Row]:
        """Return a row for each measure that the script declares."""


def alone(rows: Rows, doc: str | None) -> None:
    """Run one script from the command line, and print its table."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="only see that everything runs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(table(rows(Path(folder), arguments.rounds, quick=arguments.quick)))


def table(rows: Iterable[Row]) -> str:
    """Return rows as a table; a value on the wrong side of its bar is bold."""
    lines = ["| measure | value | bar | figures |", "|---|---|---|---|"]
    for row in rows:
        value = row.shown if row.holds else f"**{row.shown}**"
        lines.append(f"| {row.measure.name} | {value} | {row.measure.bar or '–'} | {row.detail} |")
    return "\n".join(lines)


def replaced(text: str, name: str, block: str) -> str:
    """Return `text` with `block` between the markers of `name`.

    Raises:
        ValueError: the text does not have each marker exactly once.
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"there must be one {begin.strip()} … {end}")
    before, rest = text.split(begin)
    return f"{before}{begin}\n{block}\n\n{end}{rest.split(end)[1]}"


def block(text: str, name: str) -> str:
    """Return the text between the markers of `name`; "" without them."""
    return text.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- end of {name} -->")[0].strip()


def machine(packages: Sequence[str] = _PACKAGES) -> str:
    """Return versions of shardprep, Python and installed packages, the processor and its cores."""
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}"
        for name in packages
        if any(importlib.metadata.distributions(name=name))
    )
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    processor = found[1] if found else platform.machine()
    return (
        f"shardprep {importlib.metadata.version('shardprep')}, Python {platform.python_version()}, "
        f"{versions}; {processor}, {os.cpu_count()} cores."
    )
