"""Small reads of objects with few requests, and read-ahead for objects and files.

A small read fetches a larger block and keeps it in memory for the next reads. `read_ahead` gets the
spans of a chunk. It fetches spans of objects in parallel, while the worker decodes earlier images.
It asks the operating system to read spans of files, and keeps the files open. It writes no files.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import NamedTuple, TypeVar

from shardprep.storage import objects
from shardprep.storage.regular_file import Descriptor, OpenFiles, regular_descriptor
from shardprep.storage.url import ObjectUrl, is_url

_FIRST_BYTES, _MOST_BYTES = 64 << 10, 8 << 20
"""Bytes of the first and the largest request. The size doubles while reads are consecutive."""
_KEPT_BYTES = 24 << 20
_WINDOW_BYTES, _FIRST_SPANS, _MOST_SPANS = 8 << 20, 8, 64
"""Maximum bytes of a read-ahead window, spans of the first window, and maximum spans of a window.

The first window has few spans, because workers wait for it.
"""
_WINDOWS_AHEAD = 4
"""Number of windows fetched in advance: a store may be slower than the decoder."""
_CALL_SPANS, _CALLS_AT_ONCE = 8, 16
"""Ranges per call, and parallel calls per window. One thread for each range would cost more."""
_NEAR_BYTES = 128 << 10
"""Largest gap in bytes between two spans that one request fetches."""


class Span(NamedTuple):
    """A range of bytes of a file or an object."""

    file: str
    offset: int
    num_bytes: int


_Span = TypeVar("_Span", bound=Span)

_blocks: dict[tuple[str, int], bytes] = {}
"""(file, offset) → block in memory, oldest first."""
_at_hand: dict[str, list[tuple[int, bytes]]] = {}
"""Address → offset and bytes of each range of the current window."""


class _Open(threading.local):
    def __init__(self) -> None:
        self.files = OpenFiles(regular_descriptor)


_open = _Open()


def open_file(file: str) -> Descriptor | None:
    """Return the descriptor of a file that `read_ahead` opened in this thread, or None."""
    return _open.files.find(file)


def read_at(file: str, offset: int, num_bytes: int) -> bytes:
    """Return bytes of an object, fewer at its end; FileNotFoundError for a missing object."""
    for start, data in _at_hand.get(file, ()):
        if start <= offset and offset + num_bytes <= start + len(data):
            return data[offset - start : offset - start + num_bytes]
    for (name, start), block in reversed(_blocks.items()):
        at = offset - start
        if name == file and at >= 0 and at + num_bytes <= len(block):
            return block[at : at + num_bytes]
    return _read_block(file, offset, num_bytes)


def _read_block(file: str, offset: int, num_bytes: int) -> bytes:
    size = max(_FIRST_BYTES, num_bytes)
    if _blocks:
        (last_file, start), last = next(reversed(_blocks.items()))
        if file == last_file and start < offset <= start + 2 * len(last):
            size = max(size, min(2 * len(last), _MOST_BYTES))
    block = objects.get_range(ObjectUrl.split(file), offset, size)
    _blocks.pop((file, offset), None)
    _blocks[file, offset] = block
    while sum(map(len, _blocks.values())) > _KEPT_BYTES:
        del _blocks[next(iter(_blocks))]
    return block[:num_bytes]


def forget() -> None:
    """Drop the blocks in memory, so that the next reads ask the store."""
    _blocks.clear()


def read_ahead(spans: Sequence[_Span]) -> Generator[_Span]:
    """Yield spans in order and read ahead; the caller must read each span before the next."""
    if not any(is_url(span.file) for span in spans):
        yield from _read_ahead_by_system(spans)
        return
    windows = list(_windows(spans))
    with ThreadPoolExecutor(_WINDOWS_AHEAD) as pool:
        coming = deque(pool.submit(_get, window) for window in windows[:_WINDOWS_AHEAD])
        try:
            for i, window in enumerate(windows, _WINDOWS_AHEAD):
                ranges = coming.popleft().result()
                coming.extend(pool.submit(_get, later) for later in windows[i : i + 1])
                _at_hand.update(ranges)
                yield from window
                _at_hand.clear()
        finally:
            _at_hand.clear()
            pool.shutdown(wait=False, cancel_futures=True)


def _read_ahead_by_system(spans: Sequence[_Span]) -> Iterator[_Span]:
    num_asked = num_bytes = 0
    last = {span.file: i for i, span in enumerate(spans)}
    try:
        for i, span in enumerate(spans):
            most = min(i + _MOST_SPANS, len(spans))
            while num_asked <= i or (num_asked < most and num_bytes < _WINDOW_BYTES):
                _ask_system(spans[num_asked])
                num_bytes += spans[num_asked].num_bytes
                num_asked += 1
            yield span
            num_bytes -= span.num_bytes
            if last[span.file] == i:
                del last[span.file]
                _open.files.drop(span.file)
    finally:
        for file in last:
            _open.files.drop(file)


def _ask_system(span: Span) -> None:
    """Ask the system to cache a span. Errors are ignored: reading reports them."""
    file, offset, num_bytes = span
    if not num_bytes:
        return
    try:
        descriptor = _open.files.get(file)
        if hasattr(os, "posix_fadvise"):
            num_bytes = min(num_bytes, _WINDOW_BYTES)
            os.posix_fadvise(descriptor.number, offset, num_bytes, os.POSIX_FADV_WILLNEED)
    except (OSError, OverflowError):
        pass


def _windows(spans: Sequence[_Span]) -> Iterator[list[_Span]]:
    window: list[_Span] = []
    num_bytes, most = 0, _FIRST_SPANS
    for span in spans:
        if window and (num_bytes + span.num_bytes > _WINDOW_BYTES or len(window) == most):
            yield window
            window, num_bytes, most = [], 0, min(2 * most, _MOST_SPANS)
        window.append(span)
        num_bytes += span.num_bytes
    yield window


def _get(window: Sequence[Span]) -> dict[str, list[tuple[int, bytes]]]:
    spans = _merged(span for span in window if is_url(span.file) and span.num_bytes)
    calls = []
    for _, of_one in groupby(spans, key=lambda span: span.file):
        rest = list(of_one)
        calls += [rest[at : at + _CALL_SPANS] for at in range(0, len(rest), _CALL_SPANS)]
    by_file: defaultdict[str, list[tuple[int, bytes]]] = defaultdict(list)
    if calls:
        with ThreadPoolExecutor(min(_CALLS_AT_ONCE, len(calls))) as pool:
            for call, ranges in zip(calls, pool.map(_get_ranges, calls), strict=True):
                by_file[call[0].file] += ranges
    return by_file


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for span in sorted(spans):
        if merged:
            last = merged[-1]
            gap = span.offset - last.offset - last.num_bytes
            length = max(span.offset + span.num_bytes - last.offset, last.num_bytes)
            if span.file == last.file and gap <= _NEAR_BYTES and length <= _MOST_BYTES:
                merged[-1] = last._replace(num_bytes=length)
                continue
        merged.append(span)
    return merged


def _get_ranges(spans: Sequence[Span]) -> list[tuple[int, bytes]]:
    """Return offset and bytes of each span of one object; [] if missing: `read_at` reports it."""
    starts = [span.offset for span in spans]
    lengths = [span.num_bytes for span in spans]
    try:
        blocks = objects.get_ranges(ObjectUrl.split(spans[0].file), starts, lengths)
    except FileNotFoundError:
        return []
    return list(zip(starts, blocks, strict=True))
