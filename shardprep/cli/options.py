"""The options of the commands, made from where each is declared: `shardprep.recipe.options`."""

from __future__ import annotations

import functools
import inspect
import os
import re
from dataclasses import fields, replace
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from shardprep.cli.streams import start_logging
from shardprep.recipe.options import BUILD_OPTIONS, MAX_WORKERS, RUN_OPTIONS, BuildOptions, Option
from shardprep.recipe.values import read_number
from shardprep.storage.timeout import TIMEOUT_VARIABLE
from shardprep.storage.url import local_path

if TYPE_CHECKING:
    from collections.abc import Callable

_MARKUP = re.compile(r"\[(?=[a-z#/@])")
"""Bracket that rich would read as the begin of a tag."""


def help_of(option: Option, default: object = None) -> str:
    """Return the help of an option, with its default in words or as a flag is given it."""
    shown = option.shown
    if not shown and default not in (None, "", (), False):
        shown = ",".join(default) if isinstance(default, tuple) else str(default)
    text = _MARKUP.sub(r"\\[", option.help)
    return text + (r" [dim]\[default: " + _MARKUP.sub(r"\\[", shown) + "][/dim]" if shown else "")


def flag(option: str | Option, *names: str, default: object = None, **settings: Any) -> Any:
    """Return typer's form of an option: one of a run by its name, or as it is declared."""
    declared = RUN_OPTIONS[option] if isinstance(option, str) else option
    return typer.Option(
        *names,
        metavar=declared.metavar,
        help=help_of(declared, default),
        show_default=False,
        rich_help_panel=declared.panel or None,
        **settings,
    )


def number(option: Option, kind: type[int | float], **settings: Any) -> Any:
    """Return typer's form of an option that takes a number within the bounds declared."""

    def parsed(text: str) -> float:
        try:
            found = option.read(text) if option.read else text
            return read_number(found, kind, option.least, option.most)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not {option.numbers(kind)}") from None

    return flag(option, parser=parsed, **settings)


def switch(name: str, text: str) -> Any:
    """Return typer's form of an option of one command that is given or not."""
    return flag(Option(text), name)


def value(text: str, metavar: str, shown: str = "", *names: str, **settings: Any) -> Any:
    """Return typer's form of an option of one command; `shown` is its default in words.

    `names` are its own, where it is not called as its parameter.
    """
    return flag(Option(text, metavar=metavar, shown=shown), *names, **settings)


def amount(
    text: str,
    metavar: str,
    shown: str,
    kind: type[int | float] = int,
    least: float = 1,
    *,
    most: float,
) -> Any:
    """Return typer's form of an option of one command that takes a number."""
    return number(Option(text, metavar=metavar, shown=shown, least=least, most=most), kind)


def argument(text: str) -> Any:
    """Return typer's form of an argument, whose help says what its default is."""
    return typer.Argument(help=text, show_default=False)


def workers(text: str) -> Any:
    """Return the option `--workers` of a command whose workers do what `text` says."""
    return amount(text, "N", "usable cores", most=MAX_WORKERS)


def max_rejected(shown: str) -> Any:
    """Return the option `--max-rejected` of a command with another default."""
    return number(replace(BUILD_OPTIONS["max_rejected"], panel="", shown=shown), float)


_WORDS = {
    f"--{name.replace('_', '-')}": option.metavar.strip("[]")
    for name, option in BUILD_OPTIONS.items()
    if option.metavar.startswith("[")
}
"""Switches that may have a word behind them → that word."""


class _Plain:
    """A command whose help names values as they are called here, never by types of Python."""

    def get_params(self, context: Any) -> list[Any]:
        """Return the parameters, each with a metavar."""
        found: list[Any] = super().get_params(context)  # type: ignore[misc]
        for one in found:
            if one.param_type_name == "argument":
                one.metavar = one.name.upper()
                one.display_type_rich = lambda **_: None
            elif one.metavar is None:
                one.metavar = ""  # a switch: it takes no value
        return found


class Command(_Plain, TyperCommand):
    """One command."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        """Read the arguments; a switch may have its word behind it, as in `--dedup near`."""
        end = args.index("--") if "--" in args else len(args)
        left: list[str] = []
        words: dict[str, str] = {}
        for before, one in zip(["", *args], args[:end], strict=False):
            name, _, word = one.partition("=")
            if _WORDS.get(before) == one:
                words[before] = one
            elif word and _WORDS.get(name) == word:
                words[name] = word
                left.append(name)
            else:
                words.pop(name.replace("--no-", "--", 1), None)
                left.append(one)
        rest: list[str] = super().parse_args(context, left + args[end:])
        context.params.update({name[2:].replace("-", "_"): word for name, word in words.items()})
        return rest


class Group(_Plain, TyperGroup):
    """The program: all commands."""


Source = Annotated[str | None, argument(help_of(BUILD_OPTIONS["source"]))]
Dataset = Annotated[
    str | None,
    argument(
        "Folder of the dataset or a folder above it, local or in object storage (s3://, gs://, "
        "az://). Default: the dataset of ./shardprep.toml, otherwise the only dataset under "
        "./tfrecords."
    ),
]
FollowLinks = Annotated[bool, flag(BUILD_OPTIONS["follow_links"], "--follow-links")]
SaveRejected = Annotated[Path | None, flag("save_rejected", parser=local_path)]
Workers = Annotated[int | None, number(RUN_OPTIONS["workers"], int)]
Engine = Annotated[str, flag("engine")]
RayAddress = Annotated[str | None, flag("ray_address")]
Part = Annotated[str | None, flag("part")]
Reuse = Annotated[str | None, flag("reuse")]
Refresh = Annotated[bool, flag("refresh", "--refresh")]
Overwrite = Annotated[bool, flag("overwrite", "--overwrite")]
Profile = Annotated[bool, flag("profile", "--profile")]
DryRun = Annotated[bool, flag("dry_run", "--dry-run")]
Json = Annotated[bool, flag("json", "--json")]
Quiet = Annotated[bool, flag("quiet", "--quiet")]
LogLevel = Annotated[str | None, flag("log_level")]


def _hold(seconds: float | None) -> None:
    """Set the time-out of object storage for this process and all that it starts."""
    if seconds is not None:
        os.environ[TIMEOUT_VARIABLE] = f"{seconds:g}"


StoreTimeout = Annotated[
    float | None,
    number(RUN_OPTIONS["store_timeout"], float, callback=_hold, expose_value=False),
]


def _build_flags() -> list[Parameter]:
    """Return a parameter for each option of a build but its source; None where it is not given."""
    found = []
    for one in fields(BuildOptions)[1:]:
        option, name = BUILD_OPTIONS[one.name], f"--{one.name.replace('_', '-')}"
        kind: Any = list[str] if option.is_repeated else str
        if isinstance(one.default, bool):
            kind, name = bool, f"{name}/--no-{name[2:]}"
        hint = Annotated[kind | None, flag(option, name, default=one.default)]
        found.append(Parameter(one.name, Parameter.KEYWORD_ONLY, default=None, annotation=hint))
    return found


_OUTPUT_FLAGS = [
    Parameter("quiet", Parameter.KEYWORD_ONLY, default=False, annotation=Quiet),
    Parameter("log_level", Parameter.KEYWORD_ONLY, default=None, annotation=LogLevel),
]


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that takes `--quiet` and `--log-level`, as the program does before it.

    One with keyword arguments of any name (`**flags`) gets those options of a build that are
    given.
    """

    @functools.wraps(command)
    def run(*, quiet: bool, log_level: str | None, **options: Any) -> None:
        if quiet or log_level is not None:
            start_logging("error" if quiet else log_level or "info")
        not_given = {name for name in flags if options[name] in (None, [])}
        command(**{name: one for name, one in options.items() if name not in not_given})

    own = inspect.signature(command, eval_str=True)
    named = [one for one in own.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    flags: dict[str, Parameter] = {}
    if len(named) < len(own.parameters):
        flags = {one.name: one for one in _build_flags()}
    first = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in named]
    run.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[*first[:1], *flags.values(), *first[1:], *_OUTPUT_FLAGS]
    )
    return run
