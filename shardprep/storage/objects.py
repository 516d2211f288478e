"""Objects by their addresses: every call that leaves this machine for object storage is here.

Retries with back-off are the client's own (obstore): 429, 5xx and connections that break, for some
seconds until a store has answered once, for as long as `patience` says after that. What is left of
errors becomes a `StorageError` of one line, in which no credentials stand.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import tempfile
import threading
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from shardprep.errors import StorageError
from shardprep.storage.apart import LeftError, apart
from shardprep.storage.errors import NoAnswerError, endpoint_of, explained, no_answer, server_of
from shardprep.storage.patience import Patience, patience, timeout_s, waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import IO, BinaryIO

    from shardprep.storage.patience import Wait
    from shardprep.storage.url import ObjectUrl

_CONNECT_S = 3
_STREAM_BYTES = 1 << 20
_PART_BYTES = 8 << 20
"""Bytes of a part of a multipart upload; a smaller object is put at once."""
_PARTS_AT_ONCE = 4
"""Parts sent at a time: with their size, the bytes that a slow line carries within one try."""
_COPY_BYTES = 5 * 10**9
"""Bytes of an object that S3 copies at once, at most."""
_CREATE_PAUSES_S = (0.2, 1, 4, 15)


_answered: set[str] = set()
"""Buckets that have answered this process."""


class ObjectFacts(NamedTuple):
    """Name, size and ETag of an object, as the store lists it."""

    name: str
    """Its key below what was asked for, "" where it was asked for itself."""
    num_bytes: int
    etag: str
    """Changes with the content; opaque."""


def get(url: ObjectUrl) -> bytes | None:
    """Return the whole object, None where there is none."""
    with _translated(url):
        try:
            return bytes(_asked(url, lambda store, _: _obstore().get(store, url.key).bytes()))
        except FileNotFoundError:
            return None


def get_range(url: ObjectUrl, start: int, num_bytes: int) -> bytes:
    """Return so many bytes from an offset on, fewer where the object ends before.

    Raises:
        FileNotFoundError: there is no such object.

    """
    if num_bytes <= 0:
        return b""
    with _translated(url):
        range_ = {"start": start, "length": num_bytes}
        return bytes(_asked(url, lambda store, _: _obstore().get_range(store, url.key, **range_)))


def get_ranges(url: ObjectUrl, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
    """Return several ranges, each asked for as it is, side by side.

    Raises:
        FileNotFoundError: there is no such object.

    """
    with _translated(url):
        ranges = {"starts": starts, "lengths": lengths, "coalesce": 0}
        found = _asked(url, lambda store, _: _obstore().get_ranges(store, url.key, **ranges))
        return [bytes(part) for part in found]


def read_part(url: ObjectUrl, etag: str, start: int, num_bytes: int) -> bytes:
    """Return so many bytes of the very object that had this ETag; they must be there.

    Raises:
        StorageError: it is gone, or another one now.

    """
    asked = {"range": (start, start + num_bytes), **_only(etag)}
    with _translated(url), _there(url):
        return bytes(
            _asked(url, lambda store, _: _obstore().get(store, url.key, options=asked).bytes())
        )


def _is_program_over() -> bool:
    return not threading.main_thread().is_alive()


def read_whole(
    url: ObjectUrl, etag: str, is_over: Callable[[], bool] = _is_program_over
) -> Iterator[bytes]:
    """Yield all bytes of the very object that had this ETag.

    Args:
        url: the object.
        etag: as it was found.
        is_over: asked again and again whether to stop, which a store that is silent does not hold
            up; by default, whether the program ends.

    Raises:
        StorageError: it is gone, or another one now, or `is_over`.

    """
    with _translated(url), _there(url):
        yield from _blocks(url, _only(etag), is_over)


def _blocks(
    url: ObjectUrl, options: dict[str, str], is_over: Callable[[], bool] = _is_program_over
) -> Iterator[bytes]:
    def opened(store: Any, _: Wait) -> Any:
        found = _obstore().get(store, url.key, options=options)
        return iter(found.stream(min_chunk_size=_STREAM_BYTES))

    stream = _asked(url, opened, is_over=is_over)
    while True:
        block = _asked(url, lambda *_: next(stream, None), is_over=is_over)
        if block is None:
            return
        yield bytes(block)


def _only(etag: str) -> dict[str, str]:
    return {"if_match": etag} if etag else {}


@contextlib.contextmanager
def _there(url: ObjectUrl) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise StorageError(
            str(url),
            "is not there any more",
            "open the dataset again if it was built anew, else `shardprep verify --repair` it",
        ) from error


def download(url: ObjectUrl, file: IO[bytes]) -> bool:
    """Write the whole object to a file; False where there is none."""
    with _translated(url):
        try:
            file.writelines(_blocks(url, {}))
        except FileNotFoundError:
            return False
    return True


def sha256(url: ObjectUrl) -> str:
    """Return the hash of an object, all of which is read for it, hex; "" where there is none."""
    digest = hashlib.sha256()
    with _translated(url):
        try:
            for block in _blocks(url, {}):
                digest.update(block)
        except FileNotFoundError:
            return ""
    return digest.hexdigest()


def put(url: ObjectUrl, content: bytes | Path) -> str:
    """Write the object, whole or not at all, in place of one that is there; return its ETag."""
    parts = {"chunk_size": _PART_BYTES, "max_concurrency": _PARTS_AT_ONCE}
    stream = io.BytesIO(content) if isinstance(content, bytes) else content.open("rb")
    with _translated(url, writing=True), stream as file:
        done = _asked(
            url,
            lambda store, wait: _obstore().put(store, url.key, _Sent(file, wait), **parts),
            writing=True,
            is_over=_is_program_over,
        )
    return done["e_tag"] or ""


class _Sent(io.BufferedIOBase):
    """A file that is being sent: each part of it that leaves shows that the store is there."""

    def __init__(self, file: BinaryIO, wait: Wait) -> None:
        self._file, self._wait = file, wait

    def read(self, num_bytes: int | None = -1, /) -> bytes:
        self._wait.moved()
        return self._file.read(-1 if num_bytes is None else num_bytes)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


def create(url: ObjectUrl, content: bytes) -> bool:
    """Write the object only where there is none; False where there is one with other content.

    The store's client does not try this again by itself: when an answer is lost, only a look at
    what is there says whether it was done.
    """
    begun_s = time.monotonic()
    for pause in (*_CREATE_PAUSES_S, None):
        try:
            with _translated(url, writing=True):
                _asked(
                    url,
                    lambda store, _: _obstore().put(store, url.key, content, mode="create"),
                    writing=True,
                )
        except _obstore().exceptions.AlreadyExistsError:
            there = get(url)
            if there is not None:
                return there == content
        except NoAnswerError:
            if _is_last(url, pause, begun_s):
                raise
        else:
            return True
        time.sleep(pause or 0)
    raise StorageError(str(url), "comes and goes", "is another build at work here? end one of them")


def replace(url: ObjectUrl, old: bytes, new: bytes) -> bool:
    """Write the object only where it still holds what it held; False where it does not.

    As with `create`, a lost answer is cleared up by a look at what is there.
    """
    exceptions = _obstore().exceptions
    begun_s = time.monotonic()
    for pause in (*_CREATE_PAUSES_S, None):
        try:
            with _translated(url):
                there, mark = _asked(url, partial(_found, url.key))
            if there != old:
                return bool(there == new)
            put_it = partial(_put_over, url.key, new, mark)
            with _translated(url, writing=True), contextlib.suppress(exceptions.PreconditionError):
                _asked(url, put_it, writing=True)
                return True
        except FileNotFoundError:
            return False
        except NoAnswerError:
            if _is_last(url, pause, begun_s):
                raise
        time.sleep(pause or 0)
    raise StorageError(str(url), "changes all the time", "is another build at work here? end one")


def _found(key: str, store: Any, _: Wait) -> tuple[bytes, dict[str, str]]:
    """Return the bytes of an object, and by what the store knows it again."""
    found = _obstore().get(store, key)
    data = bytes(found.bytes())
    return data, {name: found.meta[name] for name in ("e_tag", "version") if found.meta[name]}


def _put_over(key: str, content: bytes, mark: dict[str, str], store: Any, _: Wait) -> None:
    _obstore().put(store, key, content, mode=mark)


def _is_last(url: ObjectUrl, pause: float | None, begun_s: float) -> bool:
    """Tell whether there is no try after one without an answer, and a pause in seconds."""
    left_s = timeout_s() - (time.monotonic() - begun_s)
    return pause is None or left_s <= pause or url.root not in _answered


def copy(source: ObjectUrl, to: ObjectUrl, num_bytes: int) -> bool:
    """Make an object the same as another one of its bucket; False where there is no such object.

    The store copies by itself what it may, by the size that the object has; the rest goes through
    this machine.
    """
    if num_bytes > _COPY_BYTES:
        with tempfile.NamedTemporaryFile(prefix="shardprep-") as file:
            if not download(source, file):
                return False
            file.flush()
            put(to, Path(file.name))
            return True
    with _translated(to):
        try:
            _asked(to, lambda store, _: _obstore().copy(store, source.key, to.key), writing=True)
        except FileNotFoundError:
            return False
    return True


def head(url: ObjectUrl) -> ObjectFacts | None:
    """Return what the store says of the object, None where there is none."""
    with _translated(url):
        try:
            facts = _asked(url, lambda store, _: _obstore().head(store, url.key))
        except FileNotFoundError:
            return None
    return ObjectFacts("", facts["size"], facts["e_tag"] or "")


def listing(url: ObjectUrl) -> list[ObjectFacts]:
    """Return all objects below the key, sorted by name."""
    skip = len(url.key) + 1 if url.key else 0

    def found(store: Any, wait: Wait) -> Iterator[ObjectFacts]:
        for page in _obstore().list(store, prefix=url.key or None):
            wait.moved()
            for facts in page:
                yield ObjectFacts(facts["path"][skip:], facts["size"], facts["e_tag"] or "")

    with _bucket(url), _translated(url):
        facts: list[ObjectFacts] = _asked(url, lambda *asked: sorted(found(*asked)))
        return facts


@contextlib.contextmanager
def _bucket(url: ObjectUrl) -> Iterator[None]:
    """Say of a list that is not found what is not there."""
    try:
        yield
    except (FileNotFoundError, StorageError) as error:
        if isinstance(error, StorageError) and "HTTP 404" not in error.what:
            raise
        raise StorageError(url.root, "there is no such bucket", "check the address") from error


def delete(urls: Sequence[ObjectUrl]) -> None:
    """Remove objects of one bucket; those that are not there are no matter."""
    for url in _left(urls):
        with _translated(url, writing=True), contextlib.suppress(FileNotFoundError):
            _asked(url, partial(_delete, url.key), writing=True)


def _delete(keys: str | list[str], store: Any, _: Wait) -> None:
    _obstore().delete(store, keys)


def _left(urls: Sequence[ObjectUrl]) -> Sequence[ObjectUrl]:
    """Remove objects all at once; return what may be left.

    Some stores stop at an absent one; and the client tries the removal of one object again where
    an answer is lost, not that of many. Of a store that is silent nothing more is asked.
    """
    if not urls:
        return ()
    begun_s = time.monotonic()
    try:
        with _translated(urls[0], writing=True), contextlib.suppress(FileNotFoundError):
            _asked(urls[0], partial(_delete, [url.key for url in urls]), writing=True)
            return ()
    except NoAnswerError:
        if time.monotonic() - begun_s > timeout_s() / 4:
            raise
    return urls


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


def _asked(
    url: ObjectUrl,
    call: Callable[[Any, Wait], Any],
    *,
    writing: bool = False,
    is_over: Callable[[], bool] | None = None,
) -> Any:
    """Return what a call of the store's client gives, watched while it lasts.

    The main thread can be interrupted meanwhile; with `is_over` it ends for that in every thread.
    """
    bounds = patience(is_known=url.root in _answered, writing=writing)
    store = _store(url, bounds)
    with waiting(partial(server_of, url), bounds.total_s) as wait:
        if is_over is None and threading.current_thread() is not threading.main_thread():
            return call(store, wait)
        # What is written takes several requests, each of which the client bounds.
        is_left = is_over and partial(wait.is_in_vain, is_over, is_bounded=not writing)
        try:
            return apart(lambda: call(store, wait), is_left)
        except LeftError:
            raise no_answer(url, writing=writing) from None


def _store(url: ObjectUrl, bounds: Patience) -> Any:
    """Return this process's store for a bucket.

    Raises:
        StorageError: the process was forked from one that had a store: obstore would wait for ever
            for threads that are not there.

    """
    _used_by.add(os.getpid())
    if len(_used_by) > 1:
        raise StorageError(
            str(url),
            "cannot be reached from a process that was forked after its parent had reached it",
            "start processes anew: multiprocessing_context='forkserver' of a DataLoader, "
            "multiprocessing.get_context('forkserver')",
        )
    return _store_of(url.root, endpoint_of(url.scheme), bounds)


_used_by: set[int] = set()
"""This process, and those it was forked from."""


@functools.lru_cache
def _store_of(root: str, endpoint: str, bounds: Patience) -> Any:
    client = {
        "connect_timeout": timedelta(seconds=min(_CONNECT_S, bounds.answer_s)),
        "read_timeout": timedelta(seconds=bounds.answer_s),
        "timeout": timedelta(minutes=10),
    }
    if endpoint.startswith("http://"):
        client["allow_http"] = True  # type: ignore[assignment]
    retry = {
        "max_retries": 1000,
        "retry_timeout": timedelta(seconds=bounds.retry_s),
        "backoff": {
            "init_backoff": timedelta(milliseconds=100),
            "max_backoff": timedelta(seconds=bounds.pause_s),
            "base": 2,
        },
    }
    make: Callable[..., Any] = _obstore().store.from_url
    return make(root, client_options=client, retry_config=retry)


@contextlib.contextmanager
def _translated(url: ObjectUrl, *, writing: bool = False) -> Iterator[None]:
    """Turn what the store raises into one line, except what an answer of its own may mean."""
    exceptions = _obstore().exceptions
    try:
        yield
    except (FileNotFoundError, exceptions.AlreadyExistsError) as error:
        _answered.add(url.root)
        if writing and isinstance(error, FileNotFoundError):
            raise explained(error, url, writing=writing) from None
        raise
    except StorageError:
        raise
    except exceptions.PreconditionError:
        raise StorageError(
            str(url), "has changed since it was found", "open the dataset again"
        ) from None
    except (exceptions.BaseError, OSError, ValueError) as error:
        # `from None`: a traceback that somebody prints must not show what was asked, and with what
        raise explained(error, url, writing=writing) from None
    else:
        _answered.add(url.root)
