"""Objects by their addresses: every call that leaves this machine for object storage is here.

Retries with back-off are the store's own (obstore): 429, 5xx and connections that break. What is
left of errors becomes a `StorageError` of one line, in which no credentials stand.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from shardprep.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from shardprep.storage.url import ObjectUrl

_ENDPOINTS = {"s3": "AWS_ENDPOINT_URL", "gs": "GOOGLE_BASE_URL", "az": "AZURE_STORAGE_ENDPOINT"}
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or a role)",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS (or a service account of the machine)",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or an identity)",
}
_RETRY = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=120),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=10),
        "base": 2,
    },
}
_STATUS = re.compile(r"status code: (\d{3}[A-Za-z ]*)")
_CONNECT_S = 3
_STREAM_BYTES = 1 << 20
_MULTIPART_BYTES = 16 << 20
"""Smaller objects are put at once, larger ones in parts of this size."""


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


def get_ranges(url: ObjectUrl, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
    """Return several ranges, asked for side by side; near ones are got as one.

    Raises:
        FileNotFoundError: there is no such object.

    """
    with _translated(url):
        found = _obstore().get_ranges(_store(url), url.key, starts=starts, lengths=lengths)
        return [bytes(part) for part in found]


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


def put(url: ObjectUrl, content: bytes | Path) -> None:
    """Write the object, whole or not at all, in place of one that is there."""
    with _translated(url, writing=True):
        _obstore().put(_store(url), url.key, content, chunk_size=_MULTIPART_BYTES)


def create(url: ObjectUrl, content: bytes) -> bool:
    """Write the object only where there is none; False where there is one."""
    with _translated(url, writing=True):
        try:
            _obstore().put(_store(url), url.key, content, mode="create")
        except _obstore().exceptions.AlreadyExistsError:
            return False
    return True


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
    if urls:
        with _translated(urls[0], writing=True), contextlib.suppress(FileNotFoundError):
            _obstore().delete(_store(urls[0]), [url.key for url in urls])


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
    return _store_of(url.root, os.environ.get(_ENDPOINTS[url.scheme], ""))


_used_by: set[int] = set()
"""This process, and those it was forked from."""


@functools.lru_cache
def _store_of(root: str, endpoint: str) -> Any:
    client = {"connect_timeout": timedelta(seconds=_CONNECT_S), "timeout": timedelta(minutes=10)}
    if endpoint.startswith("http://"):
        client["allow_http"] = True  # type: ignore[assignment]
    make: Callable[..., Any] = _obstore().store.from_url
    return make(root, client_options=client, retry_config=_RETRY)


@contextlib.contextmanager
def _translated(url: ObjectUrl, *, writing: bool = False) -> Iterator[None]:
    """Turn what the store raises into one line, except that there is no such object to read."""
    exceptions = _obstore().exceptions
    try:
        yield
    except FileNotFoundError as error:
        if not writing:
            raise
        raise StorageError(url.root, "there is no such bucket", "create it first") from error
    except exceptions.PreconditionError as error:
        raise StorageError(
            str(url), "has changed since it was found", "open the dataset again"
        ) from error
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise StorageError(
            str(url),
            f"may not be {'written' if writing else 'read'} with these credentials",
            f"set {_CREDENTIALS[url.scheme]}",
        ) from error
    except (exceptions.BaseError, OSError, ValueError) as error:
        raise StorageError(
            str(url),
            f"cannot be {'written' if writing else 'read'} ({_reason(error, url)})",
            "run the same command again when the store answers",
        ) from error


def _reason(error: Exception, url: ObjectUrl) -> str:
    """Return the kernel of a message of many lines."""
    text = str(error)
    status = _STATUS.search(text)
    if status:
        return f"HTTP {status[1].strip()}"
    if "kind: Connect" in text or "kind: Timeout" in text:
        endpoint = os.environ.get(_ENDPOINTS[url.scheme])
        return f"no answer from {_without_user(endpoint) if endpoint else 'the store'}"
    if "metadata" in text or "credential" in text.lower():
        return f"no credentials: set {_CREDENTIALS[url.scheme]}"
    return text.splitlines()[0].partition(" http")[0][:120]


def _without_user(endpoint: str) -> str:
    return re.sub(r"//[^/@]*@", "//", endpoint)
