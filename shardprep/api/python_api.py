"""Wrappers of the commands for Python: `help()` lists all options, and no OSError is raised."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar, get_type_hints

from shardprep.errors import of_system
from shardprep.recipe.keywords import BuildKeywords
from shardprep.recipe.options import BUILD_DEFAULTS, Option

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def in_python(command: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Return a wrapper of a command. Its docstring and signature list all options of the command.

    The wrapper raises a ShardprepError instead of an OSError.
    """

    @functools.wraps(command)
    def called(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            return command(*args, **kwargs)
        except OSError as error:
            raise of_system(error) from error

    options = sys.modules[command.__module__].OPTIONS[command.__name__]
    signature = inspect.signature(command)
    if any(given.kind is given.VAR_KEYWORD for given in signature.parameters.values()):
        signature = _with_options(signature)
        called.__signature__ = signature  # type: ignore[attr-defined]
    called.__doc__ = _documented(inspect.getdoc(command) or "", signature, options)
    called.__module__ = "shardprep"
    return called


def _with_options(signature: inspect.Signature) -> inspect.Signature:
    given = signature.parameters.values()
    named = [parameter for parameter in given if parameter.kind is not parameter.VAR_KEYWORD]
    kind = inspect.Parameter.KEYWORD_ONLY
    options = [
        inspect.Parameter(name, kind, default=BUILD_DEFAULTS[name], annotation=hint)
        for name, hint in get_type_hints(BuildKeywords).items()
    ]
    return signature.replace(parameters=[*named, *options])


def _documented(text: str, signature: inspect.Signature, options: Mapping[str, Option]) -> str:
    lines = ["Args:"]
    for name in signature.parameters:
        if name == "progress":
            lines.append("    progress: Function that receives each `Progress`; True to show them.")
        else:
            option = options[name]
            shown = f" Default: {option.shown}." if option.shown else ""
            lines.append(f"    {name}: {option.help}{shown}")
    first, separator, rest = text.partition("\nRaises:")
    return "\n".join([f"{first.rstrip()}\n", *lines]) + (f"\n{separator}{rest}" if rest else "")
