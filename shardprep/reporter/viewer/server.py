"""HTTP server for one user of this machine: access control and response headers.

The server listens on loopback. The Host header must name this machine, which stops DNS rebinding by
other websites. Other users of the machine also reach loopback, so requests need a cookie. The
browser gets the cookie from the printed address, which contains a secret token. Methods other than
GET and HEAD are refused, so no request can change a file.

A connection without the cookie is closed after one answer. At the connection limit, a new
connection replaces the oldest connection without the cookie. So clients without the cookie cannot
lock out clients with the cookie.
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socket import SHUT_RDWR
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    import socket


HTML, TEXT = "text/html; charset=utf-8", "text/plain; charset=utf-8"
MOST_CONNECTIONS = 100
"""Number of connections from which a new connection replaces the oldest one without the cookie."""
_REQUEST_S = 10.0
"""Timeout for a whole request, from the previous answer on, and for each part of an answer."""
_MOST_LINE = 1 << 14
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
_log = logging.getLogger("shardprep.view")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A validated HTTP request."""

    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    etag: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response."""

    body: bytes
    content_type: str = HTML
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


def plain(status: HTTPStatus, said: str, **headers: str) -> Answer:
    """Return an answer of one line of text: the status code and `said`."""
    return Answer(f"{status.value} {said}\n".encode(), TEXT, status, headers)


@dataclass(slots=True)
class _Connection:
    thread: threading.Thread
    may_end: bool = True
    """True until the connection sends the cookie. Until then, a newer connection may replace it."""


class Server(TCPServer):
    """A server on 127.0.0.1, a thread per connection. `HTTPServer` would look up the host name."""

    allow_reuse_address = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, port: int, answer: Callable[[PageRequest], Answer]) -> None:
        """Listen on a port; 0 means any free port. OSError if the port is in use."""
        super().__init__(("127.0.0.1", port), _Handler)
        self.answer = answer
        self.request_s = _REQUEST_S
        self.is_closed = False
        self._token = secrets.token_hex(16)
        self._secret = secrets.token_hex(16)
        self._open: dict[socket.socket, _Connection] = {}

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """Address with the secret token. A browser that opens this address gets the cookie."""
        return f"http://127.0.0.1:{self.port}/?token={self._token}"

    @property
    def cookie(self) -> str:
        """The access cookie. Cookies are shared between ports, so its name contains the port."""
        return f"shardprep-{self.port}={self._secret}"

    def admits(self, token: str) -> bool:
        return _same(token, self._token)

    def knows(self, cookies: str) -> bool:
        return any(_same(one.strip(), self.cookie) for one in cookies.split(";"))

    def trust(self, connection: socket.socket) -> None:
        """Never replace this connection by a newer one. Call this after a check of the cookie."""
        self._open[connection].may_end = False

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection; at the limit, close an older connection or this one."""
        self._open = {one: at for one, at in self._open.items() if at.thread.is_alive()}
        if len(self._open) >= MOST_CONNECTIONS:
            oldest = next((one for one, at in self._open.items() if at.may_end), None)
            if oldest is None or len(self._open) >= 2 * MOST_CONNECTIONS:
                self.shutdown_request(request)
                return
            self._open[oldest].may_end = False  # do not cut it twice: its thread ends soon
            _cut(oldest)
        thread = threading.Thread(
            target=self._serve, args=(request, client_address), name="shardprep-answer"
        )
        self._open[request] = _Connection(thread)
        thread.start()

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:
            self.handle_error(request, client_address)
        finally:
            self.shutdown_request(request)

    def close(self) -> None:
        """Stop listening and cut all connections. Their threads may still run; see `join`."""
        self.is_closed = True
        self.shutdown()
        self.server_close()
        for connection in self._open:
            _cut(connection)

    def join(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for connection in self._open.values():
            if connection.thread.is_alive():
                connection.thread.join(max(0.0, deadline - time.monotonic()))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the error at debug level only, because clients may disconnect at any time."""
        del request, client_address
        _log.debug("a connection ended", exc_info=True)


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the connection is already closed
        connection.shutdown(SHUT_RDWR)


def _same(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), secret.encode())


class _DeadlineReader(io.RawIOBase):
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
    server: Server
    wfile: io.BytesIO
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # HTTP/0.9 answers have no headers
    # Headers and body in one packet, sent at once: otherwise the client's delayed acknowledgement
    # makes each answer take 45 ms.
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self._reader = _DeadlineReader(self.connection)
        self.rfile.close()
        self.rfile = io.BufferedReader(self._reader)
        self.wfile = io.BytesIO()

    def handle_one_request(self) -> None:
        self.close_connection = True
        self._reader.deadline = time.monotonic() + self.server.request_s
        self.command, self.request_version, self.requestline = "", self.protocol_version, ""
        try:
            self.raw_requestline = self.rfile.readline(_MOST_LINE + 1)
            if len(self.raw_requestline) > _MOST_LINE:
                self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
            elif self.raw_requestline and self.parse_request():
                self._send(self._answer())
            self._flush()
        except OSError:  # the client disconnected or timed out
            self.close_connection = True

    def _flush(self) -> None:
        """Send the buffered answer. Each part has its own timeout, so that slow networks work."""
        left = self.wfile.getbuffer()
        self.wfile = io.BytesIO()
        self.connection.settimeout(self.server.request_s)
        while left:
            left = left[self.connection.send(left) :]

    def handle_expect_100(self) -> bool:
        return True

    def send_error(self, code: int, *_: object) -> None:
        self.close_connection = True
        status = HTTPStatus(code)
        self._send(plain(status, status.phrase.lower()))

    def _answer(self) -> Answer:
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not _HERE.fullmatch(hosts[0].strip()):
            message = "only 127.0.0.1 and localhost are served; use an ssh tunnel from elsewhere"
            return plain(HTTPStatus.MISDIRECTED_REQUEST, message)
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # its body would be read as the next request
        if self.command not in ("GET", "HEAD"):
            self.close_connection = True
            return plain(HTTPStatus.METHOD_NOT_ALLOWED, "use GET or HEAD", Allow="GET, HEAD")
        path, _, query = self.path.partition("?")
        try:
            fields = dict(parse_qsl(query, max_num_fields=_MOST_FIELDS, errors="strict"))
        except ValueError:
            return plain(HTTPStatus.NOT_FOUND, "there is no such page")
        if not self.server.knows("; ".join(self.headers.get_all("Cookie", []))):
            self.close_connection = True
            return self._admission(path, fields)
        self.server.trust(self.connection)
        if "token" in fields:
            return _home()
        return self._made(PageRequest(path, fields, self.headers.get("If-None-Match", "")))

    def _admission(self, path: str, fields: Mapping[str, str]) -> Answer:
        if path == "/" and self.command == "GET" and self.server.admits(fields.get("token", "")):
            attributes = "HttpOnly; SameSite=Lax; Path=/"
            return _home({"Set-Cookie": f"{self.server.cookie}; {attributes}"})
        message = "open the address that shardprep view has printed: it contains the access token"
        return plain(HTTPStatus.FORBIDDEN, message)

    def _made(self, request: PageRequest) -> Answer:
        try:
            return self.server.answer(request)
        except Exception:
            if not self.server.is_closed:  # errors are expected once files are closed
                _log.exception("internal error at %s", request.path)
            return plain(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; please report it")

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
        if self.command != "HEAD":
            self.wfile.write(answer.body)


def _home(headers: Mapping[str, str] | None = None) -> Answer:
    """Return a redirect to the first page, which removes the token from the browser's address."""
    return Answer(b"", TEXT, HTTPStatus.SEE_OTHER, {"Location": "/", **(headers or {})})
