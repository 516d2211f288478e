"""`shardprep` as a person runs it: in this process, or in one of its own.

A process of its own takes a second to start, most of it imports. Tests of what is printed and of
exit codes run in this process; those of signals, streams and imports in one of their own.
"""

import contextlib
import functools
import io
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import typer.main
from click.testing import CliRunner, Result

from shardprep import profiling
from shardprep.api import COMMANDS
from shardprep.cli import app, streams
from tests.support.paths import DATA

Done = subprocess.CompletedProcess[str]
_PLAIN = {"COLUMNS": "80", "NO_COLOR": "1"}
NARROW = {**os.environ, **_PLAIN}
_make = app._command
COMMAND_ERRORS = tomllib.loads((DATA / "command_errors.toml").read_text(encoding="utf-8"))


@functools.cache
def command(name: str) -> Any:
    """Return the program with one of its commands, made once: that costs half a small build."""
    return typer.main.get_command(app.program([name]))


def _command(arguments: list[str]) -> Any:
    is_named = bool(arguments) and arguments[0] in COMMANDS and app._COMPLETION not in os.environ
    return command(arguments[0]) if is_named else _make(arguments)


def invoke(*arguments: object, catch_exceptions: bool = True) -> Result:
    """Run a command in this process, without what `main` does around it."""
    words = [*map(str, arguments)]
    return CliRunner().invoke(command(words[0]), words, catch_exceptions=catch_exceptions)


def run(*arguments: object, cwd: Path, environment: Mapping[str, str] | None = None) -> Done:
    """Run a command line in this process, in a folder; return what it printed and its exit code.

    `environment` is all of it; where none is given, this process's, with lines of 80 columns.
    """
    words = ["shardprep", *map(str, arguments)]
    out, errors = io.StringIO(), io.StringIO()
    code: object = None
    variables = {**os.environ, **_PLAIN} if environment is None else environment
    with (
        contextlib.chdir(cwd),
        mock.patch.dict(os.environ, variables, clear=True),
        mock.patch.object(sys, "argv", words),
        mock.patch.object(signal, "signal"),
        mock.patch.object(app, "_end_at_once"),
        mock.patch.object(app, "_command", _command if app._command is _make else app._command),
        _as_new(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
    ):
        try:
            app.main()
        except SystemExit as end:
            code = end.code
    assert isinstance(code, int)
    return Done(words, code, out.getvalue(), errors.getvalue())


def ran(*arguments: object, cwd: Path, environment: Mapping[str, str] | None = None) -> Done:
    """Run a command line as `run` does; it has to end well."""
    done = run(*arguments, cwd=cwd, environment=environment)
    assert done.returncode == 0, done.stderr
    return done


@contextlib.contextmanager
def _as_new() -> Iterator[None]:
    """Reset the state of the program as in a new process, and restore it."""
    log = streams._log
    handlers, level = log.handlers[:], log.level
    log.handlers.clear()
    with (
        mock.patch.dict(profiling._state, is_on=False),
        mock.patch.dict(profiling._seconds, clear=True),
    ):
        try:
            yield
        finally:
            ours = [one for one in sys.meta_path if isinstance(one, app._WithoutPandas)]
            for one in ours:  # those of libraries stay: six has its own, and adds it once
                sys.meta_path.remove(one)
            log.handlers[:] = handlers
            log.setLevel(level)


def run_process(*arguments: object, cwd: Path, **options: Any) -> Done:
    return python("-m", "shardprep", *arguments, cwd=cwd, **{"env": NARROW, **options})


def python(*arguments: object, cwd: Path, check: bool = False, **options: Any) -> Done:
    """Run Python in a process of its own, with more `options` of `subprocess.run`."""
    words = [sys.executable, *map(str, arguments)]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=check, **options)


def error_of(done: Done, code: int) -> str:
    """Check the exit code; return the last line of stderr, which is the error."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]
