"""One table of what each argument of the readers may be; it is checked when it is given.

A `Kind` turns what was given into what is used, so that NumPy's integers are as good as Python's;
what is of no such kind is an error that names the argument, its value and what is right.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import numbers
import operator
import os
import reprlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

from shardprep.errors import DatasetError
from shardprep.storage.url import ObjectUrl

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_INT64_BITS = 63
"""Bits beside the sign of the int64 that numbers become in a graph."""
_SEED_BITS = 4096
_EPOCH_BITS = 31
_PAIR = 2
_NAMES_OF_NO_FOLDER = {"auto", "memory", "none", "true", "false"}
_MAX_SHOWN = 60


class Kind(NamedTuple):
    """A kind of values."""

    take: Callable[[Any], Any]
    """Return the value as it is used; a TypeError or a ValueError where it is not of this kind."""
    right: tuple[str, ...]
    """Values of this kind, in words: any one of these."""


def either(*kinds: Kind) -> Kind:
    """Return the kind of what is of one of these; the first that takes a value has it."""

    def take(value: Any) -> Any:
        for kind in kinds[:-1]:
            try:
                return kind.take(value)
            except (TypeError, ValueError):
                continue
        return kinds[-1].take(value)

    return Kind(take, tuple(words for kind in kinds for words in kind.right))


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


def one_of(*values: object) -> Kind:
    """Return the kind of these texts and constants."""

    def take(value: Any) -> Any:
        for one in values:
            if value is one or (isinstance(one, str) and isinstance(value, str) and value == one):
                return one
        raise ValueError

    return Kind(take, tuple(map(repr, values)))


def like(words: str, *attributes: str) -> Kind:
    """Return the kind of objects that have these attributes: their class may be TensorFlow's."""

    def take(value: Any) -> Any:
        if not all(hasattr(value, name) for name in attributes):
            raise TypeError
        return value

    return Kind(take, (words,))


def _flag(value: Any) -> bool:
    if not isinstance(value, bool) and str(getattr(value, "dtype", "")) != "bool":
        raise TypeError
    return bool(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise TypeError
    return str(value)


def _path(value: Any) -> Any:
    if not isinstance(value, ObjectUrl):
        _text(os.fspath(value))
    return value


def _folder(value: Any) -> str:
    text = _text(os.fspath(value))
    if isinstance(value, str) and text.strip().casefold() in _NAMES_OF_NO_FOLDER:
        raise ValueError
    return text


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


def _function(value: Any) -> Any:
    if not callable(value):
        raise TypeError
    return value


def _autotune(value: Any) -> None:
    if whole().take(value) != _AUTOTUNE:
        raise ValueError


_AUTOTUNE = -1
"""`tf.data.AUTOTUNE`, known without TensorFlow."""
_NONE = one_of(None)
_FLAG = Kind(_flag, ("True", "False"))
_TEXT = Kind(_text, ("a text",))
_FUNCTION = Kind(_function, ("a function",))
_COUNT = whole(1)
_COUNT_OR_NONE = either(_COUNT, _NONE)
_SEED = whole(bits=_SEED_BITS)
_CALLS = either(_COUNT, Kind(_autotune, ("tf.data.AUTOTUNE",)), _NONE)
_ON_ERROR = one_of("raise", "skip")
_WHAT = {
    "path": Kind(_path, ("the path of a folder or an address",)),
    "split": either(
        Kind(_text, ("a text such as 'train[:90%]+validation'",)),
        like("one of even_splits", "split", "index", "number", "drop_remainder"),
    ),
}
_LOAD = {
    **_WHAT,
    "batch_size": _COUNT_OR_NONE,
    "shuffle": either(_FLAG, _COUNT_OR_NONE),
    "seed": either(_SEED, _NONE),
    "repeat": either(_FLAG, _COUNT),
    "cache": either(
        one_of(False, "auto", "memory"),  # noqa: FBT003 - a value among others
        Kind(_folder, ("a folder ('./auto' where it has such a name)",)),
    ),
    "augment": either(_FUNCTION, _NONE),
    "dtype": one_of("uint8", "float32"),
    "as_supervised": _FLAG,
    "drop_remainder": _FLAG,
    "read_config": either(like("a ReadConfig", "interleave_cycle_length", "shard_of"), _NONE),
}
_STATE = {
    "seed": _SEED,
    "epoch": whole(0, bits=_EPOCH_BITS),
    "batch": whole(0),
    "of": _TEXT,
}

ARGUMENTS: dict[str, dict[str, Kind]] = {
    "reader.load": _LOAD,
    "reader.iterate": _LOAD,
    "reader.distribute": {
        "strategy": like(
            "a tf.distribute.Strategy",
            "num_replicas_in_sync",
            "distribute_datasets_from_function",
        ),
        **_LOAD,
    },
    "reader.ReadConfig": {
        "interleave_cycle_length": _COUNT_OR_NONE,
        "interleave_block_length": _COUNT_OR_NONE,
        "num_parallel_calls_for_interleave_files": _CALLS,
        "num_parallel_calls_for_decode": _CALLS,
        "shuffle_reshuffle_each_iteration": _FLAG,
        "image_size": either(Kind(_size, ("(height, width), two whole numbers from 1 on",)), _NONE),
        "num_shards": _COUNT,
        "shard_index": whole(0),
        "input_context": either(
            like(
                "a tf.distribute.InputContext",
                "input_pipeline_id",
                "num_input_pipelines",
                "num_replicas_in_sync",
            ),
            _NONE,
        ),
        "pad_batches": _FLAG,
        "on_error": either(_ON_ERROR, _FUNCTION),
        "service": either(Kind(_text, ("an address, 'grpc://host:port',",)), _NONE),
        "staging_bytes": either(whole(0), _NONE),
        "cache_ram_share": Kind(_share, ("a number from 0 to 1",)),
        "private_threadpool_size": _COUNT_OR_NONE,
        "assert_cardinality": _FLAG,
        "options": either(like("a tf.data.Options", "threading", "autotune"), _NONE),
    },
    "reader.even_splits": {"split": _TEXT, "n": _COUNT, "drop_remainder": _FLAG},
    "reader.EvenSplit": {
        "split": _TEXT,
        "index": whole(0),
        "number": _COUNT,
        "drop_remainder": _FLAG,
    },
    "reader.Dataset": {
        **_WHAT,
        "as_supervised": _FLAG,
        "decode": _FLAG,
        "transform": either(_FUNCTION, _NONE),
        "verify_crc": _FLAG,
    },
    "Dataset.batches": {
        "batch_size": _COUNT,
        "shuffle": either(_FLAG, _NONE),
        "seed": either(_SEED, _NONE),
        "epochs": _COUNT_OR_NONE,
        "drop_remainder": _FLAG,
        "as_supervised": _FLAG,
        "num_shards": _COUNT,
        "shard_index": whole(0),
        "on_error": _ON_ERROR,
        "num_threads": _COUNT_OR_NONE,
        "prefetch": either(whole(0), _NONE),
    },
    "reader.iterate.load_state_dict": _STATE,
    "Dataset.batches.load_state_dict": _STATE,
}
"""Call or class → each of its arguments → what that may be."""


def checking(
    where: str,
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Return a decorator: the function gets its arguments as `ARGUMENTS[where]` has them.

    It raises DatasetError where it is called with others, before anything is done.
    """

    def decorated(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def checked_call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            try:
                given = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise _refused(where, str(error)) from None
            for name, value in given.arguments.items():
                kind = signature.parameters[name].kind
                if kind is inspect.Parameter.VAR_KEYWORD:
                    given.arguments[name] = checked(where, value)
                elif name in ARGUMENTS[where]:
                    given.arguments[name] = _taken(where, name, value)
            return function(*given.args, **given.kwargs)

        return checked_call

    return decorated


def checked(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as they are used.

    Raises:
        DatasetError: one is not what it may be, or there is none of that name.

    """
    return {name: _taken(where, name, value) for name, value in given.items()}


def checked_state(where: str, state: object) -> dict[str, Any]:
    """Return what `load_state_dict` is given, all of it and of the right kinds.

    Raises:
        DatasetError: it is not what `state_dict()` returns.

    """
    if not isinstance(state, Mapping):
        raise DatasetError(where, f"state={_shown(state)}", "use what state_dict() has returned")
    missing = [name for name in ARGUMENTS[where] if name not in state]
    if missing:
        raise DatasetError(
            where,
            f"the state has no {', '.join(map(repr, missing))}",
            "use what state_dict() has returned",
        )
    return checked(where, {name: state[name] for name in ARGUMENTS[where]})


def check_position(where: str, **given: int) -> None:
    """Compare the index of one thing of several with their number, as they are given by name.

    Raises:
        DatasetError: there is no such one.

    """
    (name, index), (of, number) = given.items()
    if not 0 <= index < number:
        raise DatasetError(where, f"{name}={index} of {of}={number}", f"count from 0 to {of} - 1")


def _taken(where: str, name: str, value: Any) -> Any:
    kind = ARGUMENTS[where].get(name)
    if kind is None:
        raise _refused(where, f"got an unexpected keyword argument {name!r}")
    try:
        return kind.take(value)
    except (TypeError, ValueError):
        *others, last = kind.right
        right = f"{', '.join(others)} or {last}" if others else last
        raise DatasetError(where, f"{name}={_shown(value)}", f"use {right}") from None


def _refused(where: str, what: str) -> DatasetError:
    return DatasetError(where, what, f"it takes {', '.join(ARGUMENTS[where])}")


def _shown(value: object) -> str:
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = _MAX_SHOWN
    try:
        return short.repr(value)
    except ValueError:  # of more digits than Python writes
        return f"<{type(value).__name__}>"
