"""docs/python.md: its examples run, its table names every function."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.processes import run_program

PAGE = (ROOT / "docs" / "python.md").read_text()


@pytest.mark.thorough
def test_the_examples_run_one_after_the_other(tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == 4
    code = "\n".join(["import os, sys", "os.chdir(sys.argv[1])", *examples, "print(images.shape)"])
    assert run_program(code, tmp_path) == "(32, 64, 64, 3)\n"
