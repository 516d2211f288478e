"""Display of progress: pass it to a function, or show it in a notebook or on a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from shardprep.api.progress import Show, Watch


@contextlib.contextmanager
def watched(progress: Show | bool) -> Iterator[Watch]:  # noqa: FBT001 - the option of all commands
    """Provide a `Watch` for the caller's function, or for a bar if `progress` is True."""
    with contextlib.ExitStack() as stack:
        if callable(progress):
            watch = Watch(progress)
        else:
            watch = Watch(stack.enter_context(_bar()) if progress else lambda _: None)
        yield watch
        watch.finish()


def _bar() -> contextlib.AbstractContextManager[Show]:
    """Return the display for a notebook cell, a terminal or a log."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if hasattr(shell, "kernel"):
        from shardprep.api.notebook_progress import Cell

        return Cell()
    from rich.console import Console

    from shardprep.api.terminal_progress import Bar

    return Bar(Console(stderr=True, highlight=False))
