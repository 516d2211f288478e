"""Python inside of TensorFlow: functions as they are written, and calls of tf.data's threads.

Calls are all over before the interpreter ends.

A thread that asks for the interpreter while it ends never returns, and TensorFlow, taking down an
iterator that somebody still holds, waits for that thread for ever.
"""

from __future__ import annotations

import atexit
import functools
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_Function = TypeVar("_Function", bound="Callable[..., Any]")
_QUIET_S = 0.2
"""Seconds without a call after which reading ahead has its buffers full."""
_MOST_S = 20.0
"""Seconds that the end of the program waits at most."""

_lock = threading.Lock()
_calls = {"running": 0, "made": 0}


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

    @functools.wraps(function)
    def counted(*args: Any) -> Any:
        with _lock:
            _calls["running"] += 1
            _calls["made"] += 1
        try:
            return function(*args)
        finally:
            with _lock:
                _calls["running"] -= 1

    call = tf.py_function if eager else functools.partial(tf.numpy_function, stateful=False)
    found = call(counted, inputs, [one.dtype for one in specs])
    found = found if isinstance(found, (list, tuple)) else [found]  # so is one outside of a graph
    return [tf.ensure_shape(one, spec.shape) for one, spec in zip(found, specs, strict=True)]


@atexit.register
def _wait() -> None:
    """Wait until reading ahead has filled its buffers, from which nobody takes any more."""
    until = time.monotonic() + _MOST_S
    made = -1 if _calls["made"] else 0
    while (_calls["running"] or _calls["made"] != made) and time.monotonic() < until:
        made = _calls["made"]
        time.sleep(_QUIET_S)
