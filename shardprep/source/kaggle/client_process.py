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
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

from shardprep.errors import SourceError
from shardprep.source.kaggle import client
from shardprep.source.kaggle.client_error import ClientError
from shardprep.source.kaggle.credentials import config_folder, credentials
from shardprep.storage.space import shortage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardprep.source.kaggle.credentials import Credential
    from shardprep.source.kaggle.integrity import DownloadWatcher
    from shardprep.source.kaggle.ref import KaggleRef

_PARTIAL_SUFFIX = ".kaggle-partial"
"""Suffix of the note that the client keeps beside a file until it is complete."""
_POLL_S = 0.1
_MIN_SECRET = 8
_MAX_MESSAGE = 200


def run_client(
    ref: KaggleRef, folder: Path, watcher: DownloadWatcher, *, lock: int, silence_s: float
) -> None:
    """Let the client fetch an archive; it goes on with a partial file that still fits.

    Args:
        ref: the archive.
        folder: the folder for it, with nothing in it but what the client left there.
        watcher: told the size and every change of the file; where it raises, the child is ended.
        lock: descriptor of a locked file; the child holds it too, as long as it writes.
        silence_s: seconds without a sign of life after which the child is ended.

    Raises:
        ClientError: it failed, died or was silent.
        SourceError: the archive does not fit on the disk.

    """
    known = credentials()
    command = [sys.executable, "-P", "-m", client.__name__]
    command += [ref.kind, ref.slug, str(folder), "login" if known else "anonymous"]
    environment = dict(os.environ)
    if not config_folder().exists():  # or the import makes one, and fails where it cannot
        environment["KAGGLE_CONFIG_DIR"] = str(folder)
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
            _follow(child, ref, folder, watcher, silence_s)
        except ClientError as error:
            error.message = _masked(error.message, known)
            raise
        finally:
            child.kill()


def bytes_in(folder: Path) -> int:
    """Return how many bytes of the archive have arrived in a folder."""
    return sum(path.stat().st_size for path in arrived(folder))


def arrived(folder: Path) -> list[Path]:
    """Return the files that the client wrote, complete or not."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in paths if path.suffix != _PARTIAL_SUFFIX]


def check_space(folder: Path, name: str, num_bytes: int) -> None:
    """Check that a folder has room for bytes that are still to come."""
    if lacking := shortage(folder, num_bytes):
        hint = "free some space, or choose another place with --to or SHARDPREP_CACHE"
        raise SourceError(name, f"does not fit {folder}: {lacking}", hint)


def _follow(
    child: subprocess.Popen[bytes],
    ref: KaggleRef,
    folder: Path,
    watcher: DownloadWatcher,
    silence_s: float,
) -> None:
    assert child.stdout is not None  # noqa: S101 - asked for; says so to mypy
    last_sign = time.monotonic()
    num_bytes = bytes_in(folder)
    total: int | None = None
    in_body = False
    for report in _reports(child.stdout.fileno()):
        now = time.monotonic()
        before, num_bytes = num_bytes, bytes_in(folder)
        if report or num_bytes != before:
            last_sign = now
        if "size" in report:
            in_body, total = True, report["size"]
            watcher.begin("downloading", total)
        if "size" in report or num_bytes != before:
            check_space(folder, str(ref), max(0, (total or 0) - num_bytes))
            watcher.progress(num_bytes)
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
