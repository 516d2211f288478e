"""The kaggle client, in a process of its own: what it prints, exits or hangs on stays there.

One rule: `kaggle` is imported by the child alone, below `main`, and the parent learns of it one
line of JSON at a time: {"alive": …}, {"size": …}, then {"done": …} or {"fault": …}. The client has
no timeouts, so the parent watches the growing file and kills a child that brings nothing.
"""

from __future__ import annotations

import email.utils
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Say = Callable[..., None]

_PARTIAL_SUFFIX = ".kaggle-partial"
"""Of the note that the client keeps beside a file until it is complete."""
_POLL_S = 0.1
_CHUNK_BYTES = 1 << 16
"""Written at once, so a slow line is seen to move; the client's own 1 MiB can take minutes."""
_MIN_SECRET = 8
_MAX_MESSAGE = 200


@dataclass(frozen=True, slots=True)
class Credential:
    """One way in which Kaggle credentials are given on this machine."""

    source: str
    """What a person would change: a variable or a file."""
    secrets: tuple[str, ...] = field(repr=False)


def credentials() -> list[Credential]:
    """Return the credentials in the order of the client, which takes the first and only that."""
    return [*_tokens(), *_key_pairs(), *_logins()]


def _tokens() -> Iterator[Credential]:
    env = os.environ
    if env.get("KAGGLE_KERNEL_RUN_TYPE") and env.get("KAGGLE_DATA_PROXY_URL"):
        yield from _token_file(env.get("KAGGLE_API_V1_TOKEN", ""), "KAGGLE_API_V1_TOKEN")
    if token := env.get("KAGGLE_API_TOKEN"):
        if os.path.exists(token):  # noqa: PTH110 - Path.exists raises where a token is too long
            yield from _token_file(token, "KAGGLE_API_TOKEN")
        else:
            yield Credential("KAGGLE_API_TOKEN", (token,))
    for name in ("access_token", "access_token.txt"):
        yield from _token_file(str(Path.home() / ".kaggle" / name), f"~/.kaggle/{name}")


def _token_file(path: str, source: str) -> Iterator[Credential]:
    token = _text(Path(path)).strip() if path else ""
    if token:
        yield Credential(source, (token,))


def _key_pairs() -> Iterator[Credential]:
    """The user name and the key can come from two places; variables win one by one."""
    user, key = os.environ.get("KAGGLE_USERNAME"), os.environ.get("KAGGLE_KEY")
    if user and key:
        yield Credential("KAGGLE_USERNAME and KAGGLE_KEY", (key,))
    path = _config_folder() / "kaggle.json"
    kept = _json(path)
    if (user or kept.get("username")) and kept.get("key"):
        yield Credential(_short(path), (str(kept["key"]),))
    elif key and not user and kept.get("username"):
        yield Credential(f"KAGGLE_KEY and {_short(path)}", (key,))


def _logins() -> Iterator[Credential]:
    path = Path.home() / ".kaggle" / "credentials.json"
    kept = _json(path)
    if kept.get("refresh_token"):
        secrets = tuple(
            str(kept[name]) for name in ("refresh_token", "access_token") if name in kept
        )
        yield Credential(_short(path), secrets)


def _config_folder() -> Path:
    if folder := os.environ.get("KAGGLE_CONFIG_DIR"):
        return Path(folder)
    old = Path.home() / ".kaggle"
    if old.exists():
        return old
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config", "kaggle")


def _json(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(_text(path) or "{}")
    except ValueError:
        return {}
    return kept if isinstance(kept, dict) else {}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _short(path: Path) -> str:
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


FaultKind = Literal[
    "http", "connection", "silent", "credentials", "import", "disk", "client", "died"
]


class ClientError(Exception):
    """One attempt of the client came to nothing; `message` is one line and holds no secret."""

    def __init__(
        self,
        kind: FaultKind,
        message: str = "",
        *,
        status: int = 0,
        retry_after_s: float | None = None,
        in_body: bool = False,
    ) -> None:
        """`in_body`: the client had begun to write the file."""
        super().__init__(kind, message)
        self.kind = kind
        self.message = message
        self.status = status
        self.retry_after_s = retry_after_s
        self.in_body = in_body

    @property
    def is_passing(self) -> bool:
        """Whether the same request may well succeed a little later."""
        if self.kind in ("connection", "silent"):
            return True
        if self.kind == "http" and not self.in_body:
            return self.status in (408, 429) or self.status >= 500
        return self.in_body and self.kind in ("http", "client")

    @property
    def spoils_file(self) -> bool:
        """Whether what lies on the disk may be no longer what the server sent.

        kaggle 2.2.4 writes the body of an error over the partial file, and keeps its note that the
        file is good to go on with.
        """
        return self.in_body and self.kind in ("http", "client")


@dataclass(frozen=True, slots=True)
class Order:
    """What the client is to fetch, and where to."""

    kind: str
    """"competition" or "dataset"."""
    slug: str
    folder: Path
    """Exists, and holds nothing but what the client left there."""


class Listener(Protocol):
    """Told how a download goes; may raise, which ends it."""

    def size(self, num_bytes: int | None) -> None:
        """The file is about to be written and will have so many bytes; None: nobody knows."""

    def progress(self, num_bytes: int) -> None:
        """The file has so many bytes now."""


def run_client(order: Order, listener: Listener, *, lock: int, silence_s: float) -> None:
    """Let the client fetch the order; it goes on with a partial file that still fits.

    Args:
        order: what and where to.
        listener: told the size and every change of the file.
        lock: a locked file's descriptor, held by the child too: as long as one of us writes.
        silence_s: how long it may be that nothing happens.

    Raises:
        ClientError: it failed, died or was silent.

    """
    known = credentials()
    command = [sys.executable, "-P", "-m", __name__, order.kind, order.slug, str(order.folder)]
    environment = dict(os.environ)
    if not _config_folder().exists():  # or the import makes one, and fails where it cannot
        environment["KAGGLE_CONFIG_DIR"] = str(order.folder)
    child = subprocess.Popen(  # noqa: S603 - this very module
        [*command, "login" if known else "anonymous"],
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


def main(arguments: list[str]) -> None:
    """Be the child: fetch one order and report on the pipe that was stdout."""
    say = _take_stdout()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _fetch(say, *arguments)
    except SystemExit:  # how the client says that it has no credentials
        say(fault={"kind": "credentials"})
    except Exception as error:
        say(fault=_fault(error))
    else:
        say(done=True)


def _take_stdout() -> Say:
    """Keep the pipe for our lines alone; the client prints to nowhere."""
    pipe = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)

    def say(**facts: object) -> None:
        os.write(pipe, json.dumps(facts).encode() + b"\n")

    say(alive="started")
    return say


def _end_with_parent() -> None:
    """Die when the parent has: its end of our stdin closes, however it died."""
    while os.read(0, 1):
        pass
    os._exit(1)


def _fetch(say: Say, kind: str, slug: str, folder: str, login: str) -> None:
    from kaggle.api.kaggle_api_extended import (  # type: ignore[import-untyped] # noqa: PLC0415
        KaggleApi,
    )

    say(alive="imported")

    class Api(KaggleApi):  # type: ignore[misc]
        """The client with its own retries off: they use a signed URL after it has expired.

        A retry of ours asks for a new URL, and goes on with the same partial file.
        """

        def download_file(self, response: Any, *args: Any, **kwargs: Any) -> None:
            length = response.headers.get("Content-Length")
            say(size=int(length) if length else None)
            settings = {"max_retries": 0, "chunk_size": _CHUNK_BYTES}
            super().download_file(response, *args, **{**kwargs, **settings})

    api = Api()
    if login == "login":
        api.authenticate()
    if kind == "competition":
        api.competition_download_files(slug, path=folder, quiet=True)
    else:
        api.dataset_download_files(slug, path=folder, quiet=True, unzip=False)


def _fault(error: Exception) -> dict[str, Any]:
    """Describe an exception without its text where that may hold a signed URL."""
    if isinstance(error, ImportError):
        return {"kind": "import", "message": str(error)}
    import requests  # noqa: PLC0415 - here in the child only
    import urllib3  # noqa: PLC0415

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return _http_fault(error.response)
    lost = (requests.RequestException, urllib3.exceptions.HTTPError, ConnectionError, TimeoutError)
    if isinstance(error, lost):
        return {"kind": "connection", "message": _innermost(error)}
    if isinstance(error, OSError):
        return {"kind": "disk", "message": f"{error.strerror}: {error.filename}"}
    text = f": {error}" if type(error) is ValueError else ""
    return {"kind": "client", "message": type(error).__name__ + text}


def _http_fault(response: Any) -> dict[str, Any]:
    try:
        said = response.json()
    except (ValueError, RuntimeError):  # no JSON; the body of a stream is gone
        said = {}
    said = said if isinstance(said, dict) else {}
    status = response.status_code if response.status_code >= 400 else said.get("code", 0)
    message = str(said.get("message") or response.reason)
    wait = _seconds(response.headers.get("Retry-After", ""))
    return {"kind": "http", "status": status, "message": message, "retry_after_s": wait}


def _seconds(retry_after: str) -> float | None:
    """Read a Retry-After header: seconds, or the date until which to wait."""
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return None


def _innermost(error: BaseException) -> str:
    """Return what the operating system said, without the URL that the layers above put around."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return getattr(error, "strerror", None) or type(error).__name__


if __name__ == "__main__":
    main(sys.argv[1:])
