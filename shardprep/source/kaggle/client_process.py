"""Run the kaggle client in a child process, which isolates its output, exits and hangs.

The child reports in lines of JSON. The client has no timeouts, so the parent ends a child that
makes no report and no progress for too long. The child exits by itself when the parent dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any

from shardprep.errors import OptionName, SourceError
from shardprep.progress import Watch
from shardprep.source.kaggle import client
from shardprep.source.kaggle.client_error import ClientError
from shardprep.source.kaggle.credentials import Credential, config_folder, credentials
from shardprep.source.kaggle.ref import KaggleRef
from shardprep.storage.space import shortage

_PARTIAL_SUFFIX = ".kaggle-partial"
_POLL_S = 0.1
_MIN_SECRET = 8
_MAX_MESSAGE = 200


@contextlib.contextmanager
def client_reports(
    order: Sequence[str],
    folder: Path,
    *,
    silence_s: float,
    lock: int | None = None,
    progress: Callable[[], object] = lambda: None,
) -> Iterator[Iterator[dict[str, Any]]]:
    """Start a child for an order of `client`, yield its reports, and kill it after the context.

    The iterator of reports yields {} while the child is silent, and ends after a report with
    "done". It raises ClientError if the child failed, died, or was silent for `silence_s` seconds
    while `progress` returned the same value. The child inherits `lock`, a file descriptor.
    """
    known = credentials()
    command = [sys.executable, "-P", "-m", client.__name__]
    command += ["login" if known else "anonymous", *order]
    environment = dict(os.environ)
    if not config_folder().exists():  # otherwise the import tries to create one
        environment["KAGGLE_CONFIG_DIR"] = str(folder)
    child = subprocess.Popen(  # noqa: S603 - a module of ours
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        pass_fds=() if lock is None else (lock,),
        start_new_session=True,
    )
    with child:
        try:
            yield _reports(child, silence_s, progress)
        except ClientError as error:
            error.message = _masked(error.message, known)
            raise
        finally:
            child.kill()


def receive(ref: KaggleRef, folder: Path, watcher: Watch, *, lock: int, silence_s: float) -> None:
    """Download an archive into `folder` with the client, which can continue a partial file.

    `folder` contains only files of the client. `lock` is for the child, as in `client_reports`.
    Raises ClientError, or SourceError if the archive does not fit on the disk.
    """
    order = ["download", ref.kind, ref.slug, str(folder)]
    num_bytes = bytes_in(folder)
    total: int | None = None
    in_body = False
    with client_reports(
        order, folder, silence_s=silence_s, lock=lock, progress=lambda: bytes_in(folder)
    ) as reports:
        try:
            for report in reports:
                before, num_bytes = num_bytes, bytes_in(folder)
                if "size" in report:
                    in_body, total = True, report["size"]
                    check_space(folder, str(ref), max(0, (total or 0) - num_bytes))
                    watcher.start("downloading", total, "bytes", num_bytes)
                elif num_bytes != before:
                    check_space(folder, str(ref), max(0, (total or 0) - num_bytes))
                    watcher.advance(num_bytes - before)
        except ClientError as fault:
            fault.in_body = in_body
            raise


def bytes_in(folder: Path) -> int:
    """Return the number of bytes downloaded into a folder."""
    return sum(path.stat().st_size for path in arrived(folder))


def arrived(folder: Path) -> list[Path]:
    """Return the downloaded files, complete or not, without the client's markers."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in paths if path.suffix != _PARTIAL_SUFFIX]


def check_space(folder: Path, name: str, num_bytes: int) -> None:
    """Raise SourceError about `name` if `num_bytes` more do not fit on the disk of a folder."""
    if lacking := shortage(folder, num_bytes):
        hint = f"free some space, or choose another SHARDPREP_CACHE (download: {OptionName('to')})"
        raise SourceError(name, f"does not fit into {folder}: {lacking}", hint)


def _reports(
    child: subprocess.Popen[bytes], silence_s: float, progress: Callable[[], object]
) -> Iterator[dict[str, Any]]:
    assert child.stdout is not None  # noqa: S101 - a PIPE; for mypy
    last_sign, before = time.monotonic(), progress()
    for report in _lines(child.stdout.fileno()):
        now, sign = time.monotonic(), progress()
        if report or sign != before:
            last_sign, before = now, sign
        if "fault" in report:
            raise ClientError(**report["fault"])
        yield report
        if "done" in report:
            return
        if now - last_sign > silence_s:
            raise ClientError("silent", f"no byte for {silence_s:,.0f} s")
    raise ClientError("died", f"exit code {child.wait()}")


def _lines(pipe: int) -> Iterator[dict[str, Any]]:
    """Yield the reports of the child, and {} after every `_POLL_S` seconds of silence."""
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
