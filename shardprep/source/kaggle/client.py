"""The child process, run as `python -P -m`, with the unmodified kaggle client for one order.

`kaggle` is imported only below `main`, here and in `client_upload`. The child reports to the
parent in lines of JSON: {"alive": …}, {"size": …}, {"sent": …}, {"arrived": …},
{"state": …}, then {"done": …} or {"fault": …}.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from shardprep.source.kaggle.client_fault import fault_of

if TYPE_CHECKING:
    from shardprep.source.kaggle.client_fault import Say

_CHUNK_BYTES = 1 << 16
"""Size of one write, small so that a slow download shows progress; the client's 1 MiB can take
minutes."""


def main(arguments: list[str]) -> None:
    """Run one order in the child process, and report on the pipe that was stdout.

    The orders: download KIND SLUG FOLDER, state SLUG POLL_S, create FOLDER TEMPORARY PUBLIC, and
    version FOLDER TEMPORARY MESSAGE; before them "login", or "anonymous".
    """
    say = _take_stdout()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    login, order, *rest = arguments
    try:
        if order == "download":
            _download(say, login, *rest)
        else:
            from shardprep.source.kaggle import client_upload  # noqa: PLC0415 - imports kaggle

            api = client_upload.UploadApi(say)
            api.authenticate()
            getattr(client_upload, order)(api, *rest)
    except SystemExit:  # the client exits if it has no credentials
        say(fault={"kind": "credentials"})
    except Exception as error:
        say(fault=fault_of(error))
    else:
        say(done=True)


def _take_stdout() -> Say:
    """Reserve the pipe for our lines, and discard the output of the client."""
    pipe = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)

    def say(**facts: object) -> None:
        os.write(pipe, json.dumps(facts).encode() + b"\n")

    say(alive="started")
    return say


def _end_with_parent() -> None:
    """Exit when the parent dies: its end of our stdin is then closed."""
    while os.read(0, 1):
        pass
    os._exit(1)


def _download(say: Say, login: str, kind: str, slug: str, folder: str) -> None:
    from kaggle.api.kaggle_api_extended import (  # type: ignore[import-untyped] # noqa: PLC0415
        KaggleApi,
    )

    say(alive="imported")

    class Api(KaggleApi):  # type: ignore[misc]
        """The client without its own retries, which use a signed URL after it has expired.

        Our retry asks for a new URL and continues the partial file.
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


if __name__ == "__main__":
    main(sys.argv[1:])
