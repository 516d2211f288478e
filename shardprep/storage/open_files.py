"""Files that readers keep open, with one limit for the whole process.

The system limits the file descriptors of a process (`ulimit -n`). All readers together may keep
half of them open; the rest is for sockets, pipes and other libraries. Each reader has an
`OpenFiles`, and all share one order of use. At the limit, the least recently used file of any
reader is released. It is closed when no thread reads from it.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable

from shardprep.storage.regular_file import Descriptor

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None  # type: ignore[assignment]

_MOST_WITHOUT_LIMIT = 512
"""Number of open files if the system has no limit."""


def most_open() -> int:
    """Return how many files all readers of this process may keep open together."""
    if resource is None:
        return _MOST_WITHOUT_LIMIT
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_WITHOUT_LIMIT if limit == resource.RLIM_INFINITY else max(1, limit // 2)


class OpenFiles:
    """The open files of one reader by name. Thread-safe."""

    def __init__(self, opened: Callable[[str], int]) -> None:
        """`opened` returns a new descriptor, which this object then owns."""
        self._opened = opened
        self._names: set[str] = set()

    def get(self, name: str) -> Descriptor:
        """Return a file, opened if necessary; keep the value while reading from its number."""
        file = self.find(name)
        if file is not None:
            return file
        file = Descriptor(self._opened(name))  # slow, and may fail
        key = (id(self), name)
        with _lock:
            self._names.add(name)
            _files[key] = file
            _files.move_to_end(key)
            let_go = [_files.popitem(last=False) for _ in range(len(_files) - most_open())]
        del let_go  # closed without the lock
        return file

    def find(self, name: str) -> Descriptor | None:
        """Return a file if it is open, otherwise None."""
        key = (id(self), name)
        file = _files.get(key)  # without the lock: each of the two calls is atomic
        if file is not None:
            try:  # noqa: SIM105 - called for each record; a context manager would double the time
                _files.move_to_end(key)
            except KeyError:  # released in between
                pass
        return file

    def drop(self, name: str) -> None:
        """Release a file; ignored if it is not open."""
        with _lock:
            self._names.discard(name)
            file = _files.pop((id(self), name), None)
        del file

    def close(self) -> None:
        """Release all files; `get` opens them again."""
        for name in [*self._names]:
            self.drop(name)

    def __del__(self) -> None:
        self.close()


_files: OrderedDict[tuple[int, str], Descriptor] = OrderedDict()
"""(id of the `OpenFiles`, name) → open file of any reader, in order of use."""
_lock = threading.RLock()  # reentrant: `__del__` may run while it is held


def _renew() -> None:
    """Replace the lock in a forked child, where the thread that held it does not exist."""
    global _lock  # noqa: PLW0603 - another thread cannot release it
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
