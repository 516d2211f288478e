"""Stores of object storage: every call that leaves this machine for one is made here.

Retries with back-off are the client's own (obstore): 429, 5xx and connections that break, for some
seconds until a store has answered once, for as long as `timeouts` says after that. What is left of
errors becomes a `StorageError` of one line, in which no credentials stand.
"""

from __future__ import annotations

import functools
import os
import queue
import threading
import time
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from shardprep.errors import StorageError
from shardprep.storage.store_error import (
    NoAnswerError,
    changed,
    endpoint_of,
    explained,
    no_answer,
    server_of,
)
from shardprep.storage.timeout import Timeouts, timeouts, waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardprep.storage.timeout import Wait
    from shardprep.storage.url import ObjectUrl

_CONNECT_S = 3
_LOOK_EVERY_S = 0.25
_PAUSES_S = (0.1, 0.4, 1.6)
"""Before each further try of `asked_again`, in seconds."""
_FIRST_PAUSE_S = 0.1
"""Pause before the client's own second try, in seconds; each later one may be twice as long."""
_MOST_CLIENTS = 16
"""Clients that a process keeps, for buckets and time-outs; each has connections of its own."""
_answered: set[str] = set()
"""Buckets that have answered this process."""


def has_answered(url: ObjectUrl) -> bool:
    """Tell whether the store of a bucket has answered this process."""
    return url.root in _answered


def asked(
    url: ObjectUrl,
    call: Callable[[Any, Wait], Any],
    *,
    writing: bool = False,
    is_over: Callable[[], bool] | None = None,
) -> Any:
    """Return what a call of the store's client gives, watched while it lasts.

    The main thread can be interrupted meanwhile; with `is_over` it ends for that in every thread.

    Raises:
        FileNotFoundError: there is no such object, or no such bucket.
        ChangedError: it is not what the call names as its condition.
        StorageError: the store does not answer, or refuses.

    """
    exceptions = _obstore().exceptions
    bounds = timeouts(is_known=has_answered(url), writing=writing)
    try:
        store = _store(url, bounds)
        with waiting(partial(server_of, url), bounds.total_s) as wait:
            if is_over is None and threading.current_thread() is not threading.main_thread():
                found = call(store, wait)
            else:
                # What is written takes several requests, each of which the client bounds.
                is_left = is_over and partial(wait.is_in_vain, is_over, is_bounded=not writing)
                found = _apart(partial(call, store, wait), is_left)
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
        # `from None`: a traceback that somebody prints must not show what was asked, and with what
        raise explained(error, url, writing=writing) from None
    _answered.add(url.root)
    return found


def asked_again(
    url: ObjectUrl,
    call: Callable[[Any, Wait], Any],
    *,
    writing: bool = False,
    is_over: Callable[[], bool] | None = None,
) -> Any:
    """Return what `asked` does, of a call that may be made twice.

    The client tries requests again, but none of which it has part of an answer, and gives some up
    early where this process stood still meanwhile.
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
    """Return this process's store for a bucket."""
    _used_by.add(os.getpid())
    if len(_used_by) > 1:  # obstore would wait for ever for threads that are not there
        raise StorageError(
            str(url),
            "cannot be reached from a process that was forked after its parent had reached it",
            "start processes anew: multiprocessing_context='forkserver' of a DataLoader, "
            "multiprocessing.get_context('forkserver')",
        )
    return _store_of(url.root, endpoint_of(url.scheme), bounds)


_used_by: set[int] = set()
"""This process, and those it was forked from."""


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
    """The call was left behind: its answer is no longer wanted, or has not come in time."""


class _Helper:
    """A thread that makes one call after the other for whoever may leave it behind.

    A call of a store's client knows nothing of signals, nor of the end of the program.
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
            del call  # with all that it holds


_idle: list[_Helper] = []


def _apart(call: Callable[[], Any], is_left: Callable[[], bool] | None) -> Any:
    """Return what a call gives that is made in a thread of its own.

    A signal's handler that raises, and `is_left`, asked four times a second, leave it behind.
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
