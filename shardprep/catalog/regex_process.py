"""The process that searches names for one pattern; `patterns` runs this file as a script.

The input on stdin and the result on stdout are in the format of `marshal`. Only the standard
library is imported, so the process starts in 20 ms.
"""

from __future__ import annotations

import marshal
import math
import operator
import re
import signal
import sys
from collections.abc import Callable

try:
    import resource
except ModuleNotFoundError:  # Windows has no limit of CPU time
    resource = None  # type: ignore[assignment]

_SPARE_S = 2
"""CPU seconds after the limit until the system stops a search that ignored the signal."""


class _OutOfTimeError(Exception):
    pass


def main() -> None:
    """Search the names from stdin; write the groups, or the index of a name that takes too long."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    order = marshal.loads(sys.stdin.buffer.read())  # noqa: S302 - of our own process
    pattern, group, is_whole, limit_s, names = order
    # CPU time, not wall time: other work on the machine must not count. `re` handles signals only
    # now and then, so the system enforces a limit, too.
    if resource is not None:
        most_s = math.ceil(limit_s) + _SPARE_S
        resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s))
        signal.signal(signal.SIGVTALRM, _out_of_time)
        signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
    compiled = re.compile(pattern)
    found = _found(compiled.fullmatch if is_whole else compiled.search, group, names)
    if resource is not None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    sys.stdout.buffer.write(marshal.dumps(found))


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
