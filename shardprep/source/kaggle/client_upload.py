"""Uploads in the child process, with the kaggle client; each of its failures is an error.

By itself, the client skips a file that the server rejects and creates a dataset from the others. It
retries silently for minutes, and never replaces an upload address that has expired. Here, each such
failure ends the run, and the next run continues the upload.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests
import urllib3
from kaggle.api.kaggle_api_extended import (  # type: ignore[import-untyped]
    KaggleApi,
    ResumableUploadResult,
)
from kagglesdk.datasets.types.dataset_api_service import (  # type: ignore[import-untyped]
    ApiGetDatasetRequest,
)

from shardprep.source.kaggle.client_error import ClientError

_REPORT_S = 0.2
_ABSENT = (403, 404)
"""HTTP status for a missing dataset, or for a dataset of another user."""


class UploadApi(KaggleApi):  # type: ignore[misc]
    """The client with only one attempt for each request, and an error for each rejection."""

    MAX_UPLOAD_RESUME_ATTEMPTS = 1

    def __init__(self, say: Callable[..., None]) -> None:
        super().__init__()
        self.say = say
        self.num_sent = 0
        self.answer: requests.Response | Exception | None = None
        requests.Session = lambda: _Session(self)  # type: ignore[assignment,misc] # here alone

    def with_retry(self, func: Callable[[Any], Any], *_: Any, **__: Any) -> Callable[[Any], Any]:
        """Return a function that calls `func` once, and raises ClientError for a rejection."""

        def called(request: Any) -> Any:
            self.say(alive="asking")
            return _granted(func(request))

        return called

    def upload_files(self, *args: Any, **kwargs: Any) -> None:
        """Send all files. Their arrival is reported before the version is requested."""
        super().upload_files(*args, **kwargs)
        self.say(arrived=True)

    def upload_complete(self, path: str, url: str, quiet: bool, resume: bool = False) -> int:  # noqa: FBT001 - the client's own
        """Send a file or its rest; raise an error where the client would only print it."""
        self.answer = None
        result: int = super().upload_complete(path, url, quiet, resume)
        if result == ResumableUploadResult.COMPLETE:
            return result
        answer = self.answer
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            raise ClientError("client", f"{Path(path).name} was not sent")
        if resume and not _is_passing(answer.status_code):
            raise ClientError("expired", f"status {answer.status_code}")
        raise requests.HTTPError(answer.reason, response=answer)

    def _upload_blob(self, path: str, quiet: bool, kind: Any, context: Any, *more: Any) -> Any:  # noqa: FBT001 - the client's own
        """Send a file; after a permanent error, delete the client's note of its upload address."""
        try:
            token = super()._upload_blob(path, quiet, kind, context, *more)
        except (requests.HTTPError, ClientError):
            answer = self.answer
            if isinstance(answer, requests.Response) and not _is_passing(answer.status_code):
                Path(context.get_upload_info_file_path(path)).unlink(missing_ok=True)
            raise
        self.num_sent += Path(path).stat().st_size
        self.say(sent=self.num_sent)
        return token


class _Session(requests.Session):
    def __init__(self, api: UploadApi) -> None:
        super().__init__()
        self._api = api

    def put(self, url: Any, data: Any = None, **kwargs: Any) -> requests.Response:
        api = self._api
        for adapter in self.adapters.values():
            adapter.max_retries = urllib3.Retry(0, read=False)  # type: ignore[attr-defined]
        if data is not None:
            data.progress_bar = _Meter(api.say, api.num_sent + data.tell())
        try:
            answer = super().put(url, data=data, **kwargs)
        except Exception as error:
            api.answer = error
            raise
        api.answer = answer
        return answer


class _Meter:
    """Reports the number of sent bytes. It replaces the client's progress bar."""

    def __init__(self, say: Callable[..., None], num_bytes: int) -> None:
        self._say, self._num_bytes, self._said_s = say, num_bytes, 0.0

    def update(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        if time.monotonic() - self._said_s >= _REPORT_S:
            self._said_s = time.monotonic()
            self._say(sent=self._num_bytes)


def state(api: UploadApi, slug: str, poll_s: str) -> None:
    """Report the state of a dataset forever: at once, after 1, 2, 4 … s, then every `poll_s` s."""
    for i in itertools.count():
        api.say(state=_state(api, slug))
        time.sleep(min(2.0**i, float(poll_s)))


def create(api: UploadApi, folder: str, temporary: str, public: str) -> None:
    """Create a "public" or "private" dataset from a folder with `dataset-metadata.json`."""
    _enter(folder, temporary)
    _granted(api.dataset_create_new(".", public=public == "public", quiet=True, dir_mode="zip"))


def version(api: UploadApi, folder: str, temporary: str, message: str) -> None:
    """Create a new version of a dataset from a folder with `dataset-metadata.json`."""
    _enter(folder, temporary)
    _granted(api.dataset_create_version(".", message, quiet=True, dir_mode="zip"))


def _enter(folder: str, temporary: str) -> None:
    """Make `folder` the current directory; the client's notes are written to `temporary`.

    The notes then name files without a path.
    """
    tempfile.tempdir = temporary
    os.chdir(folder)


def _state(api: UploadApi, slug: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"user": api.get_config_value(api.CONFIG_NAME_USER) or ""}
    owner, name = slug.split("/")
    request = ApiGetDatasetRequest()
    request.owner_slug, request.dataset_slug = owner, name
    try:
        facts["status"] = api.dataset_status(slug)
        with api.build_kaggle_client() as kaggle:
            dataset = kaggle.datasets.dataset_api_client.get_dataset(request)
    except requests.HTTPError as error:
        if error.response is None or error.response.status_code not in _ABSENT:
            raise
        return facts
    return facts | {"version": dataset.current_version_number, "is_private": dataset.is_private}


def _granted(answer: Any) -> Any:
    """Return the answer; ClientError if it is a rejection, even with HTTP status 200."""
    if (getattr(answer, "status", None) or "ok").lower() != "ok":
        raise ClientError("refused", answer.error or answer.status)
    return answer


def _is_passing(status: int) -> bool:
    return status >= 500 or status in (408, 429)
