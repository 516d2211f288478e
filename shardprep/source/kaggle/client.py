"""The child process, run as `python -P -m`: the unmodified kaggle client, for one order.

One rule: `kaggle` is imported here alone, below `main`, and the parent learns of it one line of
JSON at a time: {"alive": …}, {"size": …}, then {"done": …} or {"fault": …}.
"""

from __future__ import annotations

import email.utils
import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Say = Callable[..., None]

_CHUNK_BYTES = 1 << 16
"""Written at once, so a slow line is seen to move; the client's own 1 MiB can take minutes."""


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
