"""Output of all commands: results on stdout, progress and log messages on stderr."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from typing import TYPE_CHECKING, Any

import typer

from shardprep.errors import OptionError, OptionName, printable, printable_json

if TYPE_CHECKING:
    from shardprep.cli.console import Terminal

_LEVELS = ("debug", "info", "warning", "error")
_log = logging.getLogger("shardprep")

EXIT_PROBLEMS = 3
"""Exit code if `verify`, `leaks` or `diff` found something, or `fetch` left files out."""


class _Notices(logging.Handler):
    """Writes log messages to stderr, with control characters escaped."""

    def emit(self, record: logging.LogRecord) -> None:
        for line in self.format(record).splitlines():
            if sys.stderr is not None:  # while a bar is shown, rich replaces stderr
                sys.stderr.write(f"{printable(line)}\n")


def start_logging(level: str = "info") -> None:
    """Show log messages of this level and above on stderr; OptionError for an unknown level."""
    if level not in _LEVELS:
        raise OptionError.of(OptionName("log_level"), level, _LEVELS)
    if not _log.handlers:
        _log.addHandler(_Notices())
    _log.setLevel(level.upper())


def console(*, stderr: bool = False) -> Terminal:
    """Return the console of stdout or stderr; on stderr it prints only if level info is shown."""
    from shardprep.cli.console import Terminal

    return Terminal(stderr=stderr, quiet=stderr and not _log.isEnabledFor(logging.INFO))


def picked(kind: Any, result: object, **more: Any) -> dict[str, Any]:
    """Return a dict with the keys of a `json_types` type, and values from `more` or `result`."""
    keys = [key for key in kind.__annotations__ if key in more or hasattr(result, key)]
    return {key: more[key] if key in more else getattr(result, key) for key in keys}


def print_json(result: Any) -> None:
    """Print a result as a JSON object, with control characters escaped and Arrow tables as rows."""
    from pydantic_core import to_jsonable_python

    plain = to_jsonable_python(result, inf_nan_mode="null", fallback=lambda rows: rows.to_pylist())
    if "elapsed_s" in plain:
        plain["elapsed_s"] = round(plain["elapsed_s"], 3)
    typer.echo(printable_json(json.dumps(plain, indent=2, ensure_ascii=False)))


class _Outliving(io.FileIO):
    """A raw file that ignores a closed pipe, and discards all data after a write has failed."""

    def write(self, data: Any, /) -> int:
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
    """Let commands end normally if nobody reads their output, as in `shardprep … | head -1`.

    Replace sys.stdout and sys.stderr; the new ones escape characters that the locale cannot encode.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if type(stream) is not io.TextIOWrapper:
            continue  # closed, or replaced by the program that calls us
        file = io.BufferedWriter(_Outliving(stream.fileno(), "w", closefd=False))
        again = io.TextIOWrapper(
            file,
            stream.encoding,
            "backslashreplace",
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, again)
