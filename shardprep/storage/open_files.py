"""Files that readers keep open: one bound for the whole process, released in order of use.

The system limits the file descriptors of a process (`ulimit -n`). Readers may keep half of that
number, all readers together; the rest is for sockets, pipes and other libraries. Each reader has an
`OpenFiles`, and all of these share one order of use: when the bound is reached, the file that was
used longest ago is let go, whichever reader has it. It is closed when no thread reads from it.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from shardprep.storage.regular_file import Descriptor

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_WITHOUT_LIMIT = 512
"""Files that readers keep open where the system states no limit."""


def most_open() -> int:
    """Return the number of files that all readers of this process may keep open."""
    if resource is None:
        return _MOST_WITHOUT_LIMIT
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_WITHOUT_LIMIT if limit == resource.RLIM_INFINITY else max(1, limit // 2)


class OpenFiles:
    """The files that one reader keeps open, by name; many threads may use it."""

    def __init__(self, opened: Callable[[str], int]) -> None:
        """`opened` returns a new descriptor of a file, which belongs to this object then."""
        self._opened = opened
        self._names: set[str] = set()

    def get(self, name: str) -> Descriptor:
        """Return a file, opened if need be. Hold the value while you read from its number."""
        found = self.find(name)
        if found is not None:
            return found
        found = Descriptor(self._opened(name))  # which may take long, or fail
        key = (id(self), name)
        with _lock:
            self._names.add(name)
            _files[key] = found
            _files.move_to_end(key)
            let_go = [_files.popitem(last=False) for _ in range(len(_files) - most_open())]
        del let_go  # closed without the lock
        return found

    def find(self, name: str) -> Descriptor | None:
        """Return a file that is open, else None."""
        key = (id(self), name)
        found = _files.get(key)  # without the lock: each of the two calls is atomic
        if found is not None:
            try:  # noqa: SIM105 - for each record, where a context manager takes as long as the rest
                _files.move_to_end(key)
            except KeyError:  # let go in between
                pass
        return found

    def drop(self, name: str) -> None:
        """Let go of a file; one that is not open is no matter."""
        with _lock:
            self._names.discard(name)
            found = _files.pop((id(self), name), None)
        del found

    def close(self) -> None:
        """Let go of all files; `get` opens them again."""
        for name in [*self._names]:
            self.drop(name)

    def __del__(self) -> None:
        self.close()


_files: OrderedDict[tuple[int, str], Descriptor] = OrderedDict()
"""The files of all readers by the id of their `OpenFiles` and name, the last used one last."""
_lock = threading.RLock()  # `__del__` may run in whatever holds it


def _renew() -> None:
    """Make the lock anew in a child, where the thread that held it does not exist."""
    global _lock  # noqa: PLW0603 - it cannot be released by another thread
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
