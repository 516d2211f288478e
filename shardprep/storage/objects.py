"""Objects by their addresses: every call that leaves this machine for object storage is here.

Retries with back-off are the client's own (obstore): 429, 5xx and connections that break, for some
seconds until a store has answered once, for minutes after that. What is left of errors becomes a
`StorageError` of one line, in which no credentials stand.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from shardprep.errors import StorageError
from shardprep.storage.faults import endpoint_of, explained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from shardprep.storage.url import ObjectUrl

_CONNECT_S = 3
_STREAM_BYTES = 1 << 20
_PART_BYTES = 8 << 20
"""Smaller objects are put at once, larger ones in parts of this size."""
_PARTS_AT_ONCE = 4
"""With their size, what a slow line must carry within `timeout`."""
_CREATE_PAUSES_S = (0.2, 1, 4, 15)


class _Patience(NamedTuple):
    """For how long a store may fail or be silent."""

    retry_s: int
    pause_s: int
    """Between two tries, at most."""
    answer_s: int


_FIRST, _LATER = _Patience(5, 1, 10), _Patience(180, 15, 120)
"""Before a store has answered once, a wrong address is more likely than a bad hour."""
_answered: set[str] = set()
"""Buckets that have answered this process."""


class ObjectFacts(NamedTuple):
    """What a store says of an object."""

    name: str
    """Its key below what was asked for, "" where it was asked for itself."""
    num_bytes: int
    etag: str
    """Changes with the content; opaque."""


def get(url: ObjectUrl) -> bytes | None:
    """Return the whole object, None where there is none."""
    with _translated(url):
        try:
            return bytes(_obstore().get(_store(url), url.key).bytes())
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
        return bytes(_obstore().get_range(_store(url), url.key, start=start, length=num_bytes))


def read_part(url: ObjectUrl, etag: str, start: int, num_bytes: int) -> bytes:
    """Return so many bytes of the very object that had this ETag; they must be there.

    Raises:
        StorageError: it is gone, or another one now.

    """
    asked = {"range": (start, start + num_bytes), **_only(etag)}
    with _translated(url), _there(url):
        return bytes(_obstore().get(_store(url), url.key, options=asked).bytes())


def read_whole(url: ObjectUrl, etag: str) -> Iterator[bytes]:
    """Yield all bytes of the very object that had this ETag. Raises as `read_part`."""
    with _translated(url), _there(url):
        found = _obstore().get(_store(url), url.key, options=_only(etag))
        for block in found.stream(min_chunk_size=_STREAM_BYTES):
            yield bytes(block)


def _only(etag: str) -> dict[str, str]:
    return {"if_match": etag} if etag else {}


@contextlib.contextmanager
def _there(url: ObjectUrl) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise StorageError(str(url), "is not there any more", "upload the dataset again") from error


def download(url: ObjectUrl, file: BinaryIO) -> bool:
    """Write the whole object to a file; False where there is none."""
    with _translated(url):
        try:
            file.writelines(_obstore().get(_store(url), url.key))
        except FileNotFoundError:
            return False
    return True


def sha256(url: ObjectUrl) -> str:
    """Return the hash of an object, all of which is read for it, hex; "" where there is none."""
    digest = hashlib.sha256()
    with _translated(url):
        try:
            for block in _obstore().get(_store(url), url.key):
                digest.update(block)
        except FileNotFoundError:
            return ""
    return digest.hexdigest()


def put(url: ObjectUrl, content: bytes | Path) -> str:
    """Write the object, whole or not at all, in place of one that is there; return its ETag."""
    with _translated(url, writing=True):
        done = _obstore().put(
            _store(url), url.key, content, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE
        )
    return done["e_tag"] or ""


def create(url: ObjectUrl, content: bytes) -> bool:
    """Write the object only where there is none; False where there is one with other content.

    The store's client does not try this again by itself: when an answer is lost, only a look at
    what is there says whether it was done.
    """
    for pause in (*_CREATE_PAUSES_S, None):
        try:
            with _translated(url, writing=True):
                _obstore().put(_store(url), url.key, content, mode="create")
        except _obstore().exceptions.AlreadyExistsError:
            there = get(url)
            if there is not None:
                return there == content
        except StorageError:
            if pause is None or url.root not in _answered:
                raise
        else:
            return True
        time.sleep(pause or 0)
    raise StorageError(str(url), "comes and goes", "is another build at work here? end one of them")


def head(url: ObjectUrl) -> ObjectFacts | None:
    """Return what the store says of the object, None where there is none."""
    with _translated(url):
        try:
            facts = _obstore().head(_store(url), url.key)
        except FileNotFoundError:
            return None
    return ObjectFacts("", facts["size"], facts["e_tag"] or "")


def listing(url: ObjectUrl) -> list[ObjectFacts]:
    """Return all objects below the key, sorted by name."""
    skip = len(url.key) + 1 if url.key else 0
    with _bucket(url), _translated(url):
        pages = _obstore().list(_store(url), prefix=url.key or None)
        return sorted(
            ObjectFacts(facts["path"][skip:], facts["size"], facts["e_tag"] or "")
            for page in pages
            for facts in page
        )


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
            _obstore().delete(_store(url), url.key)


def _left(urls: Sequence[ObjectUrl]) -> Sequence[ObjectUrl]:
    """Remove objects all at once; return what may be left: some stores stop at an absent one."""
    if not urls:
        return ()
    with _translated(urls[0], writing=True), contextlib.suppress(FileNotFoundError):
        _obstore().delete(_store(urls[0]), [url.key for url in urls])
        return ()
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


def _store(url: ObjectUrl) -> Any:
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
    patience = _LATER if url.root in _answered else _FIRST
    return _store_of(url.root, endpoint_of(url.scheme), patience)


_used_by: set[int] = set()
"""This process, and those it was forked from."""


@functools.lru_cache
def _store_of(root: str, endpoint: str, patience: _Patience) -> Any:
    client = {
        "connect_timeout": timedelta(seconds=_CONNECT_S),
        "read_timeout": timedelta(seconds=patience.answer_s),
        "timeout": timedelta(minutes=10),
    }
    if endpoint.startswith("http://"):
        client["allow_http"] = True  # type: ignore[assignment]
    retry = {
        "max_retries": 1000,
        "retry_timeout": timedelta(seconds=patience.retry_s),
        "backoff": {
            "init_backoff": timedelta(milliseconds=100),
            "max_backoff": timedelta(seconds=patience.pause_s),
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
