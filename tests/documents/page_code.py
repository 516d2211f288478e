"""The Python code of pages, in their order."""

import re
from typing import Any

from tests.support.paths import ROOT


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


def examples(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page(name), re.DOTALL)


def executed(blocks: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"__name__": "example"}
    for block in blocks:
        exec(compile(block, "a page", "exec"), found)  # the test is of that code
    return found
