"""A web server for the user of this machine alone: who may ask, and what every answer carries.

It listens on loopback. Whoever asks must name this machine (a page of strangers could have its own
name lead here), and must have the cookie that the printed address gives, once: other users of the
machine reach loopback too. Only GET and HEAD are answered, so nothing can be changed.
"""

from __future__ import annotations

import contextlib
import hmac
import io
import logging
import re
import secrets
import threading
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socket import SHUT_RDWR
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

HTML, TEXT = "text/html; charset=utf-8", "text/plain; charset=utf-8"
MOST_CONNECTIONS = 100
"""Connections at a time; a further one is closed."""
_REQUEST_S = 10.0
"""Seconds from one answer to the end of the next request, however slowly it is sent."""
_MOST_LINE = 1 << 14
"""Bytes of the first line of a request."""
_MOST_FIELDS = 20
_HERE = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.ASCII | re.IGNORECASE)
_PROTECTION = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self'; style-src 'self'; "
    "script-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-cache",
}
"""Headers of every answer."""
_log = logging.getLogger("shardprep.view")


@dataclass(frozen=True, slots=True)
class Request:
    """A question that may be answered."""

    path: str
    """Path of the address as it was sent: nothing in it is decoded."""
    query: Mapping[str, str] = field(default_factory=dict)
    etag: str = ""
    """Mark of the answer that the browser has already; "" for none."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, type and bytes of an answer."""

    body: bytes
    content_type: str = HTML
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further headers."""


def plain(status: HTTPStatus, said: str, **headers: str) -> Answer:
    """Return an answer of one line."""
    return Answer(f"{status.value} {said}\n".encode(), TEXT, status, headers)


class Server(ThreadingMixIn, TCPServer):
    """A server on 127.0.0.1; each connection has a thread.

    `HTTPServer` is not taken: it asks the network for the name of this machine first.
    """

    allow_reuse_address = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, port: int, answer: Callable[[Request], Answer]) -> None:
        """Listen on a port, 0 for any that is free; OSError where it is taken."""
        super().__init__(("127.0.0.1", port), _Handler)
        self.answer = answer
        self.request_s = _REQUEST_S
        self._token: str | None = secrets.token_hex(16)
        self._secret = secrets.token_hex(16)
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._open: set[socket.socket] = set()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """The address that lets one browser in, once."""
        return f"http://127.0.0.1:{self.port}/?token={self._token}"

    @property
    def cookie(self) -> str:
        """The cookie of who was let in; browsers do not tell ports apart, so its name does."""
        return f"shardprep-{self.port}={self._secret}"

    def admits(self, token: str) -> bool:
        """Tell whether a token is the one that was printed; it is used up by that."""
        with self._lock:
            is_right = self._token is not None and _same(token, self._token)
            if is_right:
                self._token = None
            return is_right

    def knows(self, cookies: str) -> bool:
        """Tell whether a Cookie header holds the one of who was let in."""
        return any(_same(one.strip(), self.cookie) for one in cookies.split(";"))

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the thread of a connection, if there are not too many."""
        if self._free.acquire(blocking=False):
            self._open.add(request)
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.discard(request)
            self._free.release()

    def close(self) -> None:
        """End it: what is being answered is waited for, what is idle is not."""
        self.shutdown()
        for one in [*self._open]:
            with contextlib.suppress(OSError):
                one.shutdown(SHUT_RDWR)
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what ended a connection; a client that goes away is no error."""
        del request, client_address
        _log.debug("a connection ended", exc_info=True)


def _same(given: str, secret: str) -> bool:
    """Compare in a time that does not tell how much is right."""
    return hmac.compare_digest(given.encode(errors="replace"), secret.encode())


class _Patience(io.RawIOBase):
    """The bytes that a client sends, until its time is over."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.deadline = 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # an older one would be answered without headers
    # Headers and body in one packet, sent at once: otherwise the client's delayed acknowledgement
    # makes each answer take 45 ms.
    wbufsize = -1
    disable_nagle_algorithm = True

    def setup(self) -> None:
        """Read through `_Patience`."""
        super().setup()
        self._patience = _Patience(self.connection)
        self.rfile.close()
        self.rfile = io.BufferedReader(self._patience)

    def handle_one_request(self) -> None:
        """Answer one request, or end the connection."""
        self.close_connection = True
        self._patience.deadline = time.monotonic() + self.server.request_s
        self.command, self.request_version, self.requestline = "", self.protocol_version, ""
        with contextlib.suppress(TimeoutError, ConnectionError):
            self.raw_requestline = self.rfile.readline(_MOST_LINE + 1)
            if len(self.raw_requestline) > _MOST_LINE:
                self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
            elif self.raw_requestline and self.parse_request():
                self._send(self._answer())
            self.wfile.flush()

    def handle_expect_100(self) -> bool:
        """Promise nothing: no body is ever read."""
        return True

    def send_error(self, code: int, *_: object) -> None:
        """Answer a request that is none, as all are answered."""
        self.close_connection = True
        status = HTTPStatus(code)
        self._send(plain(status, status.phrase.lower()))

    def _answer(self) -> Answer:
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not _HERE.fullmatch(hosts[0].strip()):
            said = "only 127.0.0.1 and localhost are served; reach another machine by an ssh tunnel"
            return plain(HTTPStatus.MISDIRECTED_REQUEST, said)
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # its body would be read as the next request
        if self.command not in ("GET", "HEAD"):
            self.close_connection = True
            return plain(HTTPStatus.METHOD_NOT_ALLOWED, "nothing can be changed", Allow="GET, HEAD")
        path, _, query = self.path.partition("?")
        try:
            fields = dict(parse_qsl(query, max_num_fields=_MOST_FIELDS, errors="strict"))
        except ValueError:
            return plain(HTTPStatus.NOT_FOUND, "there is no such page")
        if not self.server.knows("; ".join(self.headers.get_all("Cookie", []))):
            return self._admission(path, fields)
        if "token" in fields:
            return _home()
        return self._made(Request(path, fields, self.headers.get("If-None-Match", "")))

    def _admission(self, path: str, fields: Mapping[str, str]) -> Answer:
        """Return the cookie for the printed address."""
        if path == "/" and self.command == "GET" and self.server.admits(fields.get("token", "")):
            attributes = "HttpOnly; SameSite=Lax; Path=/"
            return _home({"Set-Cookie": f"{self.server.cookie}; {attributes}"})
        said = (
            "open the address that shardprep view has printed: it lets one browser in, once; "
            "start it again for another"
        )
        return plain(HTTPStatus.FORBIDDEN, said)

    def _made(self, request: Request) -> Answer:
        try:
            return self.server.answer(request)
        except Exception:
            _log.exception("no answer could be made for %s", request.path)
            return plain(HTTPStatus.INTERNAL_SERVER_ERROR, "has failed: please report it")

    def _send(self, answer: Answer) -> None:
        self.send_response_only(answer.status)
        headers = {
            "Server": "shardprep",
            "Date": self.date_time_string(),
            **_PROTECTION,
            **answer.headers,
        }
        if answer.status != HTTPStatus.NOT_MODIFIED:
            headers |= {
                "Content-Type": answer.content_type,
                "Content-Length": str(len(answer.body)),
            }
        if self.close_connection:
            headers["Connection"] = "close"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.connection.settimeout(self.server.request_s)
        if self.command != "HEAD":
            self.wfile.write(answer.body)


def _home(headers: Mapping[str, str] | None = None) -> Answer:
    """Return the way to the first page; the address no longer shows a token then."""
    return Answer(b"", TEXT, HTTPStatus.SEE_OTHER, {"Location": "/", **(headers or {})})
