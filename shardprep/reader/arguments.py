"""Checks of the arguments of a call, declared by annotations: `batch_size: Count | None = None`.

A value that is none of its kind is an error that names the argument, its value and what is right.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import reprlib
import sys
import types
import typing
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from shardprep.errors import DatasetError
from shardprep.reader.validators import SYNONYMS, kind_of

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_P = ParamSpec("_P")
_Options = TypeVar("_Options")
_First = TypeVar("_First")
_Result = TypeVar("_Result")
_Made = TypeVar("_Made")
_MAX_SHOWN = 60
"""Characters of a value in an error."""
_LIKENESS = 0.7
"""Least `difflib` ratio of two names one of which is proposed in place of the other."""


class Arguments:
    """The kind of each argument of a call, in the order of its parameters."""

    def __init__(
        self, where: str, *calls: Callable[..., Any], elsewhere: Mapping[str, Any] | None = None
    ) -> None:
        """Read the annotations of functions or dataclasses.

        Args:
            where: the call, for errors.
            calls: the functions or dataclasses.
            elsewhere: text with {} for a name → dataclass that has further options, which the call
                does not take: where one is given, the error says that text.

        """
        self.where = where
        self._elsewhere = elsewhere or {}
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
        for name in kwargs:
            if name not in signature.parameters:
                what = f"got an unexpected keyword argument {shown(name)}"
                raise DatasetError(self.where, what, self._instead(name))
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise DatasetError(self.where, str(error), self._takes) from None
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
            right = f"use {', '.join(others)} or {last}" if others else f"use {last}"
            near = _near(value, [one[1:-1] for one in kind.right if one[0] == one[-1] == "'"])
            hint = f"did you mean {near!r}? {right}" if near else right
            raise DatasetError(self.where, f"{name}={shown(value)}", hint) from None

    @property
    def _takes(self) -> str:
        return f"it takes {', '.join(self.kinds)}"

    def _instead(self, name: str) -> str:
        """Return what to write in place of an argument that there is not."""
        for template, options in self._elsewhere.items():
            if name in {one.name for one in dataclasses.fields(options)}:
                return f"give {template.format(name)}"
        near = _near(name, self.kinds)
        return f"did you mean {near}?" if near else self._takes


def _near(given: object, choices: Iterable[str]) -> str | None:
    """Return the one of some names that was probably meant."""
    if not isinstance(given, str):
        return None
    names = {one.casefold(): one for one in choices}
    name = given[:_MAX_SHOWN].strip().casefold()
    found = difflib.get_close_matches(SYNONYMS.get(name, name), names, 1, _LIKENESS)
    return names[found[0]] if found else None


def checking(
    where: str, elsewhere: Mapping[str, Any] | None = None
) -> Callable[[Callable[_P, _Result]], Callable[_P, _Result]]:
    """Return a decorator: the function gets its arguments as their annotations say.

    It raises DatasetError where it is called with others, before anything is done. `where` and
    `elsewhere` are as of `Arguments`.
    """

    def decorated(function: Callable[_P, _Result]) -> Callable[_P, _Result]:
        signature = inspect.signature(function)
        arguments = Arguments(where, function, elsewhere=elsewhere)

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

    def __init__(
        self,
        where: str,
        options: Callable[_P, _Options],
        elsewhere: Mapping[str, Any] | None = None,
    ) -> None:
        """`where` and `elsewhere` are as of `Arguments`; `options` is the dataclass."""
        self._where = where
        self._options = options
        self._elsewhere = elsewhere

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
        arguments = Arguments(self._where, function, self._options, elsewhere=self._elsewhere)
        options_of: Callable[..., Any] = self._options
        del arguments.kinds[options.name]

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = arguments.bind(signature, args, kwargs).arguments
            leading = [given.pop(one.name) for one in first]
            return function(*leading, options_of(**given))

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call


def checked_fields(where: str) -> Callable[[type[_Made]], type[_Made]]:
    """Return a decorator of dataclasses: the fields are set as their annotations say.

    Raises DatasetError, as `checking`, where one is made of other arguments.
    """

    def decorated(made: type[_Made]) -> type[_Made]:
        signature, arguments = inspect.signature(made), Arguments(where, made)
        plain: Any = made.__init__
        holder: Any = made

        @functools.wraps(plain)
        def init(self: _Made, *args: Any, **kwargs: Any) -> None:
            given = arguments.bind(signature, args, kwargs)
            plain(self, *given.args, **given.kwargs)

        holder.__init__ = init
        return made

    return decorated


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
    return {name: hint for name, hint in found.items() if hint is not dataclasses.KW_ONLY}


def shown(value: object) -> str:
    """Return a value in a few words, for an error."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = _MAX_SHOWN
    try:
        return short.repr(value)
    except ValueError:  # of more digits than Python writes
        return f"<{type(value).__name__}>"
