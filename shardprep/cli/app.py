"""The program: its commands, and the exit code and output of each error."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from shardprep.api import COMMANDS
from shardprep.cli import options as o
from shardprep.cli.streams import outlive_readers, print_json, start_logging
from shardprep.errors import (
    BuildError,
    RecipeError,
    ShardprepError,
    SourceError,
    is_short_of_memory,
    name_options_as_flags,
    of_system,
    printable,
)

EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130

_UsageError: Any = typer.BadParameter.__mro__[1]
"""Typer's error for invalid arguments, which has no public name."""
_RESUMABLE = ("build", "finalize", "repack", "export", "download", "upload", "fetch")
_COMPLETION = "_SHARDPREP_COMPLETE"
_ENDED_AT_ONCE = "shardprep.reporter.viewer.viewer"
"""If this module is loaded, the cleanup at exit is skipped; see `_end_at_once`."""
_RESERVE_BYTES = 1 << 20
"""Memory that is freed when memory has run out, so that temporary files can still be removed."""
_FLAG = re.compile(r"`[^`]*`|(?<![\w-])(--[a-z][-a-z]*)")
"""Matches a flag in a hint, or a whole command in backquotes."""
_log = logging.getLogger("shardprep")


class _InterruptedError(BaseException):
    """Raised on Ctrl-C, because Typer would turn KeyboardInterrupt into a silent exit."""


def _interrupt(*_: object) -> None:
    raise _InterruptedError


def _unraisable(found: sys.UnraisableHookArgs) -> None:
    """Print an error that Python cannot raise, except a lack of memory, which `_fail` reports."""
    try:
        if not is_short_of_memory(found.exc_value or Exception()):
            sys.__unraisablehook__(found)
    except MemoryError:
        pass


class _WithoutPandas:
    """Hides pandas from pyarrow, whose import of pandas takes half as long as a small build."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(f"{name} is hidden from the command line", name=name)


def main(interrupts: Sequence[int] = ()) -> None:
    """Run the command line and exit. An error is a line on stderr, with `--json` also an object.

    `interrupts` has an element for each Ctrl-C before this function installs its own handler.
    """
    # Nothing here multiplies matrices, and starting numpy's threads takes as long as importing it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Arrow's own allocator keeps freed memory: half of what `view` uses, a fifth of `repack`'s.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    # Looking for plugins of pydantic reads the metadata of all installed packages.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    sys.meta_path.insert(0, _WithoutPandas())
    warnings.filterwarnings("ignore", module=r"PIL\.")  # Pillow warns of missing codecs
    sys.unraisablehook = _unraisable
    outlive_readers()
    name_options_as_flags()
    arguments = sys.argv[1:]
    reserve = bytearray(_RESERVE_BYTES)
    try:
        signal.signal(signal.SIGINT, _interrupt)
        if interrupts:
            _interrupt()
        code = 0
        try:
            with _command(arguments).make_context("shardprep", arguments[:]) as context:
                context.command.invoke(context)
        except typer.Exit as end:
            code = end.exit_code
        except BuildError as error:
            if hasattr(error, "draft"):  # a TooManyRejectedError; importing its module is slow
                from shardprep.cli.summary import show_refused

                show_refused(error)
            raise
        if sys.stdout is not None:
            sys.stdout.flush()
    except (Exception, _InterruptedError) as error:
        del reserve
        code = _fail(error, arguments)
        if is_short_of_memory(error):
            _end_without_memory(code)
    if _ENDED_AT_ONCE in sys.modules:
        _end_at_once(code)
    sys.exit(code)


def _end_without_memory(code: int) -> None:
    """Remove temporary files and exit without the cleanup of libraries: it prints tracebacks."""
    if (util := sys.modules.get("multiprocessing.util")) is not None:
        shutil.rmtree(util.get_temp_dir(), ignore_errors=True)
    _end_at_once(code)


def _end_at_once(code: int) -> None:
    """Exit without cleanup: threads of the viewer could wait for object storage there."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)


def _command(arguments: Sequence[str]) -> Any:
    """Return the program with the named command or all commands; print completions if asked."""
    # Creating one command takes 3 ms, creating all 30 ms; only the program's help needs all.
    is_named = arguments[:1] and arguments[0] in COMMANDS and _COMPLETION not in os.environ
    command = typer.main.get_command(program(arguments[:1] if is_named else COMMANDS))
    if _COMPLETION in os.environ:
        command.main(prog_name="shardprep")  # prints the completions and exits
    return command


def _is_resumable(arguments: Sequence[str]) -> bool:
    command = next((word for word in arguments if word in COMMANDS), "")
    return (command in _RESUMABLE and "--dry-run" not in arguments) or (
        command == "verify" and "--repair" in arguments
    )


def _fail(error: BaseException, arguments: Sequence[str]) -> int:
    explained, code = _explained(error, is_resumable=_is_resumable(arguments))
    is_bug = explained is None
    if explained is None:
        explained = ShardprepError("shardprep", f"internal error: {error!r}", "please report it")
    if is_bug or _log.isEnabledFor(logging.DEBUG):
        for line in "".join(traceback.format_exception(error)).splitlines():
            sys.stderr.write(f"{printable(line)}\n")
    if isinstance(error, SourceError):
        _name_other_options(error, arguments)
    if not is_bug:
        sys.stderr.write("".join(f"{line}\n" for line in explained.lines))
    end = arguments.index("--") if "--" in arguments else None
    if "--json" in arguments[:end]:
        print_json(explained.as_json(code))
    return code


def _name_other_options(error: SourceError, arguments: Sequence[str]) -> None:
    """Name the options in the hint that this command lacks: init and repack run code of build."""
    name = next((word for word in arguments if word in COMMANDS), "")
    if name in ("init", "repack"):
        own = {flag for one in _command([name]).commands[name].params for flag in one.opts}
        if lacks := [x for x in dict.fromkeys(_FLAG.findall(error.hint)) if x not in {"", *own}]:
            error.hint += f" (only shardprep build has {' and '.join(lacks)})"


def _explained(error: BaseException, *, is_resumable: bool) -> tuple[ShardprepError | None, int]:
    """Return the error as a ShardprepError, or None for a bug, and the exit code."""
    if isinstance(error, ShardprepError):
        return error, EXIT_USAGE if isinstance(error, RecipeError) else EXIT_ERROR
    if isinstance(error, _InterruptedError):
        again = "run the same command again to continue" if is_resumable else ""
        return ShardprepError("", "interrupted", again), EXIT_INTERRUPTED
    if isinstance(error, _UsageError):
        name = error.ctx.command_path if error.ctx else "shardprep"
        what = error.format_message().rstrip(".")
        what = " ".join(f"{what[:1].lower()}{what[1:]}".split())
        return ShardprepError(name, what, f"see {name} --help"), error.exit_code
    if is_short_of_memory(error):
        what = "there is not enough memory"
        return ShardprepError("shardprep", what, "free memory, or raise the limit (ulimit -v)"), 1
    if isinstance(error, OSError):
        return of_system(error), EXIT_ERROR
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
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    start_logging("error" if quiet else log_level or "info")
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(EXIT_USAGE)


def program(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return a Typer app with the commands `names`."""
    app = typer.Typer(
        name="shardprep",
        cls=o.Group,
        help="Turn raw (Kaggle) images into TFRecord shards for training, with matching readers.",
        epilog="Try it: shardprep sample, then shardprep build --shards 20, then shardprep inspect."
        "\n\n"
        "With data of your own: shardprep init photos.zip, then shardprep build.",
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(_options)
    for name in names:
        command = o.command(name)
        text, examples = o.help_of(command)
        app.command(name, cls=o.Command, help=text, epilog=examples)(command)
    return app
