"""Checks of the arguments of the readers, declared by annotations: `batch_size: Count | None`.

A `Kind` turns what was given into what is used, so that NumPy's integers are as good as Python's.
A value of no such kind is an error that names the argument, its value and what is right.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import itertools
import numbers
import operator
import os
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated, Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

from shardprep.errors import DatasetError
from shardprep.storage.url import ObjectUrl

_P = ParamSpec("_P")
_Options = TypeVar("_Options")
_First = TypeVar("_First")
_Result = TypeVar("_Result")
_INT64_BITS = 63
"""Bits beside the sign of the int64 that numbers become in a graph."""
_PAIR = 2
_NAMES_OF_NO_FOLDER = {"auto", "memory", "none", "true", "false"}
_AUTOTUNE = -1
"""`tf.data.AUTOTUNE`, known without TensorFlow."""
_MAX_SHOWN = 60


class Kind(NamedTuple):
    """A kind of values, in `Annotated[type, Kind(…)]`."""

    take: Callable[[Any], Any]
    """Return the value as it is used; a TypeError or a ValueError where it is not of this kind."""
    right: tuple[str, ...]
    """Values of this kind, in words: any one of these."""


def whole(least: int | None = None, *, bits: int = _INT64_BITS) -> Kind:
    """Return the kind of whole numbers, of those from `least` on; True and False are none."""
    lowest = -(1 << bits) if least is None else least

    def take(value: Any) -> int:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
        if not lowest <= number < 1 << bits:
            raise ValueError
        return number

    return Kind(take, ("a whole number" if least is None else f"a whole number from {least} on",))


def having(test: Callable[[Any], bool], *words: str) -> Kind:
    """Return the kind of values for which a test is true."""

    def take(value: Any) -> Any:
        if not test(value):
            raise ValueError
        return value

    return Kind(take, words)


def like(words: str, *attributes: str) -> Kind:
    """Return the kind of objects that have these attributes: their class may be TensorFlow's."""
    return having(lambda value: all(hasattr(value, name) for name in attributes), words)


def _one_of(*values: object) -> Kind:
    def is_one(value: Any) -> bool:
        return any(value is one or (isinstance(value, str) and value == one) for one in values)

    return having(is_one, *map(repr, values))


def _either(*kinds: Kind) -> Kind:
    """Return the kind of what is of one of these; the first that takes a value has it."""

    def take(value: Any) -> Any:
        for kind in kinds:
            try:
                return kind.take(value)
            except (TypeError, ValueError):
                continue
        raise ValueError

    return Kind(take, tuple(words for kind in kinds for words in kind.right))


def _flag(value: Any) -> bool:
    if not isinstance(value, bool) and str(getattr(value, "dtype", "")) != "bool":
        raise TypeError
    return bool(value)


def text(value: Any) -> str:
    """Return a text that is not empty; raise TypeError for anything else."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise TypeError
    return str(value)


def _path(value: Any) -> Any:
    if not isinstance(value, ObjectUrl):
        text(os.fspath(value))
    return value


def _folder(value: Any) -> str:
    found = text(os.fspath(value))
    if isinstance(value, str) and found.strip().casefold() in _NAMES_OF_NO_FOLDER:
        raise ValueError
    return found


def _size(value: Any) -> tuple[int, ...]:
    sides = tuple(map(whole(1).take, itertools.islice(value, _PAIR + 1)))
    if len(sides) != _PAIR:
        raise ValueError
    return sides


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError
    number = float(value)
    if not 0 <= number <= 1:
        raise ValueError
    return number


def _autotune(value: Any) -> None:
    if whole().take(value) != _AUTOTUNE:
        raise ValueError


Count = Annotated[int, whole(1)]
Number = Annotated[int, whole(0)]
Seed = Annotated[int, whole(bits=4096)]
Calls = Annotated[int, whole(1)] | Annotated[None, Kind(_autotune, ("tf.data.AUTOTUNE",))] | None
Share = Annotated[float, Kind(_share, ("a number from 0 to 1",))]
Size = Annotated[tuple[int, int], Kind(_size, ("(height, width), two whole numbers from 1 on",))]
Location = Annotated[str | Path, Kind(_path, ("the path of a folder or an address",))]
Folder = Annotated[str | Path, Kind(_folder, ("a folder ('./auto' where it has such a name)",))]
Address = Annotated[str, Kind(text, ("an address, 'grpc://host:port',",))]
Function = Callable[..., Any]

_PLAIN = {
    bool: Kind(_flag, ("True", "False")),
    str: Kind(text, ("a text",)),
    types.NoneType: _one_of(None),
    collections.abc.Callable: having(callable, "a function"),
    typing.Any: having(lambda _: True, "anything"),
}


def _kind(hint: Any) -> Kind:
    """Return the kind of values that an annotation allows."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        (kind,) = hint.__metadata__
        return kind  # type: ignore[no-any-return]
    if origin is typing.Literal:
        return _one_of(*parts)
    if origin in (typing.Union, types.UnionType):
        return _either(*map(_kind, parts))
    plain = _PLAIN.get(origin or hint)
    return plain or having(lambda value: isinstance(value, hint), f"{hint.__name__}(…)")


class Arguments:
    """What each argument of a call may be, in the order of its parameters."""

    def __init__(self, where: str, *calls: Callable[..., Any]) -> None:
        """Read the annotations of functions or dataclasses; `where` is the call, for errors."""
        self.where = where
        self.kinds = {
            name: _kind(hint)
            for call in calls
            for name, hint in _hints(call, include_extras=True).items()
        }

    def checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments as they are used, those without an annotation as they are.

        Raises:
            DatasetError: one is not what it may be.

        """
        return {name: self._taken(name, value) for name, value in given.items()}

    def bind(self, signature: inspect.Signature, args: Any, kwargs: Any) -> inspect.BoundArguments:
        """Return the arguments of a call, by name.

        Raises:
            DatasetError: one is missing, is not what it may be, or there is none of that name.

        """
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
    """Compare the index of one thing of several with their number, as they are given by name.

    Raises:
        DatasetError: there is no such one.

    """
    (name, index), (of, number) = given.items()
    if not 0 <= index < number:
        raise DatasetError(where, f"{name}={index} of {of}={number}", f"count from 0 to {of} - 1")


def _hints(call: Callable[..., Any], *, include_extras: bool = False) -> dict[str, Any]:
    """Return the annotations of parameters, evaluated; that of the result may not be imported."""
    named = {name: one for name, one in call.__annotations__.items() if name != "return"}
    holder = types.SimpleNamespace(__annotations__=named)
    module = vars(sys.modules[call.__module__])
    found = typing.get_type_hints(holder, module, include_extras=include_extras)
    return {name: hint for name, hint in found.items() if hint is not KW_ONLY}


def shown(value: object) -> str:
    """Return a value in a few words, for an error."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = _MAX_SHOWN
    try:
        return short.repr(value)
    except ValueError:  # of more digits than Python writes
        return f"<{type(value).__name__}>"
