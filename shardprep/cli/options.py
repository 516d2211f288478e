"""The commands of the command line, generated from the functions of `shardprep.api`.

The signature of a function gives the names and defaults of its options. `OPTIONS` in the same
module gives their help and bounds. A function of the same name in a module of `shardprep.cli`
prints the result; its docstring is the help and the examples of the command. A print function that
takes `call` calls the API function itself. It then also handles `--json` and the `OPTIONS` of its
module, which only the command line has, such as `--open`, or declares differently.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from functools import partial
from importlib import import_module
from inspect import Parameter
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from shardprep.api import COMMANDS
from shardprep.cli.streams import console, print_json, start_logging
from shardprep.recipe.options import ARGUMENTS, BUILD_DEFAULTS, BUILD_OPTIONS, RUN_OPTIONS, Option

_FIRST = {
    *("source", "out", "name", "shards", "size", "labels", "boxes", "masks", "split", "group"),
    *("exclude", "workers", "dry_run", "help", "help_all"),
}
"""Options that most builds need; the short help of `build` shows only these."""
_EXAMPLES = re.compile(r"\n\n(Examples?:)\n")
_BREAK = re.compile(r"(?<!\n)\n(?!\n)")
"""End of a line within a paragraph; the width of the terminal decides where lines end."""
_MARKUP = re.compile(r"\[(?=[a-z#/@])")
"""Opening brackets that rich would parse as the start of a tag."""


def _help_of(option: Option, default: object) -> str:
    shown = option.shown
    if not shown and isinstance(default, tuple | str | float | int) and default not in ("", ()):
        shown = ",".join(default) if isinstance(default, tuple) else str(default)
        shown = shown.removesuffix(".0") if isinstance(default, float) else shown
        shown = "" if isinstance(default, bool) or option.panel == ARGUMENTS else shown
    text = _MARKUP.sub(r"\\[", option.help)
    return text + (r" [dim]\[default: " + _MARKUP.sub(r"\\[", shown) + "][/dim]" if shown else "")


def _parameter(name: str, option: Option, default: object, *, is_key: bool = False) -> Parameter:
    """Return a command's parameter for an option; the parameter's default None means "not given".

    `default` is the default in Python, or `Parameter.empty` for a required option. A switch also
    gets `--no-…` if its default is True, or if it is a key of the recipe (`is_key`).
    """
    flags = option.flags or (f"--{name.rstrip('_').replace('_', '-')}",)
    kind: Any = list[str] if option.is_repeated else str
    if isinstance(default, bool):
        kind = bool
        if is_key or default:
            flags = (f"{flags[0]}/--no-{flags[0][2:]}",)
    text = _help_of(option, default)
    declared: Any = typer.Argument(help=text, show_default=False)
    if option.panel != ARGUMENTS:
        declared = typer.Option(
            *flags,
            metavar=option.metavar or None,
            help=text,
            show_default=False,
            rich_help_panel=option.panel or None,
        )
    if default is Parameter.empty:
        return Parameter(name, Parameter.KEYWORD_ONLY, annotation=Annotated[kind, declared])
    hint = Annotated[kind | None, declared]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=hint)


def _of_function(function: Callable[..., Any], options: Mapping[str, Option]) -> list[Parameter]:
    given = inspect.signature(function).parameters.values()
    defaults = {parameter.name: parameter.default for parameter in given}
    has_keys = "recipe" in defaults  # `build`: its options are the keys of a recipe
    if has_keys:
        defaults |= BUILD_DEFAULTS
    return [
        _parameter(name, option, defaults[name], is_key=has_keys and name in BUILD_OPTIONS)
        for name, option in options.items()
    ]


Call = partial[Any]


def command(name: str) -> Callable[..., None]:
    """Return the function that typer runs for a command; its signature has all options."""
    functions = import_module(f"shardprep.api.{COMMANDS[name]}")
    function, options = getattr(functions, name), functions.OPTIONS[name]
    terminal = import_module(f"shardprep.cli.{COMMANDS[name]}")
    own: dict[str, Option] = getattr(terminal, "OPTIONS", {}).get(name, {})
    show = getattr(terminal, name)
    has_progress = "progress" in inspect.signature(function).parameters
    takes_call = "call" in inspect.signature(show).parameters

    def run(*, quiet: bool | None, log_level: str | None, **values: Any) -> None:
        if quiet or log_level is not None:
            start_logging("error" if quiet else log_level or "info")
        given = {key: value for key, value in values.items() if value not in (None, [])}
        shown = {key: given.pop(key, None) for key in (*own, "as_json")}
        with ExitStack() as stack:
            if has_progress:
                from shardprep.api.display import Bar

                given["progress"] = stack.enter_context(Bar(console(stderr=True)))
            if takes_call:
                show(partial(function, **given), **shown)
            elif shown["as_json"]:
                print_json(function(**given))
            else:
                show(function(**given))

    mine = _of_function(function, {key: own.get(key, one) for key, one in options.items()})
    others = [
        _parameter(key, one, False if not one.metavar else None)
        for key, one in own.items()
        if key not in options
    ]
    last = [one for one in mine if one.name == "store_timeout"]
    mine = [one for one in mine if one.name != "store_timeout"]
    every = [_HELP_ALL] if name == "build" else []
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*mine, *others, *last, *OUTPUT, *every]
    )
    run.__doc__ = show.__doc__
    return run


def help_of(function: Callable[..., None]) -> tuple[str, str]:
    """Return the help of a command and the examples below it, from the function's docstring."""
    text, *examples = _EXAMPLES.split(inspect.getdoc(function) or "")  # no text with python -OO
    lines = [line.strip() for part in examples for line in part.splitlines()]
    return _BREAK.sub(" ", text), "\n\n".join(lines)


_WORDS = {
    f"--{name.replace('_', '-')}": option.metavar.strip("[]")
    for name, option in BUILD_OPTIONS.items()
    if option.metavar.startswith("[")
}
"""Switch → the only word that may follow it, as in `--dedup near`."""


def _unchanged(parameter: Any, context: Any, value: Any) -> Any:
    """Return the parsed value, without the validator that Typer would build for each option."""
    if parameter.nargs == -1 or getattr(parameter, "multiple", False):
        value = list(value or ())
    return value if parameter.callback is None else parameter.callback(context, parameter, value)


class _Plain:
    """Mixin for help that shows metavars such as SOURCE instead of Python types."""

    def get_params(self, context: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(context)  # type: ignore[misc]
        for parameter in parameters:
            if not parameter.required:
                parameter.process_value = partial(_unchanged, parameter)
            if parameter.param_type_name == "argument":
                parameter.metavar = parameter.name.upper()
                parameter.display_type_rich = lambda **_: None
            elif parameter.metavar is None:
                parameter.metavar = ""  # a switch does not take a value
        return parameters


class Command(_Plain, TyperCommand):
    """A command whose switches may be followed by a word, see `_WORDS`."""

    def format_help(self, context: Any, formatter: Any) -> None:
        """Print the help; for `build`, only the options in `_FIRST`, below one heading."""
        short = copy(self)
        if any(one.name == "help_all" for one in self.params):
            short.params = [copy(one) for one in self.params if one.name in _FIRST]
            for one in short.params:
                one.rich_help_panel = None  # type: ignore[attr-defined]
        super(Command, short).format_help(context, formatter)

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        """Set the parameters in `context`, and return the arguments left over."""
        end = args.index("--") if "--" in args else len(args)
        left: list[str] = []
        words: dict[str, str] = {}
        for before, argument in zip(["", *args], args[:end], strict=False):
            name, _, word = argument.partition("=")
            if _WORDS.get(before) == argument:
                words[before] = argument
            elif word and _WORDS.get(name) == word:
                words[name] = word
                left.append(name)
            else:
                words.pop(name.replace("--no-", "--", 1), None)
                left.append(argument)
        rest: list[str] = super().parse_args(context, left + args[end:])
        context.params.update({name[2:].replace("-", "_"): word for name, word in words.items()})
        return rest


def _help_all(context: typer.Context, wanted: bool | None) -> None:  # noqa: FBT001 - typer's signature
    if wanted:
        command: Any = context.command
        TyperCommand.format_help(command, context, context.make_formatter())
        raise typer.Exit


class Group(_Plain, TyperGroup):
    """The program: the group of all commands."""


OUTPUT = [
    _parameter("as_json", replace(RUN_OPTIONS["json"], flags=("--json",)), default=False),
    _parameter("quiet", RUN_OPTIONS["quiet"], default=False),
    _parameter("log_level", RUN_OPTIONS["log_level"], default=None),
]
_HELP_ALL = Parameter(
    "help_all",
    Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        bool | None,
        typer.Option(
            "--help-all", callback=_help_all, is_eager=True, help="Show all options, also limits."
        ),
    ],
)
QUIET, LOG_LEVEL = (get_args(one.annotation)[1] for one in OUTPUT[1:])
