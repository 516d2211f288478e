"""Python inside of TensorFlow: functions as they are written, and calls of tf.data's threads.

Calls are all over before the interpreter ends: a thread that asks for it while it ends never
returns, and TensorFlow, taking down an iterator that somebody still holds, waits for that thread
for ever.

What is called lives as long as the pipeline that calls it. TensorFlow keeps a function that a graph
calls until the program ends, and with it what it reads from: open shards, images in memory. So it
is given a weak reference here. The function belongs to the memory of a tensor, the first element of
the pipeline, which goes with the last dataset and iterator made of it, in whatever program.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
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
    """The first element of a pipeline, a 0, and the functions that it calls."""

    functions: list[Callable[..., Any]]


_first: ContextVar[_First | None] = ContextVar("first", default=None)


@contextlib.contextmanager
def one_pipeline() -> Iterator[None]:
    """Let the functions that become calls in this block go with the pipeline that is made in it.

    It begins with `first_element`. One that is made inside of a graph has no memory that goes with
    it, a small tensor becomes a part of the graph, so its functions stay.
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
    """Return the tensor that the pipeline of this block begins with; it is not to be copied."""
    first = _first.get()
    if first is None:
        return tf.constant(0, tf.int64)
    return tf.experimental.dlpack.from_dlpack(first.__dlpack__())


def as_written(function: _Function) -> _Function:
    """Return a function that becomes a graph, with all it calls, without AutoGraph.

    Its own branches and loops are of Python alone; AutoGraph would read its source for them, which
    takes several times as long as the graph does.
    """
    unconverted: _Function = tf.autograph.experimental.do_not_convert(function)
    return unconverted


def in_python(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    specs: Sequence[Any],
    *,
    eager: bool = False,
) -> list[Any]:
    """Return the tensors, of these specs, that a function of arrays returns; for a graph.

    An `eager` function is given tensors.
    """
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

    call = tf.py_function if eager else functools.partial(tf.numpy_function, stateful=False)
    found = call(counted, inputs, [one.dtype for one in specs])
    found = found if isinstance(found, (list, tuple)) else [found]  # so is one outside of a graph
    return [tf.ensure_shape(one, spec.shape) for one, spec in zip(found, specs, strict=True)]


def _held(function: Callable[..., Any]) -> Callable[[], Callable[..., Any]]:
    """Return what returns a function that a graph calls, and belongs to its pipeline."""
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
    """Wait until reading ahead has filled its buffers, from which nobody takes any more."""
    until = time.monotonic() + _MOST_S
    made = -1 if _calls["made"] else 0
    while (_calls["running"] or _calls["made"] != made) and time.monotonic() < until:
        made = _calls["made"]
        time.sleep(_QUIET_S)
