"""The libraries that a command imports: those that it works with, and no others."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.support.builders import animals, write, zip_bytes
from tests.support.command import run
from tests.support.processes import loaded

OF_NO_COMMAND = frozenset((
    "tensorflow", "keras", "kaggle", "pandas", "matplotlib", "ray", "obstore", "pydicom",
    "pillow_heif", "py7zr", "yaml", "requests", "urllib3", "http", "asyncio",
))  # fmt: skip
"""Libraries that no command needs for a folder or a zip of ordinary images."""
OF_PIXELS = frozenset(("PIL", "simplejpeg", "pycocotools"))
OF_SOURCES = frozenset(("xml", "isal"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "others"),
    [
        ("build pets.zip --version 2.0.0", frozenset[str]()),
        ("build pets.zip --version 2.0.0 --dry-run", frozenset[str]()),
        ("verify", frozenset[str]()),
        ("inspect", OF_SOURCES),
        ("repack --shards 2 --version 3.0.0", OF_PIXELS | OF_SOURCES),
        ("export --to webdataset", OF_PIXELS | OF_SOURCES),
        ("diff tfrecords/pets tfrecords/pets", OF_PIXELS | OF_SOURCES),
    ],
)
def test_a_command_imports_what_it_works_with(
    tmp_path: Path, arguments: str, others: frozenset[str]
) -> None:
    write(tmp_path / "pets.zip", zip_bytes(animals()))
    assert run("build", "pets.zip", cwd=tmp_path).returncode == 0
    code = (
        "import contextlib, io\n"
        "from shardprep.__main__ import main\n"
        f"sys.argv = ['shardprep', *{arguments.split()!r}]\n"
        "try:\n"
        "    with contextlib.redirect_stdout(io.StringIO()):\n"
        "        main()\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0\n"
    )
    with contextlib.chdir(tmp_path):
        found = loaded(code)
    assert "shardprep" in found
    assert not found & (OF_NO_COMMAND | others)
