"""Processes of the kaggle client that are forked from one which has imported it.

To import the client takes half a second of a processor, and an upload runs it four times. Such a
process does the same as `python -m shardprep.source.kaggle.client`, except that the folder of
settings is fixed: the client looks it up when it is imported.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

import pytest

from tests.source.kaggle_server import Archive, KaggleServer

_FORKER = """
import contextlib, json, os, socket, sys
from shardprep.source.kaggle import client
client._api(lambda **_: None, "anonymous")
asked = socket.socket(fileno=int(sys.argv[1]))
while True:
    data, (stdin, stdout), _, _ = socket.recv_fds(asked, 1 << 20, 2)
    order = json.loads(data)
    child = os.fork()
    if child == 0:
        os.dup2(stdin, 0), os.dup2(stdout, 1)
        os.closerange(3, 1000)
        os.environ.clear()
        os.environ.update(order["environment"])
        try:
            client.main(order["arguments"])
        finally:
            os._exit(0)
    os.close(stdin), os.close(stdout)
    watched = os.pidfd_open(child)  # before it is waited for, though it may have ended
    socket.send_fds(asked, [b"."], [watched])
    os.close(watched)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
"""


class ForkedClient:
    """Replaces `subprocess.Popen` of the client."""

    started: list[ForkedClient] = []  # noqa: RUF012 - of this process

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], **_: Any) -> None:
        arguments = [*command[command.index("-m") + 2 :]]
        stdin, self._stdin = os.pipe()
        out, stdout = os.pipe()
        self.stdout: IO[bytes] = os.fdopen(out, "rb", buffering=0)
        order = json.dumps({"arguments": arguments, "environment": dict(env)}).encode()
        socket.send_fds(_forker(), [order], [stdin, stdout])
        self._pidfd = socket.recv_fds(_forker(), 1, 1)[1][0]
        os.close(stdin)
        os.close(stdout)
        self.has_ended = False
        self.started.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        ended = select.poll()  # takes any number of open files
        ended.register(self._pidfd, select.POLLIN)
        self.has_ended = bool(ended.poll(10_000))
        self.stdout.close()
        os.close(self._stdin)
        os.close(self._pidfd)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait(self) -> int:
        """Return any exit code: the real one is unknown."""
        return -signal.SIGKILL


@functools.cache
def _forker() -> socket.socket:
    ours, its = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _FORKER, str(its.fileno())],
        pass_fds=(its.fileno(),),
        stdout=subprocess.DEVNULL,
        env={
            **os.environ,
            "KAGGLE_API_ENVIRONMENT": "LOCALHOST",
            "KAGGLE_CONFIG_DIR": tempfile.mkdtemp(),
        },
    )
    its.close()
    atexit.register(process.wait)
    atexit.register(process.kill)
    return ours


@contextlib.contextmanager
def at_kaggle(
    folder: Path, monkeypatch: pytest.MonkeyPatch, archives: dict[str, Archive] | None = None
) -> Iterator[tuple[KaggleServer, list[ForkedClient]]]:
    """Let this process have an account at a server, with `home` and `cache` in a folder."""
    for name in list(os.environ):
        if name.startswith(("KAGGLE_", "XDG_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SHARDPREP_CACHE", str(folder / "cache"))
    (folder / "home").mkdir()
    with KaggleServer(archives or {}) as server:
        for name, value in server.environment(folder / "home").items():
            monkeypatch.setenv(name, value)
        yield server, fork_clients(monkeypatch)


def fork_clients(monkeypatch: pytest.MonkeyPatch) -> list[ForkedClient]:
    """Let each client be forked; return all of them, the last one last."""
    from shardprep.source.kaggle import client_process

    started: list[ForkedClient] = []
    monkeypatch.setattr(ForkedClient, "started", started)
    module = types.SimpleNamespace(**{**vars(subprocess), "Popen": ForkedClient})
    monkeypatch.setattr(client_process, "subprocess", module)
    return started
