"""All requests to object storage.

The client (obstore) repeats requests with back-off after 429, 5xx and broken connections. It does
so for some seconds until the store has answered once, later for the time in `timeouts`. Remaining
errors become a one-line `StorageError` without credentials.
"""

from __future__ import annotations

import functools
import os
import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from shardprep.errors import StorageError
from shardprep.storage.store_error import (
    NoAnswerError,
    changed,
    endpoint_of,
    explained,
    no_answer,
    server_of,
)
from shardprep.storage.timeout import Timeouts, Wait, timeouts, waiting
from shardprep.storage.url import ObjectUrl

_CONNECT_S = 3
_LOOK_EVERY_S = 0.25
_PAUSES_S = (0.1, 0.4, 1.6)
"""Pauses before each further try of `asked_again`, in seconds."""
_FIRST_PAUSE_S = 0.1
"""Pause before the client's second try, in seconds; later pauses may double."""
_MOST_CLIENTS = 16
"""Number of cached clients, one for each bucket and time-out, with separate connections."""
_answered: set[str] = set()


def has_answered(url: ObjectUrl) -> bool:
    """Return True if the store of a bucket has answered this process."""
    return url.root in _answered


def asked(
    url: ObjectUrl,
    call: Callable[[Any, Wait], Any],
    *,
    writing: bool = False,
    is_over: Callable[[], bool] | None = None,
) -> Any:
    """Return the result of a call of the store's client, with a time limit.

    In the main thread the call can be interrupted. With `is_over`, it can be stopped in every
    thread.

    Raises:
        FileNotFoundError: the object or the bucket does not exist.
        ChangedError: the condition of the call does not hold.
        StorageError: the store does not answer or rejects the request.

    """
    exceptions = _obstore().exceptions
    bounds = timeouts(is_known=has_answered(url), writing=writing)
    try:
        store = _store(url, bounds)
        with waiting(partial(server_of, url), bounds.total_s) as wait:
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
        raise no_answer(url, writing=writing) from None
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
        _answered.add(url.root)
        raise changed(str(url)) from None
    except (exceptions.BaseError, OSError, ValueError) as error:
        # `from None`: a printed traceback must not show the request and its credentials
        raise explained(error, url, writing=writing) from None
    _answered.add(url.root)
    return result


def asked_again(
    url: ObjectUrl,
    call: Callable[[Any, Wait], Any],
    *,
    writing: bool = False,
    is_over: Callable[[], bool] | None = None,
) -> Any:
    """Return the result of `asked` for a call that may be repeated.

    The client itself does not repeat a request after a partial answer, and gives up early if this
    process was paused.
    """
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
            "cannot be used in a process that was forked after its parent had used it",
            "start fresh processes: multiprocessing_context='forkserver' of a DataLoader, "
            "multiprocessing.get_context('forkserver')",
        )
    return _store_of(url.root, endpoint_of(url.scheme), bounds)


_used_by: set[int] = set()
"""Ids of this process and of the processes it was forked from."""


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


class _Helper:
    """A thread that runs calls which the caller may abandon.

    A call of the store's client reacts neither to signals nor to the end of the program.
    """

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self.outcomes: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="shardprep-store", daemon=True).start()

    def _work(self) -> None:
        while call := self.calls.get():
            try:
                self.outcomes.put((call(), None))
            except BaseException as error:
                self.outcomes.put((None, error))
            del call  # releases everything that it references


_idle: list[_Helper] = []


def _apart(call: Callable[[], Any], is_left: Callable[[], bool] | None) -> Any:
    """Return the result of a call that runs in another thread.

    If a signal handler raises, or `is_left` (called four times a second) returns True, the call is
    abandoned.
    """
    try:
        helper = _idle.pop()
    except IndexError:
        helper = _Helper()
    helper.calls.put(call)
    try:
        value, error = _outcome(helper, is_left)
    except BaseException:
        helper.calls.put(None)
        raise
    _idle.append(helper)
    if error is not None:
        raise error
    return value


def _outcome(
    helper: _Helper, is_left: Callable[[], bool] | None
) -> tuple[Any, BaseException | None]:
    while True:
        try:
            return helper.outcomes.get(timeout=_LOOK_EVERY_S if is_left else None)
        except queue.Empty:
            if is_left and is_left():
                raise _LeftError from None
