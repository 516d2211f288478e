"""Read, write, list and remove objects by their addresses.

A missing object is a FileNotFoundError unless a function says otherwise. `create` and `replace` are
atomic: the store checks the condition (absent, or this ETag) and writes in one step. Several
builds use this to agree on one winner.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from shardprep.errors import StorageError
from shardprep.storage.store import (
    ChangedError,
    NoAnswerError,
    Wait,
    asked,
    asked_again,
    has_answered,
    no_bucket,
    timeout_s,
)
from shardprep.storage.url import ObjectUrl

_STREAM_BYTES = 1 << 20
_UPLOAD_BYTES = 8 << 20
"""Bytes of one request of an upload. Objects up to this size are sent in one request."""
_UPLOADS_AT_ONCE = 4
"""Parallel requests of an upload. A slow network must send all within the time of one try."""
_COPY_BYTES = 5 * 10**9
_REPLACE_PAUSES_S = (0.2, 1, 4, 15)


class ListedObject(NamedTuple):
    """Name, size and ETag of an object."""

    name: str
    """Key below the requested address; "" for the requested object itself."""
    num_bytes: int
    etag: str


def get(url: ObjectUrl) -> bytes | None:
    """Return all bytes of an object, or None if it does not exist."""
    try:
        return bytes(asked_again(url, lambda store, _: store.get(url.key).bytes()))
    except FileNotFoundError:
        return None


def get_range(url: ObjectUrl, start: int, num_bytes: int) -> bytes:
    """Return `num_bytes` bytes from the offset `start`, or fewer if the object ends earlier."""
    if num_bytes <= 0:
        return b""
    span = {"start": start, "length": num_bytes}
    return bytes(asked_again(url, lambda store, _: store.get_range(url.key, **span)))


def get_ranges(url: ObjectUrl, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
    """Return the bytes of several ranges, with parallel requests, one for each range."""
    spans = {"starts": starts, "lengths": lengths, "coalesce": 0}
    return list(map(bytes, asked_again(url, lambda store, _: store.get_ranges(url.key, **spans))))


def read_range(url: ObjectUrl, etag: str, start: int, num_bytes: int) -> memoryview:
    """Return bytes of the object with this ETag ("" for any); ChangedError if it was replaced.

    The range must be inside the object. The result is the client's own buffer: a copy would cost
    more than half as much as the request.
    """
    options = {"range": (start, start + num_bytes), **({"if_match": etag} if etag else {})}
    with _found(_gone(url)):
        return memoryview(
            asked_again(url, lambda store, _: store.get(url.key, options=options).bytes())
        )


def _is_program_over() -> bool:
    return not threading.main_thread().is_alive()


def read_whole(
    url: ObjectUrl, etag: str, is_over: Callable[[], bool] = _is_program_over
) -> Iterator[bytes]:
    """Yield all bytes of the object with this ETag ("" for any); ChangedError if it was replaced.

    Reading stops with a StorageError when `is_over` returns True. `is_over` is called repeatedly,
    even while the store is silent.
    """
    with _found(_gone(url)):
        yield from _blocks(url, {"if_match": etag} if etag else {}, is_over)


def _blocks(
    url: ObjectUrl, options: dict[str, str], is_over: Callable[[], bool] = _is_program_over
) -> Iterator[bytes]:
    def opened(store: Any, _: Wait) -> Any:
        return iter(store.get(url.key, options=options).stream(min_chunk_size=_STREAM_BYTES))

    stream = asked_again(url, opened, is_over=is_over)
    while (block := asked(url, lambda *_: next(stream, None), is_over=is_over)) is not None:
        yield bytes(block)


def _gone(url: ObjectUrl) -> ChangedError:
    way = (
        "open the dataset again if it was rebuilt, "
        "or run `shardprep verify DATASET --repair --source SOURCE`"
    )
    return ChangedError(str(url), "does not exist any more", way)


@contextlib.contextmanager
def _found(otherwise: StorageError) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise otherwise from None


def sha256(url: ObjectUrl) -> str:
    """Return the SHA-256 of an object in hexadecimal; reads the whole object."""
    digest = hashlib.sha256()
    for block in read_whole(url, ""):
        digest.update(block)
    return digest.hexdigest()


def put(url: ObjectUrl, content: bytes | BinaryIO) -> str:
    """Write or replace an object atomically, and return its ETag. A file is read from its start."""
    file = io.BytesIO(content) if isinstance(content, bytes) else content
    num_bytes = file.seek(0, io.SEEK_END)
    options = {
        "use_multipart": num_bytes > _UPLOAD_BYTES,
        "chunk_size": _UPLOAD_BYTES,
        "max_concurrency": _UPLOADS_AT_ONCE,
    }

    def blocks(wait: Wait) -> Iterator[bytes]:
        file.seek(0)
        while block := file.read(_UPLOAD_BYTES):
            wait.moved()  # each sent block shows that the store answers
            yield block

    def sent(store: Any, wait: Wait) -> Any:
        # If the last answer was cut, the client fails: it finds no upload to abort. Send it again.
        with contextlib.suppress(FileNotFoundError):
            return store.put(url.key, blocks(wait), **options)
        return store.put(url.key, blocks(wait), **options)

    with _found(no_bucket(url, writing=True)):
        done = asked_again(url, sent, writing=True, is_over=_is_program_over)
    return done["e_tag"] or ""


def create(url: ObjectUrl, content: bytes) -> bool:
    """Write the object unless it exists; return True if it has this content now."""
    return _exchange(url, None, content)


def replace(url: ObjectUrl, old: bytes, new: bytes) -> bool:
    """Replace content `old` by `new`; return True if the object has `new` now."""
    return _exchange(url, old, new)


def _exchange(url: ObjectUrl, old: bytes | None, new: bytes) -> bool:
    """Write the object if its content is `old` (None: missing); return whether it is `new` now.

    The client does not repeat this request. After a lost answer, the object's content shows whether
    the request was executed.
    """
    begun_s = time.monotonic()
    mode: str | dict[str, str] | None = "create" if old is None else None
    for pause in (*_REPLACE_PAUSES_S, None):
        try:
            if mode is None:
                there, mode = _content(url)
                if there != old:
                    return there == new
            _put_once(url, new, mode)
            return True
        except ChangedError:
            mode = None
        except NoAnswerError:
            left_s = timeout_s() - (time.monotonic() - begun_s)
            if pause is None or left_s <= pause or not has_answered(url):
                raise
        time.sleep(pause or 0)
    raise StorageError(
        str(url), "another process keeps changing it", "if two builds write here, stop one of them"
    )


def _content(url: ObjectUrl) -> tuple[bytes | None, str | dict[str, str]]:
    """Return an object's content, or None, and a `put` mode that fails if the content changed."""

    def read(store: Any, _: Wait) -> tuple[bytes, dict[str, str]]:
        answer = store.get(url.key)
        mode = {name: answer.meta[name] for name in ("e_tag", "version") if answer.meta[name]}
        return bytes(answer.bytes()), mode

    try:
        content: tuple[bytes, dict[str, str]] = asked_again(url, read)
    except FileNotFoundError:
        return None, "create"
    return content


def _put_once(url: ObjectUrl, content: bytes, mode: str | dict[str, str]) -> None:
    with _found(no_bucket(url, writing=True)):
        asked(url, lambda store, _: store.put(url.key, content, mode=mode), writing=True)


def copy(source: ObjectUrl, to: ObjectUrl, num_bytes: int) -> bool:
    """Copy an object of `num_bytes` within its bucket; return False if it is missing.

    Stores do not copy objects above 5 GB: these are downloaded and uploaded again.
    """
    if num_bytes <= _COPY_BYTES:
        try:
            asked_again(to, lambda store, _: store.copy(source.key, to.key), writing=True)
        except FileNotFoundError:
            return False
        return True
    with tempfile.TemporaryFile() as file:
        try:
            file.writelines(_blocks(source, {}))
        except FileNotFoundError:
            return False
        put(to, file)
    return True


def head(url: ObjectUrl) -> ListedObject | None:
    """Return size and ETag of an object, or None if it does not exist."""
    try:
        facts = asked_again(url, lambda store, _: store.head(url.key))
    except FileNotFoundError:
        return None
    return ListedObject("", facts["size"], facts["e_tag"] or "")


def listing(url: ObjectUrl) -> list[ListedObject]:
    """Return all objects below the key, sorted by name; StorageError if the bucket is missing."""
    skip = len(url.key) + 1 if url.key else 0

    def found(store: Any, wait: Wait) -> Iterator[ListedObject]:
        for page in store.list(prefix=url.key or None):
            wait.moved()
            for facts in page:
                yield ListedObject(facts["path"][skip:], facts["size"], facts["e_tag"] or "")

    with _found(no_bucket(url, writing=False)):
        facts: list[ListedObject] = asked_again(url, lambda *given: sorted(found(*given)))
    return facts


def delete(urls: Sequence[ObjectUrl]) -> None:
    """Remove objects of one bucket. Missing objects are ignored, even if the store reports them."""
    if not urls:
        return
    with contextlib.suppress(FileNotFoundError):
        _delete(urls[0], [url.key for url in urls])
        return
    for url in urls:
        with contextlib.suppress(FileNotFoundError):
            _delete(url, url.key)


def _delete(url: ObjectUrl, keys: str | list[str]) -> None:
    asked_again(url, lambda store, _: store.delete(keys), writing=True)
