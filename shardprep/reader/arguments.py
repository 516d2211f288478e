"""Checks of the arguments of a call, declared by annotations: `batch_size: Count | None = None`.

A value that is none of its kind is an error that names the argument, its value and what is right.
"""

from __future__ import annotations

import functools
import inspect
import reprlib
import sys
import types
import typing
from dataclasses import KW_ONLY
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from shardprep.errors import DatasetError
from shardprep.reader.argument_kinds import kind_of

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_P = ParamSpec("_P")
_Options = TypeVar("_Options")
_First = TypeVar("_First")
_Result = TypeVar("_Result")
_MAX_SHOWN = 60
"""Characters of a value in an error."""


class Arguments:
    """The kind of each argument of a call, in the order of its parameters."""

    def __init__(self, where: str, *calls: Callable[..., Any]) -> None:
        """Read the annotations of functions or dataclasses; `where` is the call, for errors."""
        self.where = where
        self.kinds = {
            name: kind_of(hint)
            for call in calls
            for name, hint in _hints(call, include_extras=True).items()
        }

    def checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments as they are used; raise DatasetError where one is not what it may be."""
        return {name: self._taken(name, value) for name, value in given.items()}

    def bind(self, signature: inspect.Signature, args: Any, kwargs: Any) -> inspect.BoundArguments:
        """Return the arguments of a call; raise DatasetError where they are not those it takes."""
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError as error:
            hint = f"it takes {', '.join(self.kinds)}"
            raise DatasetError(self.where, str(error), hint) from None
        given.arguments.update(self.checked(given.arguments))
        return given

    def _taken(self, name: str, value: Any) -> Any:
        if name not in self.kinds:
            return value
        kind = self.kinds[name]
        try:
            return kind.take(value)
        except (TypeError, ValueError):
            *others, last = kind.right
            right = f"{', '.join(others)} or {last}" if others else last
            raise DatasetError(self.where, f"{name}={shown(value)}", f"use {right}") from None


def checking(where: str) -> Callable[[Callable[_P, _Result]], Callable[_P, _Result]]:
    """Return a decorator: the function gets its arguments as their annotations say.

    It raises DatasetError where it is called with others, before anything is done.
    """

    def decorated(function: Callable[_P, _Result]) -> Callable[_P, _Result]:
        signature, arguments = inspect.signature(function), Arguments(where, function)

        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _Result:
            given = arguments.bind(signature, args, kwargs)
            return function(*given.args, **given.kwargs)

        return call

    return decorated


class Taking(Generic[_P, _Options]):
    """A decorator: the function is called with the fields of a dataclass and gets the dataclass.

    So the dataclass alone declares name, type, default and check of each option. What the function
    takes before it, such as `self`, comes first. It raises DatasetError as `checking` does.
    """

    def __init__(self, where: str, options: Callable[_P, _Options]) -> None:
        """`where` is the call, for errors; `options` the dataclass."""
        self._where = where
        self._options = options

    @typing.overload
    def __call__(self, function: Callable[[_Options], _Result]) -> Callable[_P, _Result]: ...
    @typing.overload
    def __call__(
        self, function: Callable[[_First, _Options], _Result]
    ) -> Callable[Concatenate[_First, _P], _Result]: ...
    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with a signature that shows all of its options."""
        plain = inspect.signature(function)
        *first, options = plain.parameters.values()
        hints = _hints(self._options)
        last = [
            one.replace(annotation=hints[one.name])
            for one in inspect.signature(self._options).parameters.values()
        ]
        signature = plain.replace(parameters=[*first, *last])
        arguments = Arguments(self._where, function, self._options)
        options_of: Callable[..., Any] = self._options
        del arguments.kinds[options.name]

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = arguments.bind(signature, args, kwargs).arguments
            leading = [given.pop(one.name) for one in first]
            return function(*leading, options_of(**given))

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call


def check_fields(where: str, made: object) -> None:
    """Set the fields of a frozen dataclass as their annotations say; raise DatasetError if not."""
    arguments = Arguments(where, type(made))
    given = {name: getattr(made, name) for name in arguments.kinds}
    for name, value in arguments.checked(given).items():
        object.__setattr__(made, name, value)


def check_position(where: str, **given: int) -> None:
    """Compare an index with a number, both given by name; raise DatasetError where it is beyond."""
    (name, index), (of, number) = given.items()
    if not 0 <= index < number:
        raise DatasetError(where, f"{name}={index} of {of}={number}", f"count from 0 to {of} - 1")


def _hints(call: Callable[..., Any], *, include_extras: bool = False) -> dict[str, Any]:
    """Return the annotations of parameters, evaluated; that of the result may not be imported."""
    holder: Any = call
    if not isinstance(call, type):
        named = {name: one for name, one in call.__annotations__.items() if name != "return"}
        holder = types.SimpleNamespace(__annotations__=named)
    names = vars(sys.modules[call.__module__])
    found = typing.get_type_hints(holder, names, include_extras=include_extras)
    return {name: hint for name, hint in found.items() if hint is not KW_ONLY}


def shown(value: object) -> str:
    """Return a value in a few words, for an error."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = _MAX_SHOWN
    try:
        return short.repr(value)
    except ValueError:  # of more digits than Python writes
        return f"<{type(value).__name__}>"
