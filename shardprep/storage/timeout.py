"""How long a store may be silent: what bounds a call, and the line that says it is waited for.

A thread looks at all calls of the process; of the workers of one program, one speaks for all.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import multiprocessing
import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from shardprep.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TIMEOUT_VARIABLE = "SHARDPREP_STORE_TIMEOUT"
"""Seconds for which a store may be silent."""
DEFAULT_TIMEOUT_S = 180.0
_FIRST_S, _FIRST_RETRY_S = 10.0, 4.0
"""Before a store has answered once, a wrong address is more likely than a bad hour."""
_TRY_S = 30.0
"""Seconds of one of several tries to read: a dead connection is given up before the store is."""
_MOST_PAUSE_S = 15.0
_TOLD_AFTER_S, _TOLD_EVERY_S = 5.0, 30.0
_LOOK_EVERY_S = 0.25
_LEFT_AFTER_S = 1.5
"""Bytes that still flow come sooner, and end a call well."""
_log = logging.getLogger("shardprep.storage")


class Timeouts(NamedTuple):
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


def timeouts(*, is_known: bool, writing: bool) -> Timeouts:
    """Return the bounds of a call; `is_known` tells that the store has answered before."""
    total = timeout_s()
    if not is_known:
        return Timeouts(
            min(total, _FIRST_S), min(total, _FIRST_S), min(total / 2, _FIRST_RETRY_S), 1
        )
    # What is written must leave this machine within one try.
    num_tries = 2 if writing else max(2, int(total // _TRY_S))
    answer = total / num_tries - min(total / 20, 0.7)  # the pauses between the tries
    return Timeouts(total, answer, total - answer, min(total / 12, _MOST_PAUSE_S))


@dataclass(slots=True)
class Wait:
    """A call that is under way."""

    host: Callable[[], str]
    """Gives what people know the store by."""
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
def waiting(host: Callable[[], str], total_s: float) -> Iterator[Wait]:
    """Let a line be written now and then while a store is silent in this context."""
    wait = Wait(host, total_s, time.monotonic())
    _waits[id(wait)] = wait
    if not _awake.is_set():
        _awake.set()
        _start()
    try:
        yield wait
    finally:
        del _waits[id(wait)]


_waits: dict[int, Wait] = {}
_awake = threading.Event()
_told: dict[str, float] = {}
"""When the last line was written here or left to a sibling, by host."""
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
    silent = [wait for wait in waits if now - wait.since_s >= _TOLD_AFTER_S]
    if not silent:
        _fall_silent()
    for wait in sorted(silent, key=lambda one: one.since_s):
        host = wait.host()
        if now - _told.get(host, -math.inf) < _TOLD_EVERY_S:
            continue
        _told[host] = now
        if _may_speak(host):
            _log.warning(
                "waiting for the store at %s, no answer for %.0f s; gives up after %.0f s",
                host, math.floor(now - wait.since_s), wait.total_s,
            )  # fmt: skip


_voices: dict[str, socket.socket] = {}
"""Names of this machine that this process holds while it speaks, by host."""


def _may_speak(host: str) -> bool:
    """Tell whether no sibling speaks: sixty workers have one thing to say."""
    parent = multiprocessing.parent_process()
    if parent is None or host in _voices or not hasattr(socket, "AF_UNIX"):
        return True
    voice = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        voice.bind(f"\0shardprep-{parent.pid}-{host}".encode()[:100])  # gone with the process
    except OSError as error:
        voice.close()
        return error.errno != errno.EADDRINUSE  # systems other than Linux have no such names
    _voices[host] = voice
    return True


def _fall_silent() -> None:
    while _voices:
        _voices.popitem()[1].close()
