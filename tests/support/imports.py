"""Modules that a program imports."""

from __future__ import annotations

import subprocess
import sys


def loaded(code: str) -> set[str]:
    """Return the modules that are loaded when the code has run in a new process."""
    program = f"import sys\n{code}\nprint(*sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return {*out.stdout.split()}
