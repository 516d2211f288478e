"""Worker processes of builds and readers: the server that forks them, and their limits.

The server has one thread, imports modules but never the user's program, and ends when its parent
does. The operating system enforces the limits: a decoder that never returns, or asks for all
memory, costs one image and not a build. Windows has no fork server, alarm or memory limit, so
workers are spawned without limits there.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from multiprocessing import popen_spawn_posix, spawn, util
from multiprocessing.context import SpawnContext, SpawnProcess
from types import FunctionType, SimpleNamespace
from typing import Any

try:
    import resource
    from multiprocessing import forkserver, popen_forkserver, resource_tracker
    from multiprocessing.context import ForkServerContext, ForkServerProcess
except ImportError:  # Windows
    forkserver = resource = None  # type: ignore[assignment]

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_KEPT_BYTES = 512 << 20
"""Freed bytes that malloc keeps. Mapping them again for each large image takes 6% of a build."""
_WORKER_BYTES = 1 << 30
"""Memory limit of a worker in bytes, without the memory for the pixels of one image."""
_PIXEL_BYTES = 16
"""Bytes of memory per pixel while an image is decoded, copies included."""
_ENOUGH_BYTES = 32 << 20
_MOST_FOLDER_BYTES = 107 - len("/pymp-12345678/listener-12345678")
_ENVIRONMENT = {
    # numpy's own threads would not survive the fork, and nothing here multiplies matrices.
    "OPENBLAS_NUM_THREADS": "1",
    # Arrow's allocators reserve a gigabyte, which would count for the limit, or start a thread.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """Limits of a worker; 0 means no limit."""

    item_s: float = 0.0
    """Wall seconds for reading, decoding and encoding one item."""
    worker_bytes: int = 0

    @classmethod
    def of(cls, item_s: float, max_pixels: int) -> WorkerLimits:
        return cls(item_s=item_s, worker_bytes=_WORKER_BYTES + _PIXEL_BYTES * max_pixels)


def _preparation(name: str) -> dict[str, object]:
    data = spawn.get_preparation_data(name)
    return {key: value for key, value in data.items() if not key.startswith("init_main")}


def _without_program(popen: Any) -> Any:
    """Return a subclass of `popen` whose processes do not import the main program.

    `multiprocessing` imports the program to find its functions. The functions of this package are
    in modules, and a script without `if __name__ == "__main__"` would run again in each process.
    """
    launch = popen._launch  # noqa: SLF001 - no public name exists
    ours = SimpleNamespace(**{**vars(spawn), "get_preparation_data": _preparation})
    changed = FunctionType(launch.__code__, {**launch.__globals__, "spawn": ours}, "_launch")
    return type("Popen", (popen,), {"_launch": changed})


class _SpawnedProcess(SpawnProcess):
    if os.name == "posix":
        _Popen = staticmethod(_without_program(popen_spawn_posix.Popen))


class SpawnedContext(SpawnContext):
    """`multiprocessing` context of spawned processes, which import the program only on Windows."""

    Process = _SpawnedProcess


if forkserver is not None:

    class _ForkedProcess(ForkServerProcess):
        _Popen = staticmethod(_without_program(popen_forkserver.Popen))

    class ForkedContext(ForkServerContext):
        """`multiprocessing` context of processes that the server forks without the program."""

        Process = _ForkedProcess


def start_server(preloaded: list[str]) -> ForkServerContext | SpawnContext:
    """Return the `multiprocessing` context of workers, and start its server without waiting for it.

    A new server imports the modules `preloaded`.
    """
    if forkserver is None:
        return SpawnedContext()
    context = ForkedContext()
    context.set_forkserver_preload(preloaded)
    _shorten_sockets()
    added = {name: value for name, value in _ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(added)
    resource_tracker.ensure_running()  # otherwise the server starts it, with SIGINT unblocked
    try:
        with interrupts_blocked():
            forkserver.ensure_running()
    finally:
        for name in added:
            del os.environ[name]
    return context


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C in processes that start in this block, until they unblock or ignore it.

    Otherwise, Ctrl-C during the imports of a process would end it with a traceback. This process
    gets a blocked Ctrl-C after the block. Does nothing on Windows, which has no signal masks.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin_forked(environment: Mapping[str, str]) -> None:
    """Prepare a process of the fork server for work that ends with its parent.

    `environment` is the current environment of the parent; the server may have an older one. The
    parent handles Ctrl-C.
    """
    os.environ.update(environment)
    gc.freeze()  # modules are never garbage
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    with contextlib.suppress(OSError, AttributeError):  # malloc of other systems has no options
        for parameter in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            ctypes.CDLL(None).mallopt(parameter, _KEPT_BYTES)


def begin_worker() -> None:
    """Let Ctrl-C end this worker process without a message."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):  # SIGINT was blocked when the process started
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _shorten_sockets() -> None:
    """Put `multiprocessing` sockets in /tmp if their paths would exceed 107 bytes (unix(7))."""
    before = tempfile.gettempdir()
    if len(os.fsencode(before)) > _MOST_FOLDER_BYTES:
        tempfile.tempdir = "/tmp"  # noqa: S108 - `get_temp_dir` creates a private folder in it
        try:
            util.get_temp_dir()  # caches the folder
        finally:
            tempfile.tempdir = before


def without_pandas() -> None:
    """Make pandas count as not installed in this process.

    Arrow imports pandas with its first array: 0.5 s per worker, 9% of a build of 2,000 photos.
    """
    if not any(isinstance(finder, _NoPandas) for finder in sys.meta_path):
        sys.meta_path.insert(0, _NoPandas())


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def hold_memory(num_bytes: int) -> None:
    """Limit this process's memory to `num_bytes`; allocations beyond fail. 0 means no limit."""
    if num_bytes and resource is not None:
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        if most == resource.RLIM_INFINITY or num_bytes < most:
            resource.setrlimit(resource.RLIMIT_DATA, (num_bytes, most))


def has_memory() -> bool:
    """Return True if this process can allocate 32 MiB now, enough for an ordinary image."""
    try:
        bytearray(_ENOUGH_BYTES)
    except MemoryError:
        return False
    return True


def start_clock(seconds: float) -> None:
    """End this process by SIGALRM after `seconds`, unless called again before; 0 stops the clock.

    SIGALRM has no handler, so the signal also ends C code that never returns.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def die_with_parent() -> None:
    """Let the system end this process when its parent dies, even by SIGKILL (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def cause_of_death(exit_code: int | None) -> str:
    """Return how a process ended, such as "killed by SIGSEGV" or "exit code 1"."""
    if exit_code is None or exit_code >= 0:
        return f"exit code {exit_code}"
    return f"killed by {signal.Signals(-exit_code).name}"


def silence_stderr() -> None:
    """Discard all output to stderr: libtiff prints pages about a bad file."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
