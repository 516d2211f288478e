"""Arguments of the readers: what each may be, and the errors for those that are not.

An annotation declares what an argument may be: `batch_size: Annotated[int, whole(1)]`. A `Kind`
converts a value to the form that is used, so NumPy's integers are as good as Python's. Decorators
check a call by its annotations (`validated`), a dataclass (`validated_fields`), or a call whose
options are the fields of a dataclass (`WithOptions`).
"""

from __future__ import annotations

import collections.abc
import dataclasses
import difflib
import functools
import inspect
import itertools
import math
import numbers
import operator
import os
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

from shardprep.errors import DatasetError
from shardprep.storage.url import ObjectUrl

_P = ParamSpec("_P")
_Options = TypeVar("_Options")
_First = TypeVar("_First")
_Result = TypeVar("_Result")
_Made = TypeVar("_Made")
_INT64_BITS = 63
"""Bits beside the sign of the int64 that numbers become in a graph."""
_PAIR = 2
SYNONYMS = dict.fromkeys(("ram", "mem", "in_memory", "in-memory", "in memory"), "memory")
"""Word that people write → the word that the readers take."""
_NAMES_OF_NO_FOLDER = {
    "auto", "memory", "none", "true", "false", "yes", "no", "on", "off", "disk", *SYNONYMS,
}  # fmt: skip
_MISSPELT = 0.8
"""Least `difflib` ratio of a word that is another one, misspelt."""
AUGMENT_OPTIONS = ("labels", "seed", "training")
"""Parameters by which `augment` is given more than images."""
_AUTOTUNE = -1
"""`tf.data.AUTOTUNE`, known without TensorFlow."""
_MAX_SHOWN = 60
"""Characters of a value in an error."""
_LIKENESS = 0.7
"""Least `difflib` ratio of two names one of which is proposed in place of the other."""
_MODULE_NAMES = {"tensorflow": "TensorFlow", "keras": "Keras"}


class Kind(NamedTuple):
    """A kind of values, in `Annotated[type, Kind(…)]`."""

    take: Callable[[Any], Any]
    """Return the value as it is used; a TypeError or a ValueError where it is not of this kind."""
    expected: tuple[str, ...]
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

    return Kind(take, tuple(words for kind in kinds for words in kind.expected))


def number(low: float, high: float = math.inf) -> Kind:
    """Return the kind of numbers from `low` to `high`; True and False are none."""

    def take(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise TypeError
        if not low <= float(value) <= high:
            raise ValueError
        return float(value)

    top = f"from {low:g} to {high:g}" if high < math.inf else f"of {low:g} or more"
    return Kind(take, (f"a number {top}",))


def pair(kind: Kind, words: str, *, rising: bool = False) -> Kind:
    """Return the kind of two values of a kind, the first of them at most the second if `rising`."""

    def take(value: Any) -> tuple[Any, ...]:
        found = tuple(map(kind.take, itertools.islice(value, _PAIR + 1)))
        if len(found) != _PAIR or (rising and found[0] > found[1]):
            raise ValueError
        return found

    return Kind(take, (words,))


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
    if isinstance(value, ObjectUrl):
        return value
    found = _expanded(text(os.fspath(value)))
    return Path(found) if isinstance(value, Path) else found


def _expanded(path: str) -> str:
    """Return a path with the home folder in place of `~`."""
    return os.path.expanduser(path)  # noqa: PTH111 - Path makes s3:/ of s3://


def _folder(value: Any) -> str:
    found = text(os.fspath(value))
    if isinstance(value, str) and not {"/", os.sep} & {*found}:
        name = found.strip().casefold()
        is_misspelt = difflib.get_close_matches(name, ["memory"], 1, _MISSPELT)
        if name in _NAMES_OF_NO_FOLDER or is_misspelt:
            raise ValueError
    return _expanded(found)


def _file(value: Any) -> Path:
    found = _expanded(text(os.fspath(value)))
    if "://" in found:
        raise ValueError
    return Path(found)


def _augmentation(value: Any) -> Any:
    if not callable(value):
        raise TypeError
    named = parameters(value)
    if named is not None:
        options = {name: None for name in AUGMENT_OPTIONS if name in named}
        inspect.Signature(list(named.values())).bind("images", **options)
    return value


def parameters(function: Any) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters of a function or a Keras layer, None of what is written in C."""
    try:
        return inspect.signature(getattr(function, "call", function)).parameters
    except ValueError:
        return None


def _weights(value: Any) -> Any:
    """Return what may be weights, which `weights.draws_of` looks into with NumPy."""
    is_text = isinstance(value, (str, bytes, dict))
    if value == "balanced" if is_text else hasattr(value, "values") or hasattr(value, "__len__"):
        return value
    raise TypeError


def _buckets(value: Any) -> Any:
    size, selection = kind_of(Size), like("a reader.Selection", "numbers", "fingerprint")
    found = {size.take(one): selection.take(value[one]) for one in value}
    if not found:
        raise ValueError
    return found


def _autotune(value: Any) -> None:
    if whole().take(value) != _AUTOTUNE:
        raise ValueError


Count = Annotated[int, whole(1)]
Number = Annotated[int, whole(0)]
Seed = Annotated[int, whole(bits=4096)]
Calls = Annotated[int, whole(1)] | Annotated[None, Kind(_autotune, ("tf.data.AUTOTUNE",))] | None
Share = Annotated[float, number(0, 1)]
Size = Annotated[tuple[int, int], pair(whole(1), "(height, width), two whole numbers from 1 on")]
Location = Annotated[str | Path, Kind(_path, ("the path of a folder or an address",))]
Folder = Annotated[str | Path, Kind(_folder, ("a folder ('./auto' where it has such a name)",))]
File = Annotated[str | Path, Kind(_file, ("the path of a file on this machine",))]
Address = Annotated[str, Kind(text, ("an address, 'grpc://host:port',",))]
Function = Callable[..., Any]
Augmentation = Annotated[
    Callable[..., Any],
    Kind(_augmentation, ("a function of images, and of labels, seed or training if so named",)),
]
AnyWeights = Annotated[
    Any,
    Kind(_weights, ("'balanced'", "an array of a weight for each record", "reader.Weights(…)")),
]
Buckets = Annotated[
    Any, Kind(_buckets, ("a dict of (height, width) and reader.Selection, as of reader.buckets",))
]

_PLAIN = {
    bool: Kind(_flag, ("True", "False")),
    str: Kind(text, ("a text",)),
    types.NoneType: _one_of(None),
    collections.abc.Callable: having(callable, "a function"),
    typing.Any: having(lambda _: True, "anything"),
}


def kind_of(hint: Any) -> Kind:
    """Return the kind of values that an annotation allows."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        (kind,) = hint.__metadata__
        return kind  # type: ignore[no-any-return]
    if origin is typing.Literal:
        return _one_of(*parts)
    if origin in (typing.Union, types.UnionType):
        return _either(*map(kind_of, parts))
    plain = _PLAIN.get(origin or hint)
    return plain or having(lambda value: isinstance(value, hint), f"{hint.__name__}(…)")


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
                what = f"got an unexpected keyword argument {short_repr(name)}"
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
            *others, last = kind.expected
            right = f"use {', '.join(others)} or {last}" if others else f"use {last}"
            near = _near(value, [one[1:-1] for one in kind.expected if one[0] == one[-1] == "'"])
            hint = f"did you mean {near!r}? {right}" if near else right
            raise DatasetError(self.where, f"{name}={short_repr(value)}", hint) from None

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


def validated(
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


class WithOptions(Generic[_P, _Options]):
    """A decorator: the function is called with the fields of a dataclass and gets the dataclass.

    So the dataclass alone declares name, type, default and check of each option. What the function
    takes before it, such as `self`, comes first. It raises DatasetError as `validated` does.
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


def validated_fields(where: str) -> Callable[[type[_Made]], type[_Made]]:
    """Return a decorator of dataclasses: the fields are set as their annotations say.

    Raises DatasetError, as `validated`, where one is made of other arguments.
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


def short_repr(value: object) -> str:
    """Return a value in a few words, for an error."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = _MAX_SHOWN
    try:
        return short.repr(value)
    except ValueError:  # of more digits than Python writes
        return f"<{type(value).__name__}>"


@contextmanager
def needing_tensorflow(where: str) -> Iterator[None]:
    """Turn a failed import of TensorFlow or Keras into an error that names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _MODULE_NAMES:
            raise
        raise DatasetError(
            where,
            f"needs {_MODULE_NAMES[error.name]}, which is not installed",
            "pip install 'shardprep[reader]'",
        ) from error
