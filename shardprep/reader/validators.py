"""Checks of the readers' arguments: allowed values, conversion, and errors for other values.

An annotation declares the values of an argument: `batch_size: Annotated[int, whole(1)]`. Decorators
check the arguments of a function by its annotations (`validated`), the fields of a dataclass
(`validated_fields`), or a function whose options are fields of a dataclass (`WithOptions`).
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

from shardprep.errors import DatasetError, nearest_name
from shardprep.storage.url import ObjectUrl

_P = ParamSpec("_P")
_Options = TypeVar("_Options")
_First = TypeVar("_First")
_Result = TypeVar("_Result")
_Class = TypeVar("_Class")
_SYNONYMS = dict.fromkeys(("ram", "mem", "in_memory", "in-memory", "in memory"), "memory")
_OTHER_NAMES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("batch", "bs"), ("batch_size",)),
    **dict.fromkeys(("transform", "transforms", "map", "map_fn", "augmentation", "preprocess"),
                    ("augment", "transform")),
    "augment": ("transform",),
    "workers": ("num_workers",),
    **dict.fromkeys(("epochs", "num_epochs", "repeat"), ("epochs", "repeat")),
    "drop_last": ("drop_remainder",),
    **dict.fromkeys(("random_state", "random_seed"), ("seed",)),
    **dict.fromkeys(("root", "data_dir", "folder", "dataset"), ("path",)),
    **dict.fromkeys(("sampler", "sample_weights", "class_weight", "class_weights"), ("weights",)),
    **dict.fromkeys(("rank", "index"), ("shard_index",)),
    "world_size": ("num_shards",),
    **dict.fromkeys(("n_splits", "n_folds", "num_folds"), ("k",)),
    **dict.fromkeys(("size", "resize", "target_size"), ("image_size",)),
    **dict.fromkeys(("filter", "query", "condition", "fold"), ("where",)),
    **dict.fromkeys(("classes", "class_name", "label_name"), ("label",)),
}  # fmt: skip
"""Name that other libraries use → our names; a call has at most one of them."""
_CONDITIONS = {"where", "label", "keys"}
"""Arguments of `reader.select`, whose result other calls take as a split."""
MERGE_HINT = "merge the datasets of the mix: give shardprep.repack([…], name=…).location"
"""What to do where a mix is not allowed."""
_NOT_FOLDERS = {
    "auto", "memory", "none", "true", "false", "yes", "no", "on", "off", "disk", *_SYNONYMS,
}  # fmt: skip
"""Words that users write as the value of an option, not as the name of a folder."""
_SIMILAR = 0.7
"""Minimum `difflib` ratio of an unknown name and the name that an error proposes instead."""
_MAX_SHOWN = 60
"""Maximum number of characters of a value in an error."""
AUGMENT_OPTIONS = ("labels", "seed", "training")
"""Optional parameters of an `augment` function."""
_AUTOTUNE = -1
"""Value of `tf.data.AUTOTUNE`, repeated here so that TensorFlow is not imported."""
_MODULE_NAMES = {"tensorflow": "TensorFlow", "keras": "Keras"}


class Kind(NamedTuple):
    """The allowed values of an argument and their conversion, for `Annotated[type, Kind(…)]`."""

    take: Callable[[Any], Any]
    """Returns the converted value; raises TypeError or ValueError if the value is not allowed."""
    expected: tuple[str, ...]
    """Descriptions of the allowed values, for errors."""


def whole(least: int | None = None, *, bits: int = 63) -> Kind:
    """Return the kind of integers from `least` (or −2**`bits`) to 2**`bits` − 1; not bools."""
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
    """Return the kind of values that pass a test; `words` describe them in errors."""

    def take(value: Any) -> Any:
        if not test(value):
            raise ValueError
        return value

    return Kind(take, words)


def like(words: str, *attributes: str) -> Kind:
    """Return the kind of objects with these attributes, whose class need not be imported."""
    return having(lambda value: all(hasattr(value, name) for name in attributes), words)


def _one_of(*values: object) -> Kind:
    def is_one(value: Any) -> bool:
        return any(value is one or (isinstance(value, str) and value == one) for one in values)

    return having(is_one, *map(repr, values))


def _either(*kinds: Kind) -> Kind:
    def take(value: Any) -> Any:
        for kind in kinds:
            try:
                return kind.take(value)
            except (TypeError, ValueError):
                continue
        raise ValueError

    return Kind(take, tuple(words for kind in kinds for words in kind.expected))


def number(low: float, high: float = math.inf) -> Kind:
    """Return the kind of numbers from `low` to `high`; True and False are not numbers."""

    def take(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise TypeError
        if not low <= float(value) <= high:
            raise ValueError
        return float(value)

    top = f"from {low:g} to {high:g}" if high < math.inf else f"of {low:g} or more"
    return Kind(take, (f"a number {top}",))


def pair(kind: Kind, words: str, *, rising: bool = False) -> Kind:
    """Return the kind of pairs of `kind`; with `rising`, the first may not exceed the second."""

    def take(value: Any) -> tuple[Any, ...]:
        values = tuple(map(kind.take, itertools.islice(value, 3)))
        if len(values) != 2 or (rising and values[0] > values[1]):
            raise ValueError
        return values

    return Kind(take, (words,))


def _flag(value: Any) -> bool:
    if not isinstance(value, bool) and str(getattr(value, "dtype", "")) != "bool":
        raise TypeError
    return bool(value)


def text(value: Any) -> str:
    """Return a text unchanged; TypeError if it is not a str, is empty or has a null character."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise TypeError
    return str(value)


def _path(value: Any) -> Any:
    if isinstance(value, ObjectUrl):
        return value
    path = _expand_user(text(os.fspath(value)))
    return Path(path) if isinstance(value, Path) else path


def _expand_user(path: str) -> str:
    return os.path.expanduser(path)  # noqa: PTH111 - Path makes s3:/ of s3://


def _folder(value: Any) -> str:
    path = text(os.fspath(value))
    if isinstance(value, str) and not {"/", os.sep} & {*path}:
        name = path.strip().casefold()
        if name in _NOT_FOLDERS or nearest_name(name, ("memory", "auto")):
            raise ValueError
    return _expand_user(path)


def _file(value: Any) -> Path:
    path = _expand_user(text(os.fspath(value)))
    if "://" in path:
        raise ValueError
    return Path(path)


def _augmentation(value: Any) -> Any:
    if not callable(value):
        raise TypeError
    named = parameters(value)
    if named is not None:
        options = {name: None for name in AUGMENT_OPTIONS if name in named}
        inspect.Signature(list(named.values())).bind("images", **options)
    return value


def parameters(function: Any) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters of a function or Keras layer, or None if unknown, as for C code."""
    try:
        return inspect.signature(getattr(function, "call", function)).parameters
    except ValueError:
        return None


def _weights(value: Any) -> Any:
    # `weighted_draws` checks the numbers, with NumPy.
    is_text = isinstance(value, (str, bytes, dict))
    if value == "balanced" if is_text else hasattr(value, "values") or hasattr(value, "__len__"):
        return value
    raise TypeError


def _autotune(value: Any) -> None:
    if whole().take(value) != _AUTOTUNE:
        raise ValueError


Count = Annotated[int, whole(1)]
Number = Annotated[int, whole(0)]
Seed = Annotated[int, whole(bits=4096)]
Calls = Annotated[int, whole(1)] | Annotated[None, Kind(_autotune, ("tf.data.AUTOTUNE",))] | None
Share = Annotated[float, number(0, 1)]
_SIDES = pair(whole(1), "(height, width), two whole numbers from 1 on")


def _size(value: Any) -> Any:
    return _SIDES.take((value, value) if hasattr(value, "__index__") else value)


Size = Annotated[tuple[int, int], Kind(_size, (*_SIDES.expected, "N for a square"))]
Location = Annotated[str | Path, Kind(_path, ("the path of a folder or an address",))]
Folder = Annotated[str | Path, Kind(_folder, ("a folder ('./auto' for one named auto)",))]
File = Annotated[str | Path, Kind(_file, ("the path of a file on this machine",))]
Function = Callable[..., Any]
Augmentation = Annotated[
    Callable[..., Any],
    Kind(_augmentation, ("a function of images with optional parameters labels, seed, training",)),
]
AnyWeights = Annotated[
    Any,
    Kind(_weights, ("'balanced'", "an array with a weight for each record", "reader.Weights(…)")),
]

_PLAIN = {
    bool: Kind(_flag, ("True", "False")),
    str: Kind(text, ("a text",)),
    types.NoneType: _one_of(None),
    collections.abc.Callable: having(callable, "a function"),
    typing.Any: having(lambda _: True, "anything"),
}


def kind_of(hint: Any) -> Kind:
    """Return the kind of values that an annotation allows: its `Kind`, or the kind of its type."""
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
    """The kinds of the arguments of a call, by name, in the order of its parameters."""

    def __init__(
        self, where: str, *calls: Callable[..., Any], elsewhere: Mapping[str, Any] | None = None
    ) -> None:
        """Read the annotations of functions or dataclasses; `where` is shown in errors.

        `elsewhere` maps hints to dataclasses of options of other calls. If such an option is given,
        the error shows the hint, with the name of the option instead of {}.
        """
        self._where = where
        self._elsewhere = elsewhere or {}
        self.kinds = {
            name: kind_of(hint)
            for call in calls
            for name, hint in _hints(call, include_extras=True).items()
        }

    def converted(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments by name, converted; DatasetError if a value is not allowed."""
        return {
            name: self._convert(name, value) if name in self.kinds else value
            for name, value in given.items()
        }

    def bind(self, signature: inspect.Signature, args: Any, kwargs: Any) -> inspect.BoundArguments:
        """Return the arguments of a call, converted; DatasetError for a wrong name or value."""
        for name in kwargs:
            if name not in signature.parameters:
                what = f"got an unexpected keyword argument {short_repr(name)}"
                raise DatasetError(self._where, what, self._hint_for(name))
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise DatasetError(self._where, str(error), self._takes) from None
        bound.arguments.update(self.converted(bound.arguments))
        return bound

    def _convert(self, name: str, value: Any) -> Any:
        kind = self.kinds[name]
        try:
            return kind.take(value)
        except (TypeError, ValueError):
            *others, last = kind.expected
            hint = f"use {', '.join(others)} or {last}" if others else f"use {last}"
            words = [word[1:-1] for word in kind.expected if word[0] == word[-1] == "'"]
            if hasattr(value, "shares"):
                hint = MERGE_HINT
            if near := _nearest(value, words):
                hint = f"did you mean {near!r}? {hint}"
            raise DatasetError(self._where, f"{name}={short_repr(value)}", hint) from None

    @property
    def _takes(self) -> str:
        return f"it takes {', '.join(self.kinds)}"

    def _hint_for(self, name: str) -> str:
        for known in (name, *_OTHER_NAMES.get(name, ())):
            if known in self.kinds:
                return f"did you mean {known}?"
            for template, options in self._elsewhere.items():
                if known in {field.name for field in dataclasses.fields(options)}:
                    return f"give {template.format(known)}"
            if known in _CONDITIONS and self.kinds.keys() & {"split", "batch_size"}:
                return f"give reader.select(path, split, {known}=…) as the split"
        near = _nearest(name, self.kinds)
        return f"did you mean {near}?" if near else self._takes


def _nearest(given: object, choices: Iterable[str]) -> str | None:
    if not isinstance(given, str):
        return None
    names = {choice.casefold(): choice for choice in choices}
    name = given[:_MAX_SHOWN].strip().casefold()
    near = difflib.get_close_matches(_SYNONYMS.get(name, name), names, 1, _SIMILAR)
    return names[near[0]] if near else None


def validated(
    where: str, elsewhere: Mapping[str, Any] | None = None
) -> Callable[[Callable[_P, _Result]], Callable[_P, _Result]]:
    """Return a decorator that checks and converts the arguments of a function.

    DatasetError if an argument is not allowed. For `where` and `elsewhere`, see `Arguments`.
    """

    def decorated(function: Callable[_P, _Result]) -> Callable[_P, _Result]:
        signature = inspect.signature(function)
        arguments = Arguments(where, function, elsewhere=elsewhere)

        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _Result:
            bound = arguments.bind(signature, args, kwargs)
            return function(*bound.args, **bound.kwargs)

        return call

    return decorated


def validated_fields(where: str) -> Callable[[type[_Class]], type[_Class]]:
    """Return a class decorator that checks and converts a dataclass's fields like `validated`."""

    def decorated(cls: type[_Class]) -> type[_Class]:
        dataclass: Any = cls
        dataclass.__init__ = validated(where)(dataclass.__init__)
        return cls

    return decorated


class WithOptions(Generic[_P, _Options]):
    """Decorator of a function whose callers pass the fields of a dataclass as arguments.

    The function gets an instance of the dataclass as its last parameter. Its other parameters, such
    as `self`, are passed on.
    """

    def __init__(
        self,
        where: str,
        options: Callable[_P, _Options],
        elsewhere: Mapping[str, Any] | None = None,
    ) -> None:
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
        signature = inspect.signature(function)
        *first, last = signature.parameters.values()
        hints = _hints(self._options)
        options = [
            parameter.replace(annotation=hints[parameter.name])
            for parameter in inspect.signature(self._options).parameters.values()
        ]
        signature = signature.replace(parameters=[*first, *options])
        arguments = Arguments(self._where, function, self._options, elsewhere=self._elsewhere)
        del arguments.kinds[last.name]
        make_options: Callable[..., Any] = self._options

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = arguments.bind(signature, args, kwargs).arguments
            leading = [given.pop(parameter.name) for parameter in first]
            return function(*leading, make_options(**given))

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call


def check_position(where: str, **given: int) -> None:
    """Raise DatasetError unless 0 ≤ (first keyword) < (second keyword)."""
    (name, index), (of, number) = given.items()
    if not 0 <= index < number:
        what = f"{name}={index} is out of range for {of}={number}"
        raise DatasetError(where, what, f"use 0 to {number - 1}")


def position_of(where: str, shard_index: int | None, num_shards: int | None) -> tuple[int, int]:
    """Return (shard_index, num_shards), or (0, 1) if neither is given.

    DatasetError if only one is given: its default would let all hosts read the same records.
    """
    if shard_index is None and num_shards is None:
        return 0, 1
    if shard_index is None or num_shards is None:
        given = f"num_shards={num_shards}, shard_index={shard_index}"
        raise DatasetError(where, given, "give both of them or neither")
    check_position(where, shard_index=shard_index, num_shards=num_shards)
    return shard_index, num_shards


def _hints(call: Callable[..., Any], *, include_extras: bool = False) -> dict[str, Any]:
    # The annotation of the result is left out, because its module may not be imported.
    holder: Any = call
    if not isinstance(call, type):
        named = {name: hint for name, hint in call.__annotations__.items() if name != "return"}
        holder = types.SimpleNamespace(__annotations__=named)
    names = vars(sys.modules[call.__module__])
    hints = typing.get_type_hints(holder, names, include_extras=include_extras)
    return {name: hints[name] for name in inspect.signature(call).parameters if name in hints}


def short_repr(value: object) -> str:
    """Return the shortened `repr` of a value, for an error."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = _MAX_SHOWN
    try:
        return short.repr(value)
    except ValueError:  # a number with more digits than Python writes
        return f"<{type(value).__name__}>"


@contextmanager
def needing_tensorflow(where: str) -> Iterator[None]:
    """Turn a failed import of TensorFlow or Keras into a DatasetError that names the extra."""
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
