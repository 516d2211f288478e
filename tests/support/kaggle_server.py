"""A Kaggle on loopback that speaks what the unmodified client speaks, and fails as asked.

The client is sent here by its environment alone: it takes `http://localhost` for Kaggle, and this
server for the proxy of every plain http address, invented hosts included (no name is looked up).
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.support.kaggle_uploads import CALLS, Answer, Uploads

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

USER, KEY = "somebody", "0123456789abcdef0123456789abcdef"
RULES = "You must accept this competition's rules before you'll be able to download files."
LAST_MODIFIED = 1_700_000_000.0


@dataclass(frozen=True)
class Body:
    """How one transfer goes wrong; by default it does not."""

    status: int = 200
    cut: int | None = None
    """Close after so many bytes."""
    hang: int | None = None
    """Send nothing after so many bytes, not even the status line for -1."""
    ignores_range: bool = False
    tells_length: bool = True


@dataclass
class Archive:
    """An archive that is offered, and what the server says of it."""

    data: bytes
    content_type: str = "application/zip"
    etag: str = '"one"'


@dataclass
class Request:
    """One request as it came."""

    what: str
    """The name of the API call, or GET."""
    body: dict[str, Any]
    headers: dict[str, str]


@dataclass
class KaggleServer:
    """A context: serves while entered. Faults are used up from the front, one by one."""

    archives: dict[str, Archive] = field(default_factory=dict)
    """By the client's name for it: `name`, `owner/name` or `owner/name/3`."""
    answers: list[Answer] = field(default_factory=list)
    """To calls for a download."""
    token_answers: list[Answer | bool] = field(default_factory=list)
    """To the question whether a token is active; True by default."""
    bodies: list[Body | None] = field(default_factory=list)
    """Bodies of transfers; the client opens one and drops it before it asks for a range."""
    accepts: tuple[str, ...] = ("Basic ", "Bearer ", "")
    """How the Authorization of a call that is not answered by 401 may start."""
    requests: list[Request] = field(default_factory=list)
    uploads: Uploads = field(default_factory=Uploads)
    gate: threading.Event = field(default_factory=threading.Event)
    """Let go what hangs."""

    def __enter__(self) -> Self:
        """Serve on a free port."""
        handler = type("Handler", (_Handler,), {"kaggle": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Stop, and close what hangs."""
        self.gate.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def environment(self, home: Path) -> dict[str, str]:
        """Return what sends the client here, and nowhere else, with credentials."""
        proxies = dict.fromkeys(("http_proxy", "https_proxy"), self.url)
        return {
            **proxies,
            "no_proxy": "",
            "HOME": str(home),
            "KAGGLE_API_ENVIRONMENT": "LOCALHOST",
            "KAGGLE_USERNAME": USER,
            "KAGGLE_KEY": KEY,
        }

    def count(self, what: str) -> int:
        """Return how often something was asked."""
        return sum(request.what == what for request in self.requests)

    def ranges(self) -> list[str]:
        """Return the ranges of bytes that were asked for."""
        return [one.headers["Range"] for one in self.requests if "Range" in one.headers]


class _Handler(BaseHTTPRequestHandler):
    kaggle: KaggleServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        """Say nothing."""

    def do_POST(self) -> None:
        """Answer an API call."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "{}")
        call = urlsplit(self.path).path.rsplit("/", 1)[1]
        self.kaggle.requests.append(Request(call, body, dict(self.headers)))
        if call == "IntrospectToken":
            return self._introspect()
        if self.kaggle.answers:
            return self._refuse(self.kaggle.answers.pop(0))
        if not self.headers.get("Authorization", "").startswith(self.kaggle.accepts):
            return self._refuse(Answer(401, "Unauthenticated"))
        if call in CALLS:
            found = self.kaggle.uploads.answer(call, body)
            return self._refuse(found) if isinstance(found, Answer) else self._json(200, found)
        name = body.get("competitionName") or f"{body.get('ownerSlug')}/{body.get('datasetSlug')}"
        if version := body.get("datasetVersionNumber"):
            name += f"/{version}"
        for uploaded, data in self.kaggle.uploads.archives().items():
            self.kaggle.archives.setdefault(uploaded, Archive(data, etag=f'"{uploaded}"'))
        if name not in self.kaggle.archives:
            return self._refuse(Answer(404, "Not found"))
        number = len(self.kaggle.requests)
        to = f"http://store.test/{name}/archive.zip?Signature=secret{number}"
        return self._send(302, b"", {"Location": to})

    def _introspect(self) -> None:
        answer = self.kaggle.token_answers.pop(0) if self.kaggle.token_answers else True
        if isinstance(answer, bool):
            return self._json(200, {"active": answer, "username": USER if answer else ""})
        return self._refuse(answer)

    def do_GET(self) -> None:
        """Send an archive, or a part of it, or what is to go wrong instead."""
        url = urlsplit(self.path)
        self.kaggle.requests.append(Request("GET", {"query": url.query}, dict(self.headers)))
        fault = (self.kaggle.bodies.pop(0) if self.kaggle.bodies else None) or Body()
        archive = self.kaggle.archives[url.path[1:].removesuffix("/archive.zip")]
        if fault.hang == -1:
            return self._hang()
        if fault.status != 200:
            return self._send(fault.status, b"<Error/>", {"Content-Type": "application/xml"})
        start = self._range_start(archive, fault)
        data = archive.data[start:]
        headers = {
            "Content-Type": archive.content_type,
            "ETag": archive.etag,
            "Last-Modified": formatdate(LAST_MODIFIED, usegmt=True),
            "Accept-Ranges": "bytes",
            "Content-Length": str(len(data)) if fault.tells_length else "",
        }
        if start:
            size = len(archive.data)
            headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
        end = next((n for n in (fault.cut, fault.hang) if n is not None), len(data))
        self._send(206 if start else 200, data[:end], headers)
        self.close_connection = fault.cut is not None or not fault.tells_length
        return self._hang() if fault.hang is not None else None

    def do_PUT(self) -> None:
        """Take the bytes of a file, or some of them."""
        url = urlsplit(self.path)
        self.kaggle.requests.append(Request("PUT", {"query": url.query}, dict(self.headers)))
        status, headers = self.kaggle.uploads.take(self, url.path.rsplit("/", 1)[1])
        if status:
            return self._send(status, b"", headers)
        self.close_connection = True
        return None

    def _range_start(self, archive: Archive, fault: Body) -> int:
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        fits = self.headers.get("If-Range", archive.etag) == archive.etag
        return int(asked[1]) if asked and fits and not fault.ignores_range else 0

    def _hang(self) -> None:
        self.kaggle.gate.wait(60)
        self.close_connection = True

    def _refuse(self, answer: Answer) -> None:
        headers = {"Retry-After": answer.retry_after} if answer.retry_after else {}
        self._json(answer.status, {"code": answer.status, "message": answer.message}, headers)

    def _json(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self._send(status, data, {"Content-Type": "application/json", **(headers or {})})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        headers.setdefault("Content-Length", str(len(data)))
        with contextlib.suppress(OSError):  # the client drops a transfer that it does not need
            self.send_response(status)
            for name, value in headers.items():
                if value:
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)
            self.wfile.flush()
