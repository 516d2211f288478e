"""Seconds of a build by stage, counted on request.

A stage is a function; `@stage("decode")` on it is all. Stages are not nested in one another, so
that their seconds add up. What is counted is counted for this process, in one thread.
"""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_seconds: defaultdict[str, float] = defaultdict(float)
_state = {"is_on": False}


def stage(
    name: str,
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Count the seconds of a function under a name, while counting is on."""

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
    """Count from now on."""
    _state["is_on"] = True


def stop() -> dict[str, float]:
    """Count no more; return the seconds of each stage since the start."""
    _state["is_on"] = False
    return taken()


def is_on() -> bool:
    """Tell whether this process counts."""
    return _state["is_on"]


def add(seconds: Mapping[str, float]) -> None:
    """Add what another process has counted."""
    for name, value in seconds.items():
        _seconds[name] += value


def taken() -> dict[str, float]:
    """Return the seconds of each stage since the last call, and count anew."""
    seconds = dict(_seconds)
    _seconds.clear()
    return seconds
