"""Show the progress of a command where it runs: to a function, in a notebook, on a terminal."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from shardprep.api.progress import Show, Watch

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def watched(progress: Show | bool) -> Iterator[Watch]:  # noqa: FBT001 - the option of all commands
    """Give what makes the reports, and report the end; True shows them where this program runs."""
    with contextlib.ExitStack() as stack:
        if callable(progress):
            watch = Watch(progress)
        else:
            watch = Watch(stack.enter_context(_bar()) if progress else lambda _: None)
        yield watch
        watch.finish()


def _bar() -> contextlib.AbstractContextManager[Show]:
    """Return a bar in the cell of a notebook, or on a terminal, or lines now and then."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if hasattr(shell, "kernel"):
        from shardprep.api.notebook_progress import Cell

        return Cell()
    from rich.console import Console

    from shardprep.api.terminal_progress import Bar

    return Bar(Console(stderr=True, highlight=False))
