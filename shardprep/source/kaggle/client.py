"""The child process (`python -P -m`) that runs one order (see `main`) with the kaggle client.

The child reports to the parent (`client_process`) in lines of JSON on the pipe that was its stdout:
{"alive": …}, {"size": …}, {"sent": …}, {"state": …}, then {"done": …} or {"fault": …}. The fault
has the fields of a `ClientError`. `kaggle` prints, exits and reads settings when it is imported. So
`main` first replaces stdout, and functions import `kaggle` later. For uploads, the client repeats
failed requests by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable
from typing import Any

from shardprep.source.kaggle.client_error import ClientError

_Say = Callable[..., None]
"""Sends its keyword arguments to the parent as a line of JSON."""

_CHUNK_BYTES = 1 << 16
"""Bytes per write. With the client's 1 MiB, a slow download may show no progress for minutes."""


def main(arguments: list[str]) -> None:
    """Run one order in the child process, and report on the pipe that was stdout.

    `arguments` are "login" or "anonymous", then a name in `_ORDERS` and arguments of its function.
    """
    say = _take_stdout()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    login, order, *rest = arguments
    try:
        _ORDERS[order](say, _api(say, login), *rest)
    except SystemExit:  # the client exits if it has no credentials
        say(fault={"kind": "credentials"})
    except Exception as error:
        say(fault=_fault_of(error))
    else:
        say(done=True)


def _take_stdout() -> _Say:
    """Return a function that writes to the pipe. All other output to stdout is discarded."""
    pipe = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)

    def say(**facts: object) -> None:
        os.write(pipe, json.dumps(facts).encode() + b"\n")

    say(alive="started")
    return say


def _end_with_parent() -> None:
    """Exit when stdin is closed, because then the parent has died."""
    while os.read(0, 1):
        pass
    os._exit(1)


def _api(say: _Say, login: str) -> Any:
    """Return a Kaggle client, logged in unless `login` is "anonymous"."""
    from kaggle.api.kaggle_api_extended import (  # type: ignore[import-untyped] # noqa: PLC0415
        KaggleApi,
    )

    say(alive="imported")

    class Api(KaggleApi):  # type: ignore[misc]
        """The client without its own retries, which use signed URLs that have expired."""

        def download_file(self, response: Any, *args: Any, **kwargs: Any) -> None:
            length = response.headers.get("Content-Length")
            say(size=int(length) if length else None)
            settings = {"max_retries": 0, "chunk_size": _CHUNK_BYTES}
            super().download_file(response, *args, **{**kwargs, **settings})

    api = Api()
    if login == "login":
        api.authenticate()
    return api


def _download(_: _Say, api: Any, kind: str, slug: str, folder: str) -> None:
    if kind == "competition":
        api.competition_download_files(slug, path=folder, quiet=True)
    else:
        api.dataset_download_files(slug, path=folder, quiet=True, unzip=False)


def _report_state(say: _Say, api: Any, slug: str, poll_s: str) -> None:
    """Report the state of a dataset every `poll_s` seconds, until the process is killed."""
    import requests  # noqa: PLC0415 - slow
    from kagglesdk.datasets.types import (  # type: ignore[import-untyped] # noqa: PLC0415
        dataset_api_service,
    )

    request = dataset_api_service.ApiGetDatasetRequest()
    request.owner_slug, request.dataset_slug = slug.split("/")
    while True:
        facts: dict[str, Any] = {"status": None}
        try:
            facts["status"] = api.dataset_status(slug)
            with api.build_kaggle_client() as kaggle:
                there = kaggle.datasets.dataset_api_client.get_dataset(request)
            facts |= {"version": there.current_version_number or 0, "is_private": there.is_private}
        except requests.HTTPError as error:  # for a missing dataset, and for one of another user
            if error.response is None or error.response.status_code not in (403, 404):
                raise
        say(state=facts)
        time.sleep(float(poll_s))


def _send(say: _Say, api: Any, *arguments: str) -> None:
    """Create a dataset or version from a folder with `dataset-metadata.json`.

    `arguments` are create VISIBILITY FOLDER NOTES, or version MESSAGE FOLDER NOTES. NOTES is the
    folder of the client's notes: the upload address of each file.
    """
    from kaggle.api import (  # type: ignore[import-untyped] # noqa: PLC0415
        kaggle_api_extended,
    )

    order, text, folder, tempfile.tempdir = arguments
    os.chdir(folder)
    bar = types.SimpleNamespace(update=lambda num_bytes: say(sent=num_bytes))
    kaggle_api_extended.tqdm = lambda **_: contextlib.nullcontext(bar)
    if order == "create":
        answer = api.dataset_create_new(".", public=text == "public", quiet=True, dir_mode="zip")
    else:
        answer = api.dataset_create_version(".", text, quiet=True, dir_mode="zip")
    if (answer.status or "ok").lower() != "ok":
        raise ClientError("refused", answer.error or answer.status)


_ORDERS: dict[str, Callable[..., None]] = {
    "download": _download,
    "state": _report_state,
    "send": _send,
}


def _fault_of(error: Exception) -> dict[str, Any]:
    """Return the fields of a `ClientError`, without a text that may contain a signed URL."""
    if isinstance(error, ImportError):
        return {"kind": "import", "message": str(error)}
    if isinstance(error, ClientError):  # of `_send`
        return {"kind": error.kind, "message": error.message}
    import requests  # noqa: PLC0415 - slow, for faults only
    import urllib3  # noqa: PLC0415

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return _http_fault(error.response)
    lost = (requests.RequestException, urllib3.exceptions.HTTPError, ConnectionError, TimeoutError)
    if isinstance(error, lost):
        cause = _innermost(error)
        kind = "unresolved" if isinstance(cause, socket.gaierror) else "connection"
        said = getattr(cause, "strerror", None) or type(cause).__name__
        return {"kind": kind, "message": said}
    if isinstance(error, OSError):
        return {"kind": "disk", "message": f"{error.strerror}: {error.filename}"}
    text = f": {error}" if type(error) is ValueError else ""
    return {"kind": "client", "message": type(error).__name__ + text}


def _http_fault(response: Any) -> dict[str, Any]:
    import urllib3  # noqa: PLC0415 - slow, for faults only

    try:
        said = response.json()
    except (ValueError, RuntimeError):  # not JSON; or the body of a stream was consumed
        said = {}
    said = said if isinstance(said, dict) else {}
    status = response.status_code if response.status_code >= 400 else said.get("code", 0)
    message = str(said.get("message") or response.reason)
    try:
        wait = urllib3.Retry().parse_retry_after(response.headers.get("Retry-After", ""))
    except urllib3.exceptions.InvalidHeader:
        wait = None
    return {"kind": "http", "status": status, "message": message, "retry_after_s": wait}


def _innermost(error: BaseException) -> BaseException:
    """Return the innermost cause of an error. The texts of outer errors contain a URL."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return error


if __name__ == "__main__":
    main(sys.argv[1:])
