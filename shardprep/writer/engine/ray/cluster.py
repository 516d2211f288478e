"""The connection to a Ray cluster that runs already.

Ray waits for minutes and prints pages if an address or a token is wrong; here one line
follows after seconds.

"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from shardprep.errors import BuildError, OptionName, RecipeError
from shardprep.writer.engine.worker_process import silence_stderr

_ADDRESS = "RAY_ADDRESS"
_AUTO = "auto"
_KNOCK_S = 3.0
_BEFORE_IMPORT = {
    "RAY_NUM_REDIS_GET_RETRIES": "2",  # seconds during which it tries a server that refuses it
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",  # else Ray prints the deaths of workers on stdout
}
"""Variables that Ray reads when it is imported; the user's values win."""

_LAST_WORDS = (
    "shardprep: ended at once, killed or with the Ray node of this machine; finished shards are "
    "kept: see that the node runs, and run the same command again"
)
_LISTEN = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "sys.stdin.read() or sys.stderr.write(sys.argv[1] + chr(10))"
)


class Node(NamedTuple):
    """A machine of the cluster that can run tasks."""

    id: str
    address: str
    num_cpus: int
    """Processors for tasks."""
    memory_bytes: int


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect to the cluster of an address from `wanted_address`.

    An existing connection is used, and is not closed.

    Raises:
        BuildError: the cluster does not answer, or refuses.

    """
    ray = _ray()
    if ray.is_initialized():
        yield
        return
    if address != _AUTO:
        _knock(address)
    try:
        with _silent():
            ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise _refused(address, f"{error} {error.__cause__ or ''}") from error
    with last_words():
        try:
            yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def last_words() -> Iterator[None]:
    """Print a line on stderr if this process ends before the block does.

    Ray's core ends its process without a message if it has lost its own node. So a second process
    waits until the block ends, or until this process is silent.

    """
    beside = subprocess.Popen(  # noqa: S603 - words of ours
        [sys.executable, "-I", "-S", "-c", _LISTEN, _LAST_WORDS],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        with contextlib.suppress(BrokenPipeError):
            beside.communicate(b"well")


def nodes() -> list[Node]:
    """Return the nodes that are alive and have a processor for tasks; BuildError if none has."""
    alive = [
        Node(
            node["NodeID"],
            node["NodeManagerAddress"],
            int(node["Resources"].get("CPU", 0)),
            int(node["Resources"].get("memory", 0)),
        )
        for node in _ray().nodes()
        if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
    ]
    if not alive:
        raise BuildError(
            "the Ray cluster",
            "has no node with a processor for tasks",
            "add one, and run the same command again",
        )
    return alive


def wanted_address(address: str | None) -> str:
    """Return the address to connect to: HOST:PORT, or "auto".

    None means $RAY_ADDRESS, and so does "auto" if that is set, as in Ray itself.

    Raises:
        RecipeError: no address is given, or its form is wrong.

    """
    where: str | OptionName = OptionName("ray_address")
    text = address
    if text in (None, "", _AUTO) and os.environ.get(_ADDRESS):
        where, text = _ADDRESS, os.environ[_ADDRESS]
    if not text:
        raise RecipeError(
            OptionName("engine", "ray"),
            "no cluster is named",
            f"give {OptionName('ray_address')} HOST:PORT, or set {_ADDRESS}; none is started here",
        )
    if text == _AUTO:
        return text
    host, colon, port = text.rpartition(":")
    if "://" in text or not (colon and host and port.isdecimal()):
        raise RecipeError(
            where,
            f"{text!r} is not HOST:PORT",
            "give the address of the cluster's head, such as 10.0.0.5:6379, on one of its nodes; "
            "from elsewhere: ray job submit",
        )
    return text


def _knock(address: str) -> None:
    """Check that somebody listens: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK_S).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise BuildError(
            address,
            f"no Ray cluster answers ({str(why).lower()})",
            "is it up, and is this the port of its head (ray start prints both)?",
        ) from error


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Hide what Ray's core prints while it connects, which no setting does."""
    sys.stderr.flush()
    stderr = os.dup(2)
    silence_stderr()
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _refused(address: str, said: str) -> BuildError:
    """Return the error of a connection as one line of Ray's message."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if "oken" in said and "uthenticat" in said:
        return BuildError(
            address,
            "the cluster wants a token, and this machine has none or another one",
            "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to the cluster's",
        )
    if "Version mismatch" in said:
        cluster, here = (
            " and ".join(line for line in part if line.startswith(("Ray:", "Python:")))
            for part in (lines[:3], lines[3:])
        )
        return BuildError(
            address,
            f"the cluster has {cluster.replace(':', '')}, this machine {here.replace(':', '')}",
            "install the cluster's versions here, or: ray job submit",
        )
    if address == _AUTO:
        return BuildError(
            OptionName("ray_address", "auto"),
            "no Ray cluster runs on this machine",
            "give HOST:PORT",
        )
    return BuildError(
        address,
        f"Ray cannot connect ({lines[0] if lines else 'no reason given'})",
        "see: ray status",
    )


def _ray() -> Any:
    for name, value in _BEFORE_IMPORT.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ModuleNotFoundError as error:
        raise BuildError(
            OptionName("engine", "ray"), "needs Ray", "pip install 'shardprep[ray]'"
        ) from error
    return ray
