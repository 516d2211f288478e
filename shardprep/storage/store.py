"""All requests to object storage: the client, its time limits, and its errors.

The client (obstore) repeats requests with back-off after 429, 5xx and broken connections. Its time
limit (`timeouts`) is short until the store has answered once. One thread watches all calls of a
process, and logs a warning while a store is silent.

Except for missing objects, errors become a one-line `StorageError`. Its parts are our own words, an
HTTP status, the store's error code and the host: never credentials, signed URLs or response bodies.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from shardprep.errors import StorageError
from shardprep.storage.url import ObjectUrl

TIMEOUT_VARIABLE = "SHARDPREP_STORE_TIMEOUT"
DEFAULT_TIMEOUT_S = 180.0
_FIRST_S, _FIRST_RETRY_S = 10.0, 4.0
"""Limits in seconds until a store has answered once: the address may be wrong."""
_TRY_S = 30.0
"""Seconds of one try to read. Several tries fit into the time limit for a silent store."""
_MOST_PAUSE_S = 15.0
_TOLD_AFTER_S, _TOLD_EVERY_S = 5.0, 30.0
_LOOK_EVERY_S = 0.25
_LEFT_AFTER_S = 1.5
"""Seconds of silence before `is_over` may end a call. A call with arriving bytes continues."""
_log = logging.getLogger("shardprep.storage")
_CONNECT_S = 3
_PAUSES_S = (0.1, 0.4, 1.6)
_FIRST_PAUSE_S = 0.1
_MOST_CLIENTS = 16

ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""Scheme → environment variables for the address of a server other than the provider's."""
_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (profiles are not read: aws configure "
    "export-credentials --format env), or give the machine a role",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or give the machine a service account",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or give the machine an "
    "identity",
}
_AGAIN = "try again when the store answers"
_OPEN_AGAIN = "open the dataset again, or run the command again"
_STATUS = re.compile(r"status code: (\d{3}(?: [A-Z][A-Za-z]*)*)")
_CODE = re.compile(r"<Code>([A-Za-z]{1,40})</Code>")
_NO_CREDENTIALS = ("169.254.", "metadata", "token request", "credential", "account must be")
_NO_ANSWER = ("kind: Connect", "kind: Timeout", "kind: Request", "kind: Interrupted")


class NoAnswerError(StorageError):
    """The store did not answer. The request may have been executed."""


class ChangedError(StorageError):
    """An object or a dataset folder was replaced or removed since it was found."""


def changed(where: str) -> ChangedError:
    """Return the `ChangedError` for the path or address of a file."""
    return ChangedError(where, "has changed since it was found", _OPEN_AGAIN)


def _endpoint_of(scheme: str) -> str:
    for name in ENDPOINTS[scheme]:
        if endpoint := os.environ.get(name):
            if not _is_server(endpoint):
                way = "give http(s)://HOST[:PORT], without credentials"
                raise StorageError(name, "is not the address of a server", way)
            return endpoint
    return ""


def _is_server(address: str) -> bool:
    try:
        parts = urlsplit(address)
        is_web = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return False
    return bool(is_web) and not (parts.username or parts.query or parts.fragment)


def _explained(error: BaseException, url: ObjectUrl, *, writing: bool) -> StorageError:
    text = str(error)
    verb = "written" if writing else "read"
    match = _STATUS.search(text)
    number = match[1][:3] if match else ""
    status = f"HTTP {match[1]}" if match else ""
    if code := _CODE.search(text):
        status = f"{status} {code[1]}".strip()
    # Without credentials, the client asks the metadata host of the cloud machine.
    first = text.partition("\n")[0].partition("status code")[0].lower()
    if any(mark in first for mark in _NO_CREDENTIALS):
        what = f"cannot be {verb}: credentials are missing"
        return StorageError(str(url), what, _CREDENTIALS[url.scheme])
    if number == "404":
        return no_bucket(url, writing=writing)
    if number in ("401", "403"):
        what = f"cannot be {verb} with these credentials ({status})"
        return StorageError(str(url), what, "ask for the permission, or use other credentials")
    if "redirect" in text.lower():
        what = f"cannot be {verb}: the bucket is in another region"
        return StorageError(str(url), what, "set AWS_REGION to the region of the bucket")
    if not status and any(mark in text for mark in _NO_ANSWER):
        return _no_answer(url, writing=writing)
    what = f"cannot be {verb} ({status or 'the store reports an error'})"
    hint = "try again later, or check the address and the store"
    if number == "416":
        what, hint = "has become shorter since it was found", _OPEN_AGAIN
    return StorageError(str(url), what, hint)


def no_bucket(url: ObjectUrl, *, writing: bool) -> StorageError:
    """Return the error for a missing bucket."""
    way = "create it first" if writing else "check the address"
    return StorageError(url.root, "the bucket does not exist", way)


def _no_answer(url: ObjectUrl, *, writing: bool) -> NoAnswerError:
    verb = "written" if writing else "read"
    return NoAnswerError(str(url), f"cannot be {verb} (no answer from {_server_of(url)})", _AGAIN)


def _server_of(url: ObjectUrl) -> str:
    return urlsplit(_endpoint_of(url.scheme)).netloc or url.root


class Timeouts(NamedTuple):
    """Time limits of a call, in seconds."""

    total_s: float
    """Limit for a silent store, all tries together."""
    answer_s: float
    """Limit for one try."""
    retry_s: float
    """No new try starts after this time."""
    pause_s: float
    """Longest pause between two tries."""


def timeout_s() -> float:
    """Return the time limit for a silent store in seconds, 180 by default; StorageError below 1."""
    value = os.environ.get(TIMEOUT_VARIABLE) or DEFAULT_TIMEOUT_S
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
    """Return the time limits of a call. `is_known`: the store has answered before."""
    total = timeout_s()
    if not is_known:
        first = min(total, _FIRST_S)
        return Timeouts(first, first, min(total / 2, _FIRST_RETRY_S), 1)
    # Written data must leave this machine within one try.
    num_tries = 2 if writing else max(2, int(total // _TRY_S))
    answer = total / num_tries - min(total / 20, 0.7)  # leaves time for the pauses
    return Timeouts(total, answer, total - answer, min(total / 12, _MOST_PAUSE_S))


@dataclass(slots=True)
class Wait:
    """A call that waits for the store."""

    host: Callable[[], str]
    """Returns the host of the store for messages. It is called only when needed."""
    total_s: float
    since_s: float

    def moved(self) -> None:
        self.since_s = time.monotonic()

    def is_in_vain(self, is_over: Callable[[], bool], *, is_bounded: bool) -> bool:
        """Return True after 1.5 s of silence if `is_over()`, or after `total_s` if `is_bounded`."""
        silent_s = time.monotonic() - self.since_s
        is_late = is_bounded and silent_s > self.total_s
        return is_late or (silent_s > _LEFT_AFTER_S and is_over())


_waits: dict[int, Wait] = {}
_awake = threading.Event()
_told: dict[str, float] = {}
_starting = threading.Lock()
_watchers: list[threading.Thread] = []


@contextlib.contextmanager
def _waiting(host: Callable[[], str], total_s: float) -> Iterator[Wait]:
    wait = Wait(host, total_s, time.monotonic())
    _waits[id(wait)] = wait
    if not _awake.is_set():
        _awake.set()
        with _starting:
            if not _watchers:
                watcher = threading.Thread(target=_watch, name="shardprep-waits", daemon=True)
                _watchers.append(watcher)
                watcher.start()
    try:
        yield wait
    finally:
        del _waits[id(wait)]


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
    silent = [wait for wait in waits if now - wait.since_s >= _TOLD_AFTER_S]
    for wait in sorted(silent, key=lambda one: one.since_s):
        host = wait.host()
        if now - _told.get(host, -math.inf) < _TOLD_EVERY_S:
            continue
        _told[host] = now
        _log.warning(
            "waiting for the store at %s, no answer for %.0f s; gives up after %.0f s",
            host, math.floor(now - wait.since_s), wait.total_s,
        )  # fmt: skip


_answered: set[str] = set()


def has_answered(url: ObjectUrl) -> bool:
    """Return True if the store of a bucket has answered a call of this process."""
    return url.root in _answered


def asked(
    url: ObjectUrl,
    call: Callable[[Any, Wait], Any],
    *,
    writing: bool = False,
    is_over: Callable[[], bool] | None = None,
) -> Any:
    """Return the result of a client call, which has a time limit.

    In the main thread, signals interrupt the call. In any thread, it stops when `is_over` returns
    True. FileNotFoundError: the object or bucket does not exist. `ChangedError`: a condition of the
    call (absent, this ETag) is false. `NoAnswerError`: no answer, or stopped by `is_over`.
    """
    exceptions = _obstore().exceptions
    bounds = timeouts(is_known=has_answered(url), writing=writing)
    try:
        store = _store(url, bounds)
        with _waiting(partial(_server_of, url), bounds.total_s) as wait:
            if is_over is None and threading.current_thread() is not threading.main_thread():
                result = call(store, wait)
            else:
                # A write takes several requests; the client limits each of them.
                is_left = is_over and partial(wait.is_in_vain, is_over, is_bounded=not writing)
                result = _apart(partial(call, store, wait), is_left)
    except StorageError:
        raise
    except FileNotFoundError:
        _answered.add(url.root)
        raise
    except _LeftError:
        raise _no_answer(url, writing=writing) from None
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
        _answered.add(url.root)
        raise changed(str(url)) from None
    except (exceptions.BaseError, OSError, ValueError) as error:
        # `from None`: a printed traceback must not show the request and its credentials
        raise _explained(error, url, writing=writing) from None
    _answered.add(url.root)
    return result


def asked_again(
    url: ObjectUrl,
    call: Callable[[Any, Wait], Any],
    *,
    writing: bool = False,
    is_over: Callable[[], bool] | None = None,
) -> Any:
    """Return the result of `asked`; repeat it up to three times if the store does not answer."""
    # The client itself does not repeat after a partial answer, or if this process was paused.
    begun_s = time.monotonic()
    for pause_s in _PAUSES_S:
        try:
            return asked(url, call, writing=writing, is_over=is_over)
        except NoAnswerError:
            bounds = timeouts(is_known=has_answered(url), writing=writing)
            is_late = time.monotonic() - begun_s + pause_s > bounds.retry_s
            if is_late or (is_over is not None and is_over()):
                raise
        time.sleep(pause_s)
    return asked(url, call, writing=writing, is_over=is_over)


def _obstore() -> Any:
    try:
        import obstore
    except ModuleNotFoundError as error:
        raise StorageError(
            "shardprep", "object storage needs obstore", "pip install 'shardprep[cloud]'"
        ) from error
    import obstore.exceptions
    import obstore.store

    return obstore


def _store(url: ObjectUrl, bounds: Timeouts) -> Any:
    _used_by.add(os.getpid())
    if len(_used_by) > 1:  # obstore would wait forever for threads that do not exist here
        raise StorageError(
            str(url),
            "cannot be used in a process that was forked after its parent used it",
            "do not fork: use DataLoader(…, multiprocessing_context='forkserver') or "
            "multiprocessing.get_context('forkserver')",
        )
    return _store_of(url.root, _endpoint_of(url.scheme), bounds)


_used_by: set[int] = set()
"""Ids of the processes that used a store: this one, and its ancestors if it was forked."""


@functools.lru_cache(_MOST_CLIENTS)
def _store_of(root: str, endpoint: str, bounds: Timeouts) -> Any:
    client = {
        "connect_timeout": timedelta(seconds=min(_CONNECT_S, bounds.answer_s)),
        "read_timeout": timedelta(seconds=bounds.answer_s),
        "timeout": timedelta(minutes=10),
        "allow_http": endpoint.startswith("http://"),
    }
    retry = {
        "max_retries": 1000,
        "retry_timeout": timedelta(seconds=bounds.retry_s),
        "backoff": {
            "init_backoff": timedelta(seconds=_FIRST_PAUSE_S),
            "max_backoff": timedelta(seconds=bounds.pause_s),
            "base": 2,
        },
    }
    return _obstore().store.from_url(root, client_options=client, retry_config=retry)


class _LeftError(Exception):
    """The call was abandoned: its answer is not needed any more, or is too late."""


_Calls = queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]
_idle: list[_Calls] = []


def _apart(call: Callable[[], Any], is_left: Callable[[], bool] | None) -> Any:
    """Return the result of a call that runs in another thread.

    The client reacts neither to signals nor to the end of the program. So the call is abandoned if
    a signal handler raises, or if `is_left`, which is called four times a second, returns True.
    """
    outcome = Future[Any]()
    try:
        calls = _idle.pop()
    except IndexError:
        calls = queue.SimpleQueue()
        threading.Thread(target=_work, args=(calls,), name="shardprep-store", daemon=True).start()
    calls.put((call, outcome))
    try:
        while not futures.wait([outcome], _LOOK_EVERY_S if is_left else None).done:
            if is_left and is_left():
                raise _LeftError
    except BaseException:
        calls.put(None)
        raise
    _idle.append(calls)
    return outcome.result()


def _work(calls: _Calls) -> None:
    while order := calls.get():
        call, outcome = order
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)
        del order, call, outcome  # releases everything that they reference
