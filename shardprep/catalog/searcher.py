"""The process that searches names by one pattern; `patterns` starts it as a file.

It imports the standard library alone, and so starts in 20 ms.
"""

from __future__ import annotations

import marshal
import math
import operator
import re
import resource
import signal
import struct
import sys
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_NUM_BYTES = struct.Struct("<Q")
_SPARE_S = 2
"""CPU seconds after the time limit at which the system ends a search that missed its signal."""


class _OutOfTimeError(Exception):
    """The time limit of the pattern is reached."""


def main() -> None:
    """Answer each list of names with the groups found, or with the index of the slow name."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pattern, group, is_whole, limit_s = receive(sys.stdin.buffer)
    # CPU time, not wall time: other work on the machine must not count. `re` checks for signals
    # now and then only; the limit of the system holds in any case.
    most_s = math.ceil(limit_s) + _SPARE_S
    resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s))
    signal.signal(signal.SIGVTALRM, _out_of_time)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
    compiled = re.compile(pattern)
    find = compiled.fullmatch if is_whole else compiled.search
    while True:
        try:
            texts = receive(sys.stdin.buffer)
        except EOFError:
            return
        send(sys.stdout.buffer, _found(find, group, texts))


def send(pipe: IO[bytes], value: Any) -> None:
    """Write a value of plain types to the process at the other end."""
    data = marshal.dumps(value)
    pipe.write(_NUM_BYTES.pack(len(data)) + data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """Return a value that was sent; `marshal.load` would read it from a pipe piece by piece.

    Raises:
        EOFError: the other process has ended.

    """
    header = pipe.read(_NUM_BYTES.size)
    if len(header) < _NUM_BYTES.size:
        raise EOFError
    return marshal.loads(pipe.read(*_NUM_BYTES.unpack(header)))  # noqa: S302 - of our own process


def _found(
    find: Callable[[str], re.Match[str] | None], group: str | int | None, texts: list[str]
) -> list[str | None] | int:
    rest = iter(texts)
    try:
        if group is None:
            return [None if find(text) is None else "" for text in rest]
        return [match[group] or "" if (match := find(text)) else None for text in rest]
    except _OutOfTimeError:
        return len(texts) - 1 - operator.length_hint(rest)


def _out_of_time(*_: object) -> None:
    raise _OutOfTimeError


if __name__ == "__main__":
    main()
