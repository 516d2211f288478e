"""How long a store may be silent: what bounds a call, and the line that says it is waited for.

A call of the store's client knows nothing of signals and of the end of the program. So what the
main thread asks for, and what reads a whole object, is asked for in a thread of its own, which is
left behind when nobody wants its answer any more.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from shardprep.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

TIMEOUT_VARIABLE = "SHARDPREP_STORE_TIMEOUT"
"""Seconds for which a store may be silent."""
DEFAULT_TIMEOUT_S = 180.0
_FIRST_S, _FIRST_RETRY_S = 10.0, 4.0
"""Before a store has answered once, a wrong address is more likely than a bad hour."""
_TRY_S = 30.0
"""Of one of several tries to read: a connection that has died is given up before the store is."""
_MOST_PAUSE_S = 15.0
_TOLD_AFTER_S, _TOLD_EVERY_S = 5.0, 30.0
_LOOK_EVERY_S = 0.25
_LEFT_AFTER_S = 1.5
"""Bytes that still flow come sooner, and end a call well."""
_log = logging.getLogger("shardprep.storage")


class Patience(NamedTuple):
    """For how long a store may fail or be silent."""

    total_s: float
    """Without an answer, in all tries together."""
    answer_s: float
    """In one try."""
    retry_s: float
    """No try begins after that."""
    pause_s: float
    """Between two tries, at most."""


def timeout_s() -> float:
    """Return how long a store may be silent: what SHARDPREP_STORE_TIMEOUT says, else 180 s.

    Raises:
        StorageError: it says no number of seconds, 1 or more.

    """
    said = os.environ.get(TIMEOUT_VARIABLE)
    if not said:
        return DEFAULT_TIMEOUT_S
    try:
        seconds = float(said)
    except ValueError:
        seconds = math.nan
    if not 1 <= seconds < math.inf:
        raise StorageError(
            TIMEOUT_VARIABLE, f"{said!r} is no number of seconds, 1 or more", "use one such as 60"
        )
    return seconds


def patience(*, is_known: bool, writing: bool) -> Patience:
    """Return the bounds of a call; `is_known` tells that the store has answered before."""
    total = timeout_s()
    if not is_known:
        return Patience(
            min(total, _FIRST_S), min(total, _FIRST_S), min(total / 2, _FIRST_RETRY_S), 1
        )
    # What is written must leave this machine within one try.
    num_tries = 2 if writing else max(2, int(total // _TRY_S))
    answer = total / num_tries - min(total / 20, 0.7)  # the pauses between the tries
    return Patience(total, answer, total - answer, min(total / 12, _MOST_PAUSE_S))


@dataclass(slots=True)
class Wait:
    """A call that is under way."""

    host: str
    total_s: float
    since_s: float

    def moved(self) -> None:
        """Count from now on: something has come, or gone."""
        self.since_s = time.monotonic()

    def is_in_vain(self, is_over: Callable[[], bool], *, is_bounded: bool) -> bool:
        """Tell whether to go on without the answer: it `is_over`, or the store is too silent."""
        silent_s = time.monotonic() - self.since_s
        is_late = is_bounded and silent_s > self.total_s
        return is_late or (silent_s > _LEFT_AFTER_S and is_over())


@contextlib.contextmanager
def waiting(host: str, total_s: float) -> Iterator[Wait]:
    """Let a line be written now and then while a store is silent in this context."""
    wait = Wait(host, total_s, time.monotonic())
    key = next(_numbers)
    _waits[key] = wait
    if not _awake.is_set():
        _awake.set()
        _start()
    try:
        yield wait
    finally:
        del _waits[key]


_numbers = itertools.count()
_waits: dict[int, Wait] = {}
_awake = threading.Event()
_told: dict[str, float] = {}
"""When the last line was written, by host."""
_starting = threading.Lock()
_watchers: list[threading.Thread] = []


def _start() -> None:
    with _starting:
        if not _watchers:
            _watchers.append(threading.Thread(target=_watch, name="shardprep-waits", daemon=True))
            _watchers[0].start()


def _watch() -> None:
    while True:
        _awake.wait()
        time.sleep(_LOOK_EVERY_S)
        _awake.clear()
        waits = list(_waits.values())
        if waits:
            _awake.set()
            _tell(waits, time.monotonic())


def _tell(waits: list[Wait], now: float) -> None:
    """Write a line for each host that has been silent, unless one was written lately."""
    for wait in sorted(waits, key=lambda one: one.since_s):
        silent_s = now - wait.since_s
        told_s = now - _told.get(wait.host, -math.inf)
        if silent_s >= _TOLD_AFTER_S and told_s >= _TOLD_EVERY_S:
            _told[wait.host] = now
            _log.warning(
                "waiting for the store at %s, no answer for %.0f s; gives up after %.0f s",
                wait.host, math.floor(silent_s), wait.total_s,
            )  # fmt: skip


class LeftError(Exception):
    """Nobody wants the answer any more, or it has not come in time."""


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
