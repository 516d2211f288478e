"""Calls that can be left behind, each in a thread of its own.

A call of a store's client knows nothing of signals, nor of the end of the program.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_LOOK_EVERY_S = 0.25


class LeftError(Exception):
    """The call was left behind: its answer is no longer wanted, or has not come in time."""


class _Helper:
    """A thread that makes one call after the other for whoever may leave it behind."""

    def __init__(self) -> None:
        self._asked, self._done = threading.Semaphore(0), threading.Lock()
        self._done.acquire()
        self._call: Callable[[], Any]
        self._outcome: tuple[Any, BaseException | None]
        self._is_left = False
        threading.Thread(target=self._work, name="shardprep-store", daemon=True).start()

    def _work(self) -> None:
        while not self._is_left:
            self._asked.acquire()
            try:
                self._outcome = self._call(), None
            except BaseException as error:
                self._outcome = None, error
            self._done.release()

    def ask(self, call: Callable[[], Any], is_left: Callable[[], bool] | None) -> Any:
        self._call = call
        self._asked.release()
        try:
            self._await(is_left)
        except BaseException:
            self._is_left = True
            raise
        value, error = self._outcome
        del self._call, self._outcome
        _idle.append(self)
        if error is not None:
            raise error
        return value

    def _await(self, is_left: Callable[[], bool] | None) -> None:
        while not self._done.acquire(timeout=_LOOK_EVERY_S if is_left else -1):
            if is_left and is_left():
                raise LeftError


_idle: list[_Helper] = []


def apart(call: Callable[[], Any], is_left: Callable[[], bool] | None) -> Any:
    """Return what a call gives that is made in a thread of its own.

    A signal's handler that raises, and `is_left`, asked four times a second, leave it behind.

    Raises:
        LeftError: `is_left`.

    """
    try:
        helper = _idle.pop()
    except IndexError:
        helper = _Helper()
    return helper.ask(call, is_left)
