"""Python inside of TensorFlow: functions without AutoGraph, and calls by the threads of tf.data.

All calls end before the interpreter ends. A thread that needs the interpreter while it ends never
returns, and TensorFlow waits for that thread forever when it deletes an iterator.

TensorFlow keeps a function that a graph calls until the program ends, and with it open shards and
images in memory. So TensorFlow gets a weak reference. The function belongs to the memory of a
tensor, the first element of the pipeline, which is released with the last dataset and iterator of
the pipeline.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

_Function = TypeVar("_Function", bound="Callable[..., Any]")
_QUIET_S = 0.2
"""Seconds without a call after which reading ahead has its buffers full."""
_MOST_S = 20.0
"""Seconds that the end of the program waits at most."""

_lock = threading.Lock()
_calls = {"running": 0, "made": 0}


class _First(np.ndarray[Any, np.dtype[np.int64]]):
    """The first element of a pipeline, 0, and the functions that the pipeline calls."""

    functions: list[Callable[..., Any]]


_first: ContextVar[_First | None] = ContextVar("first", default=None)


@contextlib.contextmanager
def one_pipeline() -> Iterator[None]:
    """Release the functions that are called in this block with the pipeline that it creates.

    The pipeline begins with `first_element`. Inside of a graph, that tensor becomes a part of the
    graph, so functions are kept.
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
    """Return the first tensor of the pipeline of this block, which shares its memory."""
    first = _first.get()
    if first is None:
        return tf.constant(0, tf.int64)
    return tf.experimental.dlpack.from_dlpack(first.__dlpack__())


def as_written(function: _Function) -> _Function:
    """Return a function that is traced, with all it calls, without AutoGraph.

    AutoGraph would read its source for branches and loops of the graph, which it does not have.
    That takes several times as long as tracing.
    """
    unconverted: _Function = tf.autograph.experimental.do_not_convert(function)
    return unconverted


def in_python(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    specs: Sequence[Any],
) -> list[Any]:
    """Return the tensors, with these specs, that a function of arrays returns; for a graph."""
    held = _held(function)

    def counted(*args: Any) -> Any:
        with _lock:
            _calls["running"] += 1
            _calls["made"] += 1
        try:
            return held()(*args)
        finally:
            with _lock:
                _calls["running"] -= 1

    dtypes = [spec.dtype for spec in specs]
    results = tf.numpy_function(counted, inputs, dtypes, stateful=False)
    results = results if isinstance(results, (list, tuple)) else [results]  # outside of a graph
    return [tf.ensure_shape(one, spec.shape) for one, spec in zip(results, specs, strict=True)]


def _held(function: Callable[..., Any]) -> Callable[[], Callable[..., Any]]:
    """Return a getter of a function, which belongs to the pipeline of this block."""
    first = _first.get()
    if first is None:
        return lambda: function
    first.functions.append(function)
    reference = weakref.ref(function)

    def held() -> Callable[..., Any]:
        found = reference()
        if found is None:
            raise ReferenceError("the dataset that reader.load returned is gone: hold on to it")
        return found

    return held


@atexit.register
def _wait() -> None:
    """Wait until reading ahead has filled its buffers."""
    until = time.monotonic() + _MOST_S
    made = -1 if _calls["made"] else 0
    while (_calls["running"] or _calls["made"] != made) and time.monotonic() < until:
        made = _calls["made"]
        time.sleep(_QUIET_S)
