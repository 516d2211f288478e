"""One-line errors of a store, without credentials, signed addresses or response bodies.

A line contains only our own words, an HTTP status, the store's error code and the host. Other text
of a store or its client is never shown.
"""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit

from shardprep.errors import StorageError
from shardprep.storage.url import ObjectUrl

ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""Scheme → environment variables that name another server than the provider's."""
_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (profiles are not read: aws configure "
    "export-credentials --format env), or give the machine a role",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or give the machine a service account",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or give the machine an "
    "identity",
}
_AGAIN = "run the same command again when the store answers"
_STATUS = re.compile(r"status code: (\d{3}(?: [A-Z][A-Za-z]*)*)")
_CODE = re.compile(r"<Code>([A-Za-z]{1,40})</Code>")
_NO_CREDENTIALS = ("169.254.", "metadata", "token request", "credential", "Account must be")
_NO_ANSWER = ("kind: Connect", "kind: Timeout", "kind: Request", "kind: Interrupted")


class NoAnswerError(StorageError):
    """The store did not answer; the request may have been executed or not."""


class ChangedError(StorageError):
    """An object or a dataset folder was replaced or removed."""


def changed(where: str) -> ChangedError:
    """Return the error for something that was replaced or removed since it was found."""
    hint = "open the dataset again, or run the command again"
    return ChangedError(where, "has changed since it was found", hint)


def endpoint_of(scheme: str) -> str:
    """Return the server that the environment names, or "" for the provider's own."""
    for name in ENDPOINTS[scheme]:
        if endpoint := os.environ.get(name):
            if not _is_server(endpoint):
                way = "give http(s)://HOST[:PORT], without credentials"
                raise StorageError(name, "is not the address of a server", way)
            return endpoint
    return ""


def _is_server(address: str) -> bool:
    try:
        parts = urlsplit(address)
        is_web = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return False
    return bool(is_web) and not (parts.username or parts.query or parts.fragment)


def explained(error: BaseException, url: ObjectUrl, *, writing: bool) -> StorageError:
    """Return the error for an exception of the store's client."""
    text = str(error)
    verb = "written" if writing else "read"
    match = _STATUS.search(text)
    number = match[1][:3] if match else ""
    status = f"HTTP {match[1]}" if match else ""
    if code := _CODE.search(text):
        status = f"{status} {code[1]}".strip()
    if _is_about_credentials(text):
        what = f"cannot be {verb}: credentials are missing"
        return StorageError(str(url), what, _CREDENTIALS[url.scheme])
    if number == "404":
        return no_bucket(url, writing=writing)
    if number in ("401", "403"):
        what = f"cannot be {verb} with these credentials ({status})"
        return StorageError(str(url), what, "ask for the permission, or use other credentials")
    if "redirect" in text.lower():
        what = f"cannot be {verb}: the bucket is in another region"
        return StorageError(str(url), what, "set AWS_REGION")
    if not status and any(mark in text for mark in _NO_ANSWER):
        return no_answer(url, writing=writing)
    why = "it has become shorter" if number == "416" else status or "the store fails"
    return StorageError(str(url), f"cannot be {verb} ({why})", _AGAIN)


def no_bucket(url: ObjectUrl, *, writing: bool) -> StorageError:
    """Return the error for a bucket that does not exist."""
    way = "create it first" if writing else "check the address"
    return StorageError(url.root, "the bucket does not exist", way)


def no_answer(url: ObjectUrl, *, writing: bool) -> NoAnswerError:
    """Return the error for a store that does not answer."""
    verb = "written" if writing else "read"
    return NoAnswerError(str(url), f"cannot be {verb} (no answer from {server_of(url)})", _AGAIN)


def server_of(url: ObjectUrl) -> str:
    """Return the name of the server for messages: its host, or the bucket at the provider's own."""
    return urlsplit(endpoint_of(url.scheme)).netloc or url.root


def _is_about_credentials(text: str) -> bool:
    """Return True if the client found no credentials: it then asks a host of the machine itself."""
    first = text.partition("\n")[0].partition("status code")[0].lower()
    return any(mark.lower() in first for mark in _NO_CREDENTIALS)
