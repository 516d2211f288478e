"""Other processes: programs that tests start, and what /proc shows of them.

A `Program` is forked from a process that has imported TensorFlow, torch, JAX or the writer, and has
used none of it: the import takes seconds, a fork no time. The processes of a suite that runs in
several share those that fork. Tests of what a program imports, and of how it ends, start it anew.
"""

import atexit
import contextlib
import functools
import gc
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Client, Listener
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from tests.support import costs
from tests.support.paths import ROOT
from tests.support.torchvision import import_torchvision


def members(group: int) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, of = (place / "stat").read_text().rsplit(")", 1)[1].split()[:3]
            if int(of) == group and state != "Z":
                found.append(int(place.name))
    return found


def is_gone(group: int) -> bool:
    return not members(group)


def workers(group: int) -> list[int]:
    """Return the processes forked from the server of a group."""
    servers = {number for number in members(group) if _is_server(number)}
    return [number for number in servers if _parent(number) in servers]


def has_started(number: int) -> bool:
    """Tell whether a Python process has imported a compiled module that is not its own.

    The command line does so first of all, once it takes Ctrl-C; before, the interpreter looks for
    what is installed, and prints a traceback of that if it is interrupted.
    """
    with contextlib.suppress(OSError):
        maps = Path(f"/proc/{number}/maps").read_text()
        return re.search(r"/(site|dist)-packages/.*\.so$", maps, re.MULTILINE) is not None
    return False


def servers(group: int) -> list[int]:
    """Return the running server that forks the workers of a group."""
    return [n for n in members(group) if _is_server(n) and not _is_server(_parent(n))]


def _is_server(number: int) -> bool:
    """Return whether a process is a fork server, or was forked from one."""
    with contextlib.suppress(OSError):
        return "forkserver" in Path(f"/proc/{number}/cmdline").read_text()
    return False


def _parent(number: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return 0


def wait_until(is_so: Callable[[], Any], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.01)


def written(folder: Path, pattern: str) -> list[Path]:
    """Return the files and folders below a folder to which another process writes.

    `Path.glob` fails, on Python 3.11 and 3.12, if a folder gets another name while it looks into
    it, as an unfinished dataset does at its end.
    """
    found = glob.glob(pattern, root_dir=folder, include_hidden=True)  # noqa: PTH207 - see above
    return [folder / name for name in found]


ONE_CORE = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])"
"""Code with which a program runs transforms itself, because torchvision may load only there."""
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""torch reads these variables when it is imported; sums then have one order."""
Done = subprocess.CompletedProcess[str]


class Program:
    def __init__(
        self, code: str, *arguments: object, framework: str = "tensorflow", **environment: str
    ) -> None:
        """Begin it, with these arguments; some variables are set for it beside those of here.

        `framework` is imported already: "tensorflow", "torch", "torchvision" (and torch), "jax" or,
        for builds, "none".
        """
        self._folder = Path(tempfile.mkdtemp())
        self._arguments = ["-c", *map(str, arguments)]
        task = {
            "folder": str(self._folder),
            "code": textwrap.dedent(code),
            "argv": self._arguments,
            "environment": {**os.environ, **environment},
        }
        self._server_pid = _begun(framework, json.dumps(task).encode())

    @property
    def pid(self) -> int:
        place = self._folder / "pid"
        wait_until(lambda: place.exists() and place.read_text())
        return int(place.read_text())

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def interrupt(self) -> float:
        """Send it SIGINT; return the processor seconds that it had used until then, to a tick.

        It stands still meanwhile: it uses none because this process is not let run.
        """
        stat = Path("/proc", str(self.pid), "stat")
        self.signal(signal.SIGSTOP)
        until = time.monotonic() + 120
        while (fields := stat.read_text().rpartition(")")[2].split())[0] not in "TZ":
            assert time.monotonic() < until, "it does not stop"
            time.sleep(0.001)
        self.signal(signal.SIGINT)
        self.signal(signal.SIGCONT)
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def wait_for(self, text: str, number: int = 1, *, in_errors: bool = False) -> None:
        """Wait until the program has printed a text `number` times, or has ended."""
        until = time.monotonic() + 120
        out = self._folder / ("errors" if in_errors else "out")
        while not out.exists() or out.read_text().count(text) < number:
            assert time.monotonic() < until, f"{text!r} was not printed {number} times"
            if self.code is not None:
                return
            time.sleep(0.002)

    @property
    def code(self) -> int | None:
        """The exit code (negative: signal), or None while it runs."""
        code = self._folder / "code"
        return int(code.read_text()) if code.exists() else None

    def wait(self, timeout_s: float = 240) -> Done:
        """Wait for the end; return the output and the exit code."""
        until = time.monotonic() + timeout_s
        while (code := self.code) is None:
            assert _lives(self._server_pid), "the process that forks has ended"
            if time.monotonic() > until:
                self.signal(signal.SIGKILL)
                raise subprocess.TimeoutExpired(self._arguments, timeout_s)
            time.sleep(0.01)
        out, errors = ((self._folder / name).read_text() for name in ("out", "errors"))
        done = Done(self._arguments, code, out, errors)
        self.cpu_s = float((self._folder / "seconds").read_text())
        costs.add_program(self.cpu_s)
        shutil.rmtree(self._folder)
        return done


def run_program(code: str, *arguments: object, **environment: str) -> str:
    """Run a program; return its stdout. Fails if the program fails."""
    done = Program(code, *arguments, **environment).wait()
    assert done.returncode == 0, done.stderr
    return done.stdout


_shared: dict[str, str] = {}
"""Address of the process that starts programs for all test processes, if any."""


@functools.cache
def share_servers() -> str:
    """Start programs for other processes while this one lives; return the address."""
    listener = Listener(family="AF_UNIX", backlog=16)

    def begin() -> None:
        while True:
            # One that ends before it has its answer is no reason to leave the others without.
            with contextlib.suppress(OSError, EOFError), listener.accept() as connection:
                framework, task = connection.recv()
                connection.send(_sent(framework, task))

    threading.Thread(target=begin, name="programs", daemon=True).start()
    return str(listener.address)


def use_servers(address: str) -> None:
    """Use the process at this address to start programs."""
    _shared["address"] = address


def _begun(framework: str, task: bytes) -> int:
    if not _shared:
        return _sent(framework, task)
    with Client(_shared["address"], family="AF_UNIX") as connection:
        connection.send((framework, task))
        return cast("int", connection.recv())


def _sent(framework: str, task: bytes) -> int:
    server = _server(framework)
    assert server.stdin
    server.stdin.write(task + b"\n")
    server.stdin.flush()
    return server.pid


def _lives(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@functools.cache
def _server(framework: str) -> subprocess.Popen[bytes]:
    """Return the process that has imported a framework and forks."""
    server = subprocess.Popen(
        [sys.executable, "-m", __name__, framework],
        cwd=ROOT,
        env={
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "",
            "JAX_PLATFORMS": "cpu",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "true",  # it compiles longer than it computes
            **(_ONE_THREAD if framework.startswith("torch") else {}),
        },
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )

    def end() -> None:
        assert server.stdin
        server.stdin.close()
        server.wait()

    atexit.register(end)
    return server


def _serve(framework: str) -> None:
    skip_fsync()
    gc.disable()
    sys.modules["sklearn"] = cast("Any", None)  # Keras would take a second to import it
    if framework == "none":
        from tests.writer.faulty import import_once

        import_once()
    elif framework == "jax":
        import jax  # noqa: F401 - it starts no thread before it is used

        import shardprep.reader.arrays.batches
    elif framework.startswith("torch"):
        import torch

        import shardprep.reader.arrays.batches

        if framework == "torchvision":
            import_torchvision()

        torch.optim.AdamW(torch.nn.Linear(1, 1).parameters())  # the first imports as much again
    else:
        import keras  # noqa: F401 - these take seconds
        import tensorflow as tf  # noqa: F401

        import shardprep.reader.augment
        import shardprep.reader.resume_in_epoch
        import shardprep.reader.tf.pipeline  # noqa: F401

    gc.freeze()  # a collection in a program would copy every page that it looks at
    gc.enable()
    for line in sys.stdin.buffer:
        if os.fork() == 0:
            _keep(json.loads(line))
            os._exit(0)
        while _any_ended():
            pass
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def _any_ended() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG) != (0, 0)
    except ChildProcessError:
        return False


def _keep(task: dict[str, Any]) -> None:
    """Fork a program, wait for its end, and record the result."""
    folder = Path(task["folder"])
    pid = os.fork()
    if pid == 0:
        _run(folder, task)
    (folder / "pid").write_text(str(pid))
    _, status, used = os.wait4(pid, 0)
    (folder / "seconds").write_text(str(used.ru_utime + used.ru_stime))
    (folder / "code.new").write_text(str(os.waitstatus_to_exitcode(status)))
    (folder / "code.new").rename(folder / "code")


def _run(folder: Path, task: dict[str, Any]) -> None:
    for number, name in ((1, "out"), (2, "errors")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(task["environment"])
    sys.argv = task["argv"]
    main = sys.modules["__main__"] = ModuleType("__main__")
    code = 0
    try:
        exec(task["code"], vars(main))
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def loaded(code: str) -> set[str]:
    """Return the modules that code imports in a new process."""
    program = f"import sys\n{code}\nprint(*sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return {*out.stdout.split()}


def skip_fsync() -> None:
    """Let `os.fsync` and `os.sync` do nothing: only a power cut could show what they do.

    None is tried. A build calls the first 27 times, and waits each time.
    """

    def nothing(fd: object = None) -> None:
        del fd

    os.fsync = os.sync = nothing


if __name__ == "__main__":
    _serve(sys.argv[1])
