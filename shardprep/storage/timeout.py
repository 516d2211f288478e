"""Time limits for a silent store, and the warning while a call waits.

One thread watches all calls of a process. The workers of a program would all log the same warning,
so the first one reserves it: it binds a socket whose name contains the parent process and the host.
Such names need no file, and the system frees them when the process ends.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from shardprep.errors import StorageError

TIMEOUT_VARIABLE = "SHARDPREP_STORE_TIMEOUT"
"""Environment variable for the time limit in seconds."""
DEFAULT_TIMEOUT_S = 180.0
_FIRST_S, _FIRST_RETRY_S = 10.0, 4.0
"""Limits until a store has answered once: until then, a wrong address is more likely than an
outage."""
_TRY_S = 30.0
"""Seconds of one try to read. A dead connection is given up earlier than the store."""
_MOST_PAUSE_S = 15.0
_TOLD_AFTER_S, _TOLD_EVERY_S = 5.0, 30.0
_LOOK_EVERY_S = 0.25
_LEFT_AFTER_S = 1.5
"""Wait before a call is abandoned: bytes that still arrive within this time end it normally."""
_log = logging.getLogger("shardprep.storage")


class Timeouts(NamedTuple):
    """Time limits of a call, in seconds."""

    total_s: float
    """Limit without an answer, for all tries together."""
    answer_s: float
    """Limit of one try."""
    retry_s: float
    """No new try starts after this time."""
    pause_s: float
    """Longest pause between two tries."""


def timeout_s() -> float:
    """Return the time limit for a silent store: SHARDPREP_STORE_TIMEOUT, or 180 s.

    Raises:
        StorageError: the variable is not a number of at least 1.

    """
    value = os.environ.get(TIMEOUT_VARIABLE)
    if not value:
        return DEFAULT_TIMEOUT_S
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 1 <= seconds < math.inf:
        raise StorageError(
            TIMEOUT_VARIABLE, f"{value!r} is not a number of at least 1", "give seconds, such as 60"
        )
    return seconds


def timeouts(*, is_known: bool, writing: bool) -> Timeouts:
    """Return the limits of a call. `is_known`: the store has answered before."""
    total = timeout_s()
    if not is_known:
        return Timeouts(
            min(total, _FIRST_S), min(total, _FIRST_S), min(total / 2, _FIRST_RETRY_S), 1
        )
    # Written data must leave this machine within one try.
    num_tries = 2 if writing else max(2, int(total // _TRY_S))
    answer = total / num_tries - min(total / 20, 0.7)  # the pauses between the tries
    return Timeouts(total, answer, total - answer, min(total / 12, _MOST_PAUSE_S))


@dataclass(slots=True)
class Wait:
    """A running call."""

    host: Callable[[], str]
    """Returns the name of the store for messages."""
    total_s: float
    since_s: float

    def moved(self) -> None:
        """Restart the time limit, because data was received or sent."""
        self.since_s = time.monotonic()

    def is_in_vain(self, is_over: Callable[[], bool], *, is_bounded: bool) -> bool:
        """Return True to abandon the call: `is_over`, or the store is silent for too long."""
        silent_s = time.monotonic() - self.since_s
        is_late = is_bounded and silent_s > self.total_s
        return is_late or (silent_s > _LEFT_AFTER_S and is_over())


@contextlib.contextmanager
def waiting(host: Callable[[], str], total_s: float) -> Iterator[Wait]:
    """Log a warning from time to time while a store is silent in this context."""
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
"""Host → time of the last warning, by this process or another worker."""
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
    """Log a warning for each silent host, unless one was logged recently."""
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
"""Host → socket that reserves the warnings about the host for this process."""


def _may_speak(host: str) -> bool:
    """Return True in one worker per host, so that the warning is logged once."""
    parent = multiprocessing.parent_process()
    if parent is None or host in _voices or not hasattr(socket, "AF_UNIX"):
        return True
    voice = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        voice.bind(f"\0shardprep-{parent.pid}-{host}".encode()[:100])  # free when the process ends
    except OSError as error:
        voice.close()
        return error.errno != errno.EADDRINUSE  # only Linux has such names
    _voices[host] = voice
    return True


def _fall_silent() -> None:
    while _voices:
        _voices.popitem()[1].close()
