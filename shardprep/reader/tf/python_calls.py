"""Python in TensorFlow: functions without AutoGraph, and calls by the threads of tf.data.

At exit, the program waits up to 20 s for these calls. A thread that needs the interpreter after its
end never returns, and TensorFlow waits for that thread forever when it deletes an iterator.

TensorFlow keeps each Python function of a graph until the program ends, and so the open shards and
images that the function uses. So TensorFlow gets a weak reference. The function is held by the
memory of a tensor, the first element of the pipeline. That tensor is released with the last dataset
and iterator of the pipeline.
"""

from __future__ import annotations

import atexit
import contextlib
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from shardprep import errors
from shardprep.errors import ShardprepError

_Function = TypeVar("_Function", bound="Callable[..., Any]")
_QUIET_S = 0.2
"""Seconds without a call after which the buffers for reading ahead count as full."""
_MOST_S = 20.0
"""Maximum seconds that the program waits at its end."""

_lock = threading.Lock()
_calls = {"running": 0, "made": 0}


class _First(np.ndarray[Any, np.dtype[np.int64]]):
    """The first element of a pipeline, 0, which keeps the functions that the pipeline calls."""

    functions: list[Callable[..., Any]]


_first: ContextVar[_First | None] = ContextVar("first", default=None)


@contextlib.contextmanager
def one_pipeline() -> Iterator[None]:
    """Keep the Python functions that this block's pipeline calls, until the pipeline is released.

    The pipeline must begin with `first_element`. Inside a graph, functions are never released,
    because the tensor would become a part of the graph.
    """
    first = None
    if tf.executing_eagerly():
        first = np.zeros((), np.int64).view(_First)
        first.functions = []
    token = _first.set(first)
    try:
        yield
    finally:
        _first.reset(token)


def first_element() -> Any:
    """Return the first element of the pipeline, a tensor that holds the pipeline's functions."""
    first = _first.get()
    if first is None:
        return tf.constant(0, tf.int64)
    return tf.experimental.dlpack.from_dlpack(first.__dlpack__())


def as_written(function: _Function) -> _Function:
    """Return the function such that TensorFlow traces it and its callees without AutoGraph.

    AutoGraph would look for branches and loops to convert, and find none. That takes several times
    as long as tracing.
    """
    unconverted: _Function = tf.autograph.experimental.do_not_convert(function)
    return unconverted


def in_python(
    function: Callable[..., Any], inputs: Sequence[Any], specs: Sequence[Any]
) -> list[Any]:
    """Return the results of a Python function of arrays, as tensors with `specs` in a graph."""
    held = _held(function)

    def counted(*args: Any) -> Any:
        with _lock:
            _calls["running"] += 1
            _calls["made"] += 1
        try:
            return held()(*args)
        except ShardprepError as error:  # TensorFlow copies the traceback into its own error
            raise error.with_traceback(None) from None
        finally:
            with _lock:
                _calls["running"] -= 1

    dtypes = [spec.dtype for spec in specs]
    results = tf.numpy_function(counted, inputs, dtypes, stateful=False)
    results = results if isinstance(results, (list, tuple)) else [results]  # if eager
    return [tf.ensure_shape(one, spec.shape) for one, spec in zip(results, specs, strict=True)]


def own_error(error: tf.errors.OpError) -> Exception:
    """Return the error of shardprep that a Python call of the pipeline raised, else `error`."""
    own = re.findall(r"^shardprep\.errors\.(\w+): (.+)$", error.message, re.MULTILINE)
    named: Exception = getattr(errors, own[-1][0])("", own[-1][1]) if own else error
    return named


def _held(function: Callable[..., Any]) -> Callable[[], Callable[..., Any]]:
    """Return a getter that holds a function by a weak reference: `one_pipeline` keeps it alive.

    The getter raises ReferenceError after that. Outside of `one_pipeline`, it holds the function.
    """
    first = _first.get()
    if first is None:
        return lambda: function
    first.functions.append(function)
    reference = weakref.ref(function)

    def held() -> Callable[..., Any]:
        found = reference()
        if found is None:
            raise ReferenceError("the dataset from reader.load was deleted: keep a reference to it")
        return found

    return held


# Functions of `atexit` run in reverse order, and weakref registers its own at the first finalizer.
# With a finalizer here, the finalizers that end worker processes run after `_wait`.
weakref.finalize(_First, int)


@atexit.register
def _wait() -> None:
    """Wait at exit until the buffers for reading ahead are full, at most `_MOST_S` seconds."""
    until = time.monotonic() + _MOST_S
    made = -1 if _calls["made"] else 0
    while (_calls["running"] or _calls["made"] != made) and time.monotonic() < until:
        made = _calls["made"]
        time.sleep(_QUIET_S)
