"""A user's pattern searched in this process: one of its own takes 30 ms to start.

A pattern that takes too long is not stopped here; tests of that take the fixture `searched_apart`.
"""

import marshal
import re
import subprocess
from types import SimpleNamespace
from typing import Any

from shardprep.catalog import patterns, regex_process


def _run(_: object, *, input: bytes, **__: Any) -> SimpleNamespace:  # noqa: A002 - as subprocess
    pattern, group, is_whole, _, names = marshal.loads(input)
    compiled = re.compile(pattern)
    find = compiled.fullmatch if is_whole else compiled.search
    return SimpleNamespace(stdout=marshal.dumps(regex_process._found(find, group, names)))


def search_here() -> None:
    vars(patterns)["subprocess"] = SimpleNamespace(
        run=_run, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL
    )
