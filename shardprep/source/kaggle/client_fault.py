"""Failures of the client as values for the parent; used in the child process."""

from __future__ import annotations

import email.utils
import socket
import time
from collections.abc import Callable
from typing import Any

Say = Callable[..., None]
"""Function that sends the parent a line of JSON with its keyword arguments."""


class UploadError(Exception):
    """An upload failure that the client does not report as an error."""

    def __init__(self, kind: str, message: str) -> None:
        """`kind` is one of `client_error.FaultKind`."""
        super().__init__(message)
        self.kind = kind


def fault_of(error: Exception) -> dict[str, Any]:
    """Describe an exception, without its text if that may contain a signed URL."""
    if isinstance(error, ImportError):
        return {"kind": "import", "message": str(error)}
    if isinstance(error, UploadError):
        return {"kind": error.kind, "message": str(error)}
    import requests  # noqa: PLC0415 - not needed by the parent
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
    try:
        said = response.json()
    except (ValueError, RuntimeError):  # not JSON; or the body of a stream was consumed
        said = {}
    said = said if isinstance(said, dict) else {}
    status = response.status_code if response.status_code >= 400 else said.get("code", 0)
    message = str(said.get("message") or response.reason)
    wait = _seconds(response.headers.get("Retry-After", ""))
    return {"kind": "http", "status": status, "message": message, "retry_after_s": wait}


def _seconds(retry_after: str) -> float | None:
    """Parse a Retry-After header: seconds or a date."""
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return None


def _innermost(error: BaseException) -> BaseException:
    """Return the innermost error, of the operating system; outer layers add a URL."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return error
