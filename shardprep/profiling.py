"""Measure the seconds of each stage of a build, on request.

Decorate a function with `@stage("decode")` to measure it. Stages must not be nested: otherwise,
seconds would count twice. Only one thread of a process may run stages.
"""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_seconds: defaultdict[str, float] = defaultdict(float)
_state = {"is_on": False}


def stage(name: str) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Return a decorator that adds a function's run time to the stage `name` while `is_on()`."""

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        @functools.wraps(function)
        def counted(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            if not _state["is_on"]:
                return function(*args, **kwargs)
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                _seconds[name] += time.perf_counter() - start

        return counted

    return decorate


def start() -> None:
    """Start measuring in this process."""
    _state["is_on"] = True


def stop() -> dict[str, float]:
    """Stop measuring in this process, and return the seconds of each stage."""
    _state["is_on"] = False
    return taken()


def is_on() -> bool:
    """Return True if this process measures stages."""
    return _state["is_on"]


def add(seconds: Mapping[str, float]) -> None:
    """Add the seconds of each stage that another process measured."""
    for name, value in seconds.items():
        _seconds[name] += value


def taken() -> dict[str, float]:
    """Return the seconds of each stage since the last call, and set them to zero."""
    seconds = dict(_seconds)
    _seconds.clear()
    return seconds
