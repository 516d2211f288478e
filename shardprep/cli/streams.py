"""Stdout for results, stderr for the rest and how much of that: shared by all commands."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from typing import TYPE_CHECKING, Any

import typer

from shardprep.errors import RecipeError, printable, printable_json

if TYPE_CHECKING:
    from shardprep.api.terminal_progress import Bar
    from shardprep.cli.show.console import Terminal

_LEVELS = ("debug", "info", "warning", "error")
_log = logging.getLogger("shardprep")


EXIT_PROBLEMS = 3
"""Exit code where a dataset is not what its manifest says."""


class _Notices(logging.Handler):
    """Prints what is logged as the notices are printed: above a bar, and nothing steers."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record, a line for each of its own."""
        for line in self.format(record).splitlines():
            if sys.stderr is not None:  # while there is a bar, what prints above it
                sys.stderr.write(f"{printable(line)}\n")


def start_logging(level: str = "info") -> None:
    """Let stderr have messages of this level and above; progress and notices are of `info`."""
    if level not in _LEVELS:
        raise RecipeError("--log-level", f"{level!r} is not one of {', '.join(_LEVELS)}")
    if not _log.handlers:
        _log.addHandler(_Notices())
    _log.setLevel(level.upper())


def console(*, stderr: bool = False) -> Terminal:
    """Return stdout for results, or stderr for progress and notices."""
    from shardprep.cli.show.console import Terminal

    return Terminal(stderr=stderr, quiet=stderr and not _log.isEnabledFor(logging.INFO))


def bar() -> Bar:
    """Return what shows the progress of a command on stderr."""
    from shardprep.api.terminal_progress import Bar

    return Bar(console(stderr=True))


def picked(kind: Any, found: object, **more: Any) -> dict[str, Any]:
    """Return the keys of a type of `commands.results`, from `more` or else from `found`."""
    keys = [key for key in kind.__annotations__ if key in more or hasattr(found, key)]
    return {key: more[key] if key in more else getattr(found, key) for key in keys}


def print_json(result: Any) -> None:
    """Print the result of a command: one object, in which nothing steers a terminal.

    Of a table of Arrow it has the rows.
    """
    from pydantic_core import to_jsonable_python

    plain = to_jsonable_python(result, inf_nan_mode="null", fallback=lambda one: one.to_pylist())
    if "elapsed_s" in plain:
        plain["elapsed_s"] = round(plain["elapsed_s"], 3)
    typer.echo(printable_json(json.dumps(plain, indent=2, ensure_ascii=False)))


class _Outliving(io.FileIO):
    """A file descriptor; once nobody reads it, what is written is lost, and that is no error."""

    def write(self, data: Any, /) -> int:
        """Write; from the first failure on, to nowhere."""
        try:
            return super().write(data)
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if not isinstance(error, BrokenPipeError):
                raise
            return memoryview(data).nbytes


def outlive_readers() -> None:
    """Let `shardprep … | head -1` end as it would have: the command goes on, and is not heard.

    Characters that the locale cannot write are escaped.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if type(stream) is not io.TextIOWrapper:
            continue  # closed, or somebody's who runs this program inside of another
        file = io.BufferedWriter(_Outliving(stream.fileno(), "w", closefd=False))
        again = io.TextIOWrapper(
            file,
            stream.encoding,
            "backslashreplace",
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, again)
