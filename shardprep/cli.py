"""The command line: its commands, and what becomes of errors.

Heavy modules are imported by the command that needs them: `shardprep --help` answers at once.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer

from shardprep import __version__
from shardprep.commands import (
    bench,
    build,
    download,
    fetch,
    finalize,
    init,
    inspect,
    sample,
    verify,
)
from shardprep.errors import RecipeError, ShardprepError

EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130

app = typer.Typer(
    name="shardprep",
    help="Raw Kaggle images in, training-ready TFRecord shards and a matching reader out.",
    epilog="Try it: shardprep sample, then shardprep build --shards 20, then shardprep inspect.\n\n"
    "With data of your own: shardprep init photos.zip, then shardprep build.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


class _InterruptedError(BaseException):
    """Ctrl-C, under a name that typer does not turn into a silent exit."""


def _interrupt(*_: object) -> None:
    raise _InterruptedError


def main() -> None:
    """Run the command line; an error of ours is one line on stderr and an exit code."""
    signal.signal(signal.SIGINT, _interrupt)
    # Nothing here multiplies matrices, and to start numpy's threads takes as long as to import it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        app()
    except RecipeError as error:
        _fail(error, EXIT_USAGE)
    except ShardprepError as error:
        _fail(error, EXIT_ERROR)
    except OSError as error:
        where = str(error.filename or "shardprep")
        _fail(ShardprepError(where, (error.strerror or str(error)).lower()), EXIT_ERROR)
    except _InterruptedError:
        sys.stderr.write("interrupted: run the same command again to go on where it stopped\n")
        sys.exit(EXIT_INTERRUPTED)


def _fail(error: ShardprepError, code: int) -> None:
    sys.stderr.write(f"{error}\n")
    sys.exit(code)


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer's callback signature
    if wanted:
        typer.echo(f"shardprep {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Raw Kaggle images in, training-ready TFRecord shards and a matching reader out."""


_COMMANDS = {
    "build": build,
    "finalize": finalize,
    "init": init,
    "inspect": inspect,
    "bench": bench,
    "verify": verify,
    "sample": sample,
    "download": download,
    "fetch": fetch,
}
"""In the order of `--help`."""

for _name, _module in _COMMANDS.items():
    app.command(_name, epilog=_module.EPILOG)(getattr(_module, _name))
