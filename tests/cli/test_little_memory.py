"""A command that gets too little memory says so in one line."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.builders import animals, build, write, zip_bytes

_BYTES = 300 << 20


@pytest.mark.parametrize(
    "command",
    [
        "build pets.zip --out new --workers 1",
        "repack out --out small",
        "report out --output page.html",
    ],
)
def test_a_limit_of_addresses_is_one_line(command: str, tmp_path: Path) -> None:
    source = write(tmp_path / "pets.zip", zip_bytes(animals(4)))
    build(source, tmp_path / "out")
    done = subprocess.run(
        [sys.executable, "-m", "shardprep", *command.split()],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES)),
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("shardprep: there is not enough memory; ")
