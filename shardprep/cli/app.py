"""The command line: its commands, and what becomes of errors.

Heavy modules are imported by the command that needs them: `shardprep --help` answers at once.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardprep.cli import options as o
from shardprep.cli.streams import outlive_readers, print_json, start_logging
from shardprep.errors import (
    RecipeError,
    ShardprepError,
    is_short_of_memory,
    name_options_as_flags,
    printable,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130

_COMMANDS = (
    "build",
    "finalize",
    "init",
    "inspect",
    "report",
    "view",
    "bench",
    "verify",
    "diff",
    "repack",
    "export",
    "sample",
    "download",
    "upload",
    "fetch",
)
"""In the order of `--help`; the module of each has its name."""
_UsageError: Any = typer.BadParameter.__mro__[1]
"""Typer's error of arguments that it cannot take; it has no public name."""
_GOING_ON = ("build", "finalize", "repack", "export", "download", "upload", "fetch")
"""Commands that keep what they have done."""
_COMPLETION = "_SHARDPREP_COMPLETE"
"""Environment variable by which a shell asks for completions."""
_ENDED_AT_ONCE = {"ray", "shardprep.reporter.viewer.viewer"}
"""Modules after whose use a command ends without the last acts of libraries."""
_log = logging.getLogger("shardprep")


class _InterruptedError(BaseException):
    """Ctrl-C, under a name that typer does not turn into a silent exit."""


def _interrupt(*_: object) -> None:
    raise _InterruptedError


class _WithoutPandas:
    """Finder that hides pandas, which pyarrow would import for the first list that it is given.

    That takes half as long as a small build, where pandas is installed, and nothing here uses it.
    """

    def find_spec(self, name: str, *_: object) -> None:
        """Refuse pandas; leave other modules to the finders behind."""
        if name == "pandas":
            raise ModuleNotFoundError(f"{name} is hidden from the command line", name=name)


def main(interrupts: Sequence[int] = ()) -> None:
    """Run the command line; an error of ours is one line on stderr and an exit code.

    With `--json` it is an object on stdout as well, in place of the result. `interrupts` gets an
    element for each Ctrl-C until it is handled here.
    """
    # Nothing here multiplies matrices, and to start numpy's threads takes as long as to import it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Arrow's own allocator keeps memory for later: half of what `view` needs, a fifth of `repack`.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    sys.meta_path.insert(0, _WithoutPandas())
    outlive_readers()
    name_options_as_flags()
    arguments = sys.argv[1:]
    try:
        signal.signal(signal.SIGINT, _interrupt)
        if interrupts:
            _interrupt()
        code = _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except (Exception, _InterruptedError) as error:
        code = _fail(error, arguments)
    if _ENDED_AT_ONCE & sys.modules.keys():
        _end_at_once(code)
    sys.exit(code)


def _end_at_once(code: int) -> None:
    """End without the last acts of libraries and threads; all that the command had to do is done.

    Ray's core may abort in them where a node has died; the viewer's threads may still wait for a
    store, for an answer that nobody wants any more.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)


def _run(arguments: Sequence[str]) -> int:
    """Run a command line; return its exit code."""
    # One command alone is ready in 3 ms, all of them in 30; only the program's help shows others.
    is_named = arguments[:1] and arguments[0] in _COMMANDS and _COMPLETION not in os.environ
    command = typer.main.get_command(program(arguments[:1] if is_named else _COMMANDS))
    if _COMPLETION in os.environ:
        command.main(prog_name="shardprep")  # answers the shell, and exits
    try:
        with command.make_context("shardprep", list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    return 0


def _wants_json(arguments: Sequence[str]) -> bool:
    """Tell whether an error is to be JSON, whatever else is wrong with the arguments."""
    return "--json" in arguments[: arguments.index("--") if "--" in arguments else None]


def _goes_on(arguments: Sequence[str]) -> bool:
    """Tell whether a command that was interrupted goes on where it stopped, run again."""
    command = next((one for one in arguments if one in _COMMANDS), "")
    return (command in _GOING_ON and "--dry-run" not in arguments) or (
        command == "verify" and "--repair" in arguments
    )


def _fail(error: BaseException, arguments: Sequence[str]) -> int:
    """Say what has gone wrong; return the exit code."""
    said, code = _explained(error, goes_on=_goes_on(arguments))
    is_ours = said is not None
    if said is None:
        said = ShardprepError("shardprep", f"has failed: {error!r}", "please report it")
    if not is_ours or _log.isEnabledFor(logging.DEBUG):
        for line in "".join(traceback.format_exception(error)).splitlines():
            sys.stderr.write(f"{printable(line)}\n")
    if is_ours:
        sys.stderr.write(f"{said}\n")
    if _wants_json(arguments):
        print_json(said.as_json(code))
    return code


def _explained(error: BaseException, *, goes_on: bool) -> tuple[ShardprepError | None, int]:
    """Return an error as one of ours, None for a fault of the program; and its exit code."""
    if isinstance(error, ShardprepError):
        return error, EXIT_USAGE if isinstance(error, RecipeError) else EXIT_ERROR
    if isinstance(error, _InterruptedError):
        again = "run the same command again to go on where it stopped" if goes_on else ""
        return ShardprepError("", "interrupted", again), EXIT_INTERRUPTED
    if isinstance(error, _UsageError):
        asked = error.ctx.command_path if error.ctx else "shardprep"
        what = error.format_message().rstrip(".")
        what = " ".join(f"{what[:1].lower()}{what[1:]}".split())
        return ShardprepError(asked, what, f"see {asked} --help"), error.exit_code
    if is_short_of_memory(error):
        what = "there is not enough memory"
        return ShardprepError("shardprep", what, "free some, or raise the limit (ulimit -v)"), 1
    if isinstance(error, OSError):
        where = str(error.filename or "shardprep")
        return ShardprepError(where, (error.strerror or str(error)).lower()), EXIT_ERROR
    return None, EXIT_ERROR


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer's callback signature
    if wanted:
        from shardprep import __version__

        typer.echo(f"shardprep {__version__}")
        raise typer.Exit


def _options(
    context: typer.Context,
    quiet: Annotated[bool, o.QUIET] = False,
    log_level: Annotated[str | None, o.LOG_LEVEL] = None,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Turn raw (Kaggle) images into TFRecord shards for training, with matching readers."""
    start_logging("error" if quiet else log_level or "info")
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(EXIT_USAGE)


def program(names: Sequence[str] = _COMMANDS) -> typer.Typer:
    """Return the program with some of its commands."""
    found = typer.Typer(
        name="shardprep",
        cls=o.Group,
        help="Turn raw (Kaggle) images into TFRecord shards for training, with matching readers.",
        epilog="Try it: shardprep sample, then shardprep build --shards 20, then shardprep inspect."
        "\n\n"
        "With data of your own: shardprep init photos.zip, then shardprep build.",
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
    )
    found.callback(invoke_without_command=True)(_options)
    for name in names:
        command = found.command(name, cls=o.Command, epilog=o.epilog(name))
        command(o.command(name))
    return found
