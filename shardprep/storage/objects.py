"""Objects by their addresses: read, written, listed and removed.

One that is not there is a `FileNotFoundError`, unless a function says what else it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from shardprep.errors import StorageError
from shardprep.storage.store import asked, asked_again, has_answered
from shardprep.storage.store_error import ChangedError, NoAnswerError, no_bucket
from shardprep.storage.timeout import timeout_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import BinaryIO

    from shardprep.storage.timeout import Wait
    from shardprep.storage.url import ObjectUrl

_STREAM_BYTES = 1 << 20
_UPLOAD_BYTES = 8 << 20
"""Bytes of one request of an upload; a smaller object is put at once."""
_UPLOADS_AT_ONCE = 4
"""Requests at a time: with their size, the bytes that a slow line carries within one try."""
_COPY_BYTES = 5 * 10**9
"""Bytes of an object that S3 copies at once, at most."""
_REPLACE_PAUSES_S = (0.2, 1, 4, 15)


class ListedObject(NamedTuple):
    """Name, size and ETag of an object, as the store lists it."""

    name: str
    """Its key below what was asked for, "" where it was asked for itself."""
    num_bytes: int
    etag: str
    """Changes with the content; opaque."""


def get(url: ObjectUrl) -> bytes | None:
    """Return the whole object, None where there is none."""
    try:
        return bytes(asked_again(url, lambda store, _: store.get(url.key).bytes()))
    except FileNotFoundError:
        return None


def get_range(url: ObjectUrl, start: int, num_bytes: int) -> bytes:
    """Return so many bytes from an offset on, fewer where the object ends before."""
    if num_bytes <= 0:
        return b""
    span = {"start": start, "length": num_bytes}
    return bytes(asked_again(url, lambda store, _: store.get_range(url.key, **span)))


def get_ranges(url: ObjectUrl, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
    """Return several ranges, each asked for as it is, side by side."""
    spans = {"starts": starts, "lengths": lengths, "coalesce": 0}
    return list(map(bytes, asked_again(url, lambda store, _: store.get_ranges(url.key, **spans))))


def read_range(url: ObjectUrl, etag: str, start: int, num_bytes: int) -> memoryview:
    """Return so many bytes of the very object that had this ETag; they must be there.

    They lie where the client has put them: a copy would cost more than half as much as the request.

    Raises:
        StorageError: it is gone, or another one now.

    """
    options = {"range": (start, start + num_bytes), **_only(etag)}
    with _found(_gone(url)):
        return memoryview(
            asked_again(url, lambda store, _: store.get(url.key, options=options).bytes())
        )


def _is_program_over() -> bool:
    return not threading.main_thread().is_alive()


def read_whole(
    url: ObjectUrl, etag: str, is_over: Callable[[], bool] = _is_program_over
) -> Iterator[bytes]:
    """Yield all bytes of the very object that had this ETag.

    Args:
        url: the object.
        etag: as it was found; "" for any.
        is_over: asked again and again whether to stop, which a store that is silent does not hold
            up; by default, whether the program ends.

    Raises:
        StorageError: it is gone, or another one now, or `is_over`.

    """
    with _found(_gone(url)):
        yield from _blocks(url, _only(etag), is_over)


def _blocks(
    url: ObjectUrl, options: dict[str, str], is_over: Callable[[], bool] = _is_program_over
) -> Iterator[bytes]:
    def opened(store: Any, _: Wait) -> Any:
        return iter(store.get(url.key, options=options).stream(min_chunk_size=_STREAM_BYTES))

    stream = asked_again(url, opened, is_over=is_over)
    while (block := asked(url, lambda *_: next(stream, None), is_over=is_over)) is not None:
        yield bytes(block)


def _only(etag: str) -> dict[str, str]:
    return {"if_match": etag} if etag else {}


def _gone(url: ObjectUrl) -> ChangedError:
    way = "open the dataset again if it was built anew, else `shardprep verify --repair` it"
    return ChangedError(str(url), "is not there any more", way)


@contextlib.contextmanager
def _found(otherwise: StorageError) -> Iterator[None]:
    """Raise the error where something is not found."""
    try:
        yield
    except FileNotFoundError:
        raise otherwise from None


def sha256(url: ObjectUrl) -> str:
    """Return the hash of an object, all of which is read for it, hex."""
    digest = hashlib.sha256()
    for block in read_whole(url, ""):
        digest.update(block)
    return digest.hexdigest()


def put(url: ObjectUrl, content: bytes | BinaryIO) -> str:
    """Write the object, whole or not at all, in place of one that is there; return its ETag.

    All of a file is sent, wherever it stands.
    """
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
            wait.moved()  # each that leaves shows that the store is there
            yield block

    def sent(store: Any, wait: Wait) -> Any:
        # Where the last answer was cut, the client finds no upload to abort, and says that.
        with contextlib.suppress(FileNotFoundError):
            return store.put(url.key, blocks(wait), **options)
        return store.put(url.key, blocks(wait), **options)

    with _found(no_bucket(url, writing=True)):
        done = asked_again(url, sent, writing=True, is_over=_is_program_over)
    return done["e_tag"] or ""


def create(url: ObjectUrl, content: bytes) -> bool:
    """Write the object only where there is none; False where there is one with other content."""
    return _exchange(url, None, content)


def replace(url: ObjectUrl, old: bytes, new: bytes) -> bool:
    """Write the object only where it still holds what it held; False where it does not."""
    return _exchange(url, old, new)


def _exchange(url: ObjectUrl, old: bytes | None, new: bytes) -> bool:
    """Write the object only where it is as it was; its old bytes are None where there was none.

    The store's client does not try this again by itself: when an answer is lost, only a look at
    what is there says whether it was done.
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
    raise StorageError(str(url), "changes all the time", "is another build at work here? end one")


def _content(url: ObjectUrl) -> tuple[bytes | None, str | dict[str, str]]:
    """Return the bytes of an object, None where there is none, and the mode to replace only it."""

    def read(store: Any, _: Wait) -> tuple[bytes, dict[str, str]]:
        found = store.get(url.key)
        mode = {name: found.meta[name] for name in ("e_tag", "version") if found.meta[name]}
        return bytes(found.bytes()), mode

    try:
        content: tuple[bytes, dict[str, str]] = asked_again(url, read)
    except FileNotFoundError:
        return None, "create"
    return content


def _put_once(url: ObjectUrl, content: bytes, mode: str | dict[str, str]) -> None:
    with _found(no_bucket(url, writing=True)):
        asked(url, lambda store, _: store.put(url.key, content, mode=mode), writing=True)


def copy(source: ObjectUrl, to: ObjectUrl, num_bytes: int) -> bool:
    """Make an object the same as another one of its bucket; False where there is no such object.

    The store copies by itself what it may, by the size that the object has; the rest goes through
    this machine.
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
    """Return what the store says of the object, None where there is none."""
    try:
        facts = asked_again(url, lambda store, _: store.head(url.key))
    except FileNotFoundError:
        return None
    return ListedObject("", facts["size"], facts["e_tag"] or "")


def listing(url: ObjectUrl) -> list[ListedObject]:
    """Return all objects below the key, sorted by name."""
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
    """Remove objects of one bucket; those that are not there are no matter.

    All at once, then one by one where that fails: some stores stop at an absent one.
    """
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
