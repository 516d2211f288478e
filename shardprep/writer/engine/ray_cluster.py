"""The connection to a running Ray cluster, and checks of its nodes.

Ray waits for minutes and prints pages if an address or a token is wrong. This module gives an error
of one line after seconds. A node with another libjpeg would write other bytes, and one that cannot
read the source would reject every image. So both are checked before the first image of each node.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardprep.errors import BuildError, OptionName, RecipeError, StorageError
from shardprep.processes.worker_process import interrupts_blocked, silence_stderr
from shardprep.source.byte_range import MemberError, PlainExtent, StoredExtent, ZipExtent
from shardprep.source.members import StackExtent
from shardprep.storage.folder import Folder
from shardprep.writer.plan.fingerprint import versions
from shardprep.writer.plan.shard_plan import ShardPlan

_ADDRESS = "RAY_ADDRESS"
_AUTO = "auto"
_KNOCK_S = 3.0
_BEFORE_IMPORT = {
    "RAY_NUM_REDIS_GET_RETRIES": "2",  # seconds of retries if a server refuses
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",  # else Ray prints the deaths of workers on stdout
}
"""Environment variables to set before Ray is imported, unless the user has set them."""

_LAST_WORDS = (
    "shardprep: ended at once, killed or with the Ray node of this machine; finished shards are "
    "kept: see that the node runs, and run the same command again"
)
_LISTEN = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "sys.stdin.read() or sys.stderr.write(sys.argv[1] + chr(10))"
)


class Node(NamedTuple):
    """A machine of the cluster that has at least one CPU for tasks."""

    id: str
    address: str
    num_cpus: int
    memory_bytes: int


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect to the cluster in the block, or use an existing connection and leave it open."""
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
    """Print a line on stderr if this process dies in the block. Ray's core may end it silently."""
    with interrupts_blocked():
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
    """Return the live nodes with at least one CPU for tasks; BuildError without such a node."""
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
    """Return HOST:PORT or "auto". If set, $RAY_ADDRESS replaces None and "auto", as in Ray."""
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
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK_S).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise BuildError(
            address,
            f"no Ray cluster answers ({str(why).lower()})",
            "check that it runs, and the port of its head (ray start prints the address)",
        ) from error


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Discard stderr in the block. No setting silences Ray's core while it connects."""
    sys.stderr.flush()
    stderr = os.dup(2)
    silence_stderr()
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _refused(address: str, said: str) -> BuildError:
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


_MOST_FILES = 16
_HEAD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Terms:
    """Facts about the machine that starts the build. Every node must match them."""

    versions: Mapping[str, str]
    samples: tuple[tuple[StoredExtent, str], ...]
    """Some items, each with the hash of its first bytes, or the reason why they cannot be read."""
    folder: Folder
    token: str


@contextlib.contextmanager
def terms(shards: Iterable[ShardPlan], folder: Folder) -> Iterator[Terms]:
    """Yield the terms of this machine, and keep their token file in `folder` during the block."""
    token = os.urandom(8).hex()
    name = _token_file(token)
    folder.write(name, token.encode())
    try:
        yield Terms(_versions(), tuple(_samples(shards)), folder, token)
    finally:
        folder.remove([name])


def difference(terms: Terms) -> str:
    """Return the first difference between this machine and the terms, in words; "" if none."""
    here = _versions()
    for name, wanted in terms.versions.items():
        if here.get(name) != wanted:
            return f"has {name} {here.get(name, 'None')}, where the build was started {wanted}"
    for extent, wanted in terms.samples:
        content = _content(extent)
        if content != wanted:
            what = "other bytes" if len(content) == len(wanted) else content
            return f"does not read {extent.file} as where the build was started ({what})"
    return _trouble_with(terms.folder, terms.token)


def unfit(address: str, problem: str) -> BuildError:
    """Return the error of a node that does not meet the terms."""
    return BuildError(
        f"node {address}",
        problem,
        f"all nodes need the same versions, and source and {OptionName('out')} on storage that all "
        "of them share",
    )


def _versions() -> dict[str, str]:
    major, minor, _ = platform.python_version_tuple()
    return {"Python": f"{major}.{minor}", **versions()}


def _samples(shards: Iterable[ShardPlan]) -> Iterator[tuple[StoredExtent, str]]:
    seen: set[str] = set()
    for shard in shards:
        for item in shard.items:
            extent = item.extent
            if isinstance(extent, StackExtent):
                extent = extent.members[0].extent
            if not isinstance(extent, PlainExtent | ZipExtent) or extent.file in seen:
                continue
            seen.add(extent.file)
            yield extent, _content(extent)
            if len(seen) == _MOST_FILES:
                return


def _content(extent: StoredExtent) -> str:
    try:
        return hashlib.sha256(extent.read_head(_HEAD_BYTES)).hexdigest()
    except MemberError as error:
        return str(error)


def _trouble_with(folder: Folder, token: str) -> str:
    name = _token_file(token)
    mine = _token_file(f"{token}-{os.urandom(8).hex()}")
    try:
        if folder.read(name) != token.encode():
            return f"does not see {folder}, which the build writes to"
        folder.write(mine, token.encode())
        was_kept = folder.read(mine) == token.encode()
        folder.remove([mine])
    except (OSError, StorageError) as error:
        return f"cannot write to {folder} ({error})"
    return "" if was_kept else f"does not find in {folder} what it has written there"


def _token_file(token: str) -> str:
    return f".machines-{token}.tmp"
