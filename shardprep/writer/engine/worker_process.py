"""The processes that encode: the server that forks them, and the limits they are held to.

The server runs no code of ours beyond imports, has one thread, and ends when its parent does.
Started first of all, it is ready when the plan is. The operating system enforces the limits: a
decoder that never comes back, or asks for all memory there is, costs one image, not the build.

Where a system has no such server, fresh processes do the work, slower to start; where it has no
alarm or no limit of memory, there is none.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from multiprocessing import popen_spawn_posix, spawn, util
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

try:
    import resource
    from multiprocessing import forkserver, popen_forkserver, resource_tracker
    from multiprocessing.context import ForkServerContext, ForkServerProcess
except ImportError:  # Windows
    forkserver = resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator

_PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""malloc.h"""
_KEPT_BYTES = 512 << 20
"""Bytes of freed memory that malloc keeps. To map it anew for each image of several megapixels
takes 6 % of the processor time of a build."""
_WORKER_BYTES = 1 << 30
"""Memory in bytes that a worker may use besides the pixels of an image."""
_PIXEL_BYTES = 16
"""Memory in bytes that decoding may use for each pixel, copies included."""
_ENOUGH_BYTES = 32 << 20
"""Memory in bytes that an ordinary image takes while it is decoded."""
_PRELOADED = [
    "shardprep.writer.engine.worker_main",
    "shardprep.catalog.catalog",
    "shardprep.writer.reuse.reuse_encoder",
]
"""Modules of a task, to import once."""
_MOST_FOLDER_BYTES = 107 - len("/pymp-12345678/listener-12345678")
"""Bytes of the name of a folder in which sockets can lie."""
_ENVIRONMENT = {
    # numpy's own threads would not survive the fork, and nothing here multiplies matrices.
    "OPENBLAS_NUM_THREADS": "1",
    # Arrow's allocators reserve a gigabyte, which would count for the limit, or start a thread.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """0 is no limit."""

    item_s: float = 0.0
    """Seconds of the wall for reading, decoding and encoding one item."""
    worker_bytes: int = 0
    """Memory that a worker may allocate."""

    @classmethod
    def of(cls, item_s: float, max_pixels: int) -> WorkerLimits:
        """Return the limits for images of at most so many pixels."""
        return cls(item_s=item_s, worker_bytes=_WORKER_BYTES + _PIXEL_BYTES * max_pixels)


def _preparation(name: str) -> dict[str, object]:
    """Return what a new process is to be like, but for the program that it is started by."""
    found = spawn.get_preparation_data(name)
    return {key: value for key, value in found.items() if not key.startswith("init_main")}


def _without_program(popen: Any) -> Any:
    """Return the launcher of processes that do not import the program they are started by.

    That is what `multiprocessing` does for functions of the program. Ours are in modules, and a
    script without `if __name__ == "__main__"` would run again in each of them.
    """
    launch = popen._launch  # noqa: SLF001 - there is no public way
    ours = SimpleNamespace(**{**vars(spawn), "get_preparation_data": _preparation})
    changed = FunctionType(launch.__code__, {**launch.__globals__, "spawn": ours}, "_launch")
    return type("Popen", (popen,), {"_launch": changed})


class _SpawnedProcess(SpawnProcess):
    if os.name == "posix":
        _Popen = staticmethod(_without_program(popen_spawn_posix.Popen))


class SpawnedContext(SpawnContext):
    """Starts fresh processes; they do not import the program, but on Windows."""

    Process = _SpawnedProcess


if forkserver is not None:

    class _ForkedProcess(ForkServerProcess):
        _Popen = staticmethod(_without_program(popen_forkserver.Popen))

    class ForkedContext(ForkServerContext):
        """Starts processes by the server; they do not import the program."""

        Process = _ForkedProcess


def start_server() -> ForkServerContext | SpawnContext:
    """Start the server unless it runs; return what starts workers. It does not wait."""
    if forkserver is None:
        return SpawnedContext()
    context = ForkedContext()
    context.set_forkserver_preload(_PRELOADED)
    _shorten_sockets()
    added = {name: value for name, value in _ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(added)
    resource_tracker.ensure_running()  # else the server starts it, and that unblocks the signal
    try:
        with interrupts_blocked():
            forkserver.ensure_running()
    finally:
        for name in added:
            del os.environ[name]
    return context


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Start processes in here that do not hear of Ctrl-C, which is their parent's.

    Else it ends them with a traceback while they import, which takes a second. Ctrl-C reaches this
    process when the context ends. Windows has no such masks.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _shorten_sockets() -> None:
    """Let the sockets of `multiprocessing` lie in /tmp where the temporary folder's name is long.

    Batch systems make long ones, and the name of a socket has 107 bytes at most (unix(7)).
    """
    before = tempfile.gettempdir()
    if len(os.fsencode(before)) > _MOST_FOLDER_BYTES:
        tempfile.tempdir = "/tmp"  # noqa: S108 - a folder of our own is made in it
        try:
            util.get_temp_dir()  # which keeps it
        finally:
            tempfile.tempdir = before


def without_pandas() -> None:
    """Let pandas count as not installed in this process.

    Arrow imports it with its first array, to check for a pandas column: half a second for each
    worker, 9 % of a build of 2,000 photos.
    """
    if not any(isinstance(one, _NoPandas) for one in sys.meta_path):
        sys.meta_path.insert(0, _NoPandas())


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def hold_memory(num_bytes: int) -> None:
    """Let allocations beyond so many bytes fail in this process, which raises `MemoryError`."""
    if num_bytes and resource is not None:
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        if most == resource.RLIM_INFINITY or num_bytes < most:
            resource.setrlimit(resource.RLIMIT_DATA, (num_bytes, most))


def has_memory() -> bool:
    """Tell whether this process gets memory at the moment."""
    try:
        bytearray(_ENOUGH_BYTES)
    except MemoryError:
        return False
    return True


@contextlib.contextmanager
def limited(limits: WorkerLimits) -> Iterator[None]:
    """Prepare a process that was not started for it, and has other work afterwards.

    The memory that it holds already does not count. The clock is for `start_clock`; it is stopped
    in the end. Only for the main thread.
    """
    before = resource.getrlimit(resource.RLIMIT_DATA)
    handler = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    try:
        if limits.worker_bytes:
            hold_memory(_data_bytes() + limits.worker_bytes)
        yield
    finally:
        start_clock(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_DATA, before)


def keep_buffers() -> None:
    """Let malloc keep `_KEPT_BYTES` from now on (glibc)."""
    with contextlib.suppress(OSError, AttributeError):
        for parameter in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            ctypes.CDLL(None).mallopt(parameter, _KEPT_BYTES)


def start_clock(seconds: float) -> None:
    """End this process by SIGALRM unless the clock is started anew in time; 0 stops it.

    A signal without a handler ends a process also inside a C library that never returns.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def die_with_parent() -> None:
    """Let the system end this process when its parent ends, even by SIGKILL (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _data_bytes() -> int:
    """Return the memory that counts for the limit and is taken already."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmData:")[2].split()[0]) << 10


def cause_of_death(exit_code: int | None) -> str:
    """Return in words how a process ended: "killed by SIGSEGV", "exit code 1"."""
    if exit_code is None or exit_code >= 0:
        return f"exit code {exit_code}"
    return f"killed by {signal.Signals(-exit_code).name}"


def silence_stderr() -> None:
    """Hide what C libraries print: libtiff has pages to say of a bad file, a rejection one line."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
