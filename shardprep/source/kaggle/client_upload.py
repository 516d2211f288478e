"""Uploads in the child process, with the kaggle client, which repeats failed requests by itself."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import types
from typing import Any

import requests
from kaggle.api import kaggle_api_extended  # type: ignore[import-untyped]
from kagglesdk.datasets.types.dataset_api_service import (  # type: ignore[import-untyped]
    ApiGetDatasetRequest,
)

from shardprep.source.kaggle.client_error import ClientError


def state(say: Any, api: Any, slug: str, poll_s: str) -> None:
    """Report the state of a dataset every `poll_s` seconds, until the process is killed."""
    request = ApiGetDatasetRequest()
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


def send(say: Any, api: Any, *arguments: str) -> None:
    """Create a dataset or version from a folder with `dataset-metadata.json`.

    `arguments` are create VISIBILITY FOLDER NOTES, or version MESSAGE FOLDER NOTES. NOTES is the
    folder of the client's notes: the upload address of each file.
    """
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
