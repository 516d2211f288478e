"""The process that workers are forked from: what they import is imported once.

It runs no code of ours beyond imports, has one thread, and ends when its parent does. Started
first of all, it is ready when the plan is.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from multiprocessing import forkserver
from typing import TYPE_CHECKING

from shardprep.writer.engine.limits import KEPT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.context import ForkServerContext

_PRELOADED = ["shardprep.cli.app", "shardprep.writer.engine.local", "shardprep.catalog.catalog"]
"""Modules to import once: those of a task, and the program itself, which a worker imports too."""
_ENVIRONMENT = {
    # Keeps glibc from mapping and unmapping the decode buffers anew for every image.
    "MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES),
    "MALLOC_MMAP_THRESHOLD_": str(KEPT_BYTES),
    # numpy's own threads would not survive the fork, and nothing here multiplies matrices.
    "OPENBLAS_NUM_THREADS": "1",
}


def start_server() -> ForkServerContext:
    """Start the process unless it runs; return what starts workers. It does not wait."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    with _environment(_ENVIRONMENT):
        forkserver.ensure_running()
    return context


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set variables that are not set yet, for children started meanwhile."""
    new = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]
