"""Kinds of values: `Annotated[int, whole(1)]` declares what an argument may be.

A kind turns what was given into what is used, so that NumPy's integers are as good as Python's.
"""

from __future__ import annotations

import collections.abc
import difflib
import inspect
import itertools
import math
import numbers
import operator
import os
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from shardprep.storage.url import ObjectUrl

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
