"""One run of the client in a child process: what it prints, exits or hangs on stays there.

The child says how it goes in lines of JSON. The client has no timeouts, so the parent watches the
growing file too, and kills a child that brings nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from multiprocessing import connection
from typing import TYPE_CHECKING, Any, Protocol

from shardprep.source.kaggle import client
from shardprep.source.kaggle.credentials import config_folder, credentials
from shardprep.source.kaggle.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardprep.source.kaggle.credentials import Credential

_PARTIAL_SUFFIX = ".kaggle-partial"
"""Suffix of the note that the client keeps beside a file until it is complete."""
_POLL_S = 0.1
_MIN_SECRET = 8
_MAX_MESSAGE = 200


@dataclass(frozen=True, slots=True)
class Order:
    """One download: the archive, and the folder for it."""

    kind: str
    """"competition" or "dataset"."""
    slug: str
    folder: Path
    """Exists, and holds nothing but what the client left there."""


class Listener(Protocol):
    """Told how a download goes; may raise, which ends it."""

    def size(self, num_bytes: int | None) -> None:
        """The file is about to be written and will have so many bytes; None: unknown."""

    def progress(self, num_bytes: int) -> None:
        """The file has so many bytes now."""


def run_client(order: Order, listener: Listener, *, lock: int, silence_s: float) -> None:
    """Let the client fetch the order; it goes on with a partial file that still fits.

    Args:
        order: the archive and the folder for it.
        listener: told the size and every change of the file.
        lock: descriptor of a locked file; the child holds it too, as long as it writes.
        silence_s: seconds without a sign of life after which the child is ended.

    Raises:
        ClientError: it failed, died or was silent.

    """
    known = credentials()
    command = [sys.executable, "-P", "-m", client.__name__]
    command += [order.kind, order.slug, str(order.folder), "login" if known else "anonymous"]
    environment = dict(os.environ)
    if not config_folder().exists():  # or the import makes one, and fails where it cannot
        environment["KAGGLE_CONFIG_DIR"] = str(order.folder)
    child = subprocess.Popen(  # noqa: S603 - a module of ours
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        pass_fds=(lock,),
        start_new_session=True,
    )
    with child:
        try:
            _follow(child, order.folder, listener, silence_s)
        except ClientError as error:
            error.message = _masked(error.message, known)
            raise
        finally:
            child.kill()


def bytes_in(folder: Path) -> int:
    """Return how many bytes of the archive have arrived in the folder of an order."""
    return sum(path.stat().st_size for path in arrived(folder))


def arrived(folder: Path) -> list[Path]:
    """Return the files that the client wrote, complete or not."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in paths if path.suffix != _PARTIAL_SUFFIX]


def _follow(
    child: subprocess.Popen[bytes], folder: Path, listener: Listener, silence_s: float
) -> None:
    assert child.stdout is not None  # noqa: S101 - asked for; says so to mypy
    last_sign = time.monotonic()
    num_bytes = bytes_in(folder)
    in_body = False
    for report in _reports(child.stdout.fileno()):
        now = time.monotonic()
        before, num_bytes = num_bytes, bytes_in(folder)
        if report or num_bytes != before:
            last_sign = now
        if "size" in report:
            in_body = True
            listener.size(report["size"])
            listener.progress(num_bytes)
        elif num_bytes != before:
            listener.progress(num_bytes)
        if "fault" in report:
            raise ClientError(**report["fault"], in_body=in_body)
        if "done" in report:
            return
        if now - last_sign > silence_s:
            raise ClientError("silent", f"no byte for {silence_s:,.0f} s", in_body=in_body)
    raise ClientError("died", f"exit code {child.wait()}", in_body=in_body)


def _reports(pipe: int) -> Iterator[dict[str, Any]]:
    """Yield what the child says, and {} each time it has said nothing for a moment."""
    text = b""
    while True:
        if not connection.wait([pipe], _POLL_S):
            yield {}
            continue
        data = os.read(pipe, 1 << 16)
        if not data:
            return
        *lines, text = (text + data).split(b"\n")
        yield from map(json.loads, lines)


def _masked(message: str, known: list[Credential]) -> str:
    for credential in known:
        for secret in credential.secrets:
            if len(secret) >= _MIN_SECRET:
                message = message.replace(secret, "***")
    line = " ".join(message.split())[:_MAX_MESSAGE]
    return "".join(letter for letter in line if letter.isprintable())
