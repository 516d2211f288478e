"""A web server for the user of this machine alone: who may ask, and what every answer carries.

It listens on loopback. Whoever asks must name this machine (a page of strangers could have its own
name lead here), and must have the cookie that the printed address gives: other users of the machine
reach loopback too. Only GET and HEAD are answered, so nothing can be changed.

A connection without the cookie gets one answer and is closed; where there are too many connections,
a newer one replaces it. So clients that were not let in cannot keep out those that were.
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
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

HTML, TEXT = "text/html; charset=utf-8", "text/plain; charset=utf-8"
MOST_CONNECTIONS = 100
"""Connections at a time; a further one replaces the oldest that has not shown the cookie."""
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


@dataclass(slots=True)
class _Connection:
    """A connection that was accepted."""

    thread: threading.Thread
    may_end: bool = True
    """Whether a newer connection may replace it: it has not shown the cookie."""


class Server(TCPServer):
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
        self.is_closed = False
        self._token = secrets.token_hex(16)
        self._secret = secrets.token_hex(16)
        self._open: dict[socket.socket, _Connection] = {}

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """The address that lets a browser in; it is as secret as the cookie."""
        return f"http://127.0.0.1:{self.port}/?token={self._token}"

    @property
    def cookie(self) -> str:
        """The cookie of who was let in; browsers do not tell ports apart, so its name does."""
        return f"shardprep-{self.port}={self._secret}"

    def admits(self, token: str) -> bool:
        """Return whether a token is the one of the printed address."""
        return _same(token, self._token)

    def knows(self, cookies: str) -> bool:
        """Return whether a Cookie header holds the one of who was let in."""
        return any(_same(one.strip(), self.cookie) for one in cookies.split(";"))

    def trust(self, connection: socket.socket) -> None:
        """Let no newer connection replace this one, which has shown the cookie."""
        self._open[connection].may_end = False

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the thread of a connection; where there are too many, end an older one or this."""
        self._open = {one: at for one, at in self._open.items() if at.thread.is_alive()}
        if len(self._open) >= MOST_CONNECTIONS:
            oldest = next((one for one, at in self._open.items() if at.may_end), None)
            if oldest is None or len(self._open) >= 2 * MOST_CONNECTIONS:
                self.shutdown_request(request)
                return
            self._open[oldest].may_end = False  # its thread ends soon
            _cut(oldest)
        thread = threading.Thread(
            target=self._serve, args=(request, client_address), name="shardprep-answer"
        )
        self._open[request] = _Connection(thread)
        thread.start()

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        """Answer a connection to its end."""
        try:
            self.finish_request(request, client_address)
        except Exception:
            self.handle_error(request, client_address)
        finally:
            self.shutdown_request(request)

    def close(self) -> None:
        """Accept no further connection and cut all that are open; answers in the making go on."""
        self.is_closed = True
        self.shutdown()
        self.server_close()
        for one in self._open:
            _cut(one)

    def join(self, timeout_s: float) -> None:
        """Wait until the threads of connections have ended, for a limited time."""
        deadline = time.monotonic() + timeout_s
        for one in self._open.values():
            if one.thread.is_alive():
                one.thread.join(max(0.0, deadline - time.monotonic()))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what ended a connection; a client that goes away is no error."""
        del request, client_address
        _log.debug("a connection ended", exc_info=True)


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended
        connection.shutdown(SHUT_RDWR)


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
    wfile: io.BytesIO
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # an older one would be answered without headers
    # Headers and body in one packet, sent at once: otherwise the client's delayed acknowledgement
    # makes each answer take 45 ms.
    disable_nagle_algorithm = True

    def setup(self) -> None:
        """Read through `_Patience`, and write an answer into memory first."""
        super().setup()
        self._patience = _Patience(self.connection)
        self.rfile.close()
        self.rfile = io.BufferedReader(self._patience)
        self.wfile = io.BytesIO()

    def handle_one_request(self) -> None:
        """Answer one request, or end the connection."""
        self.close_connection = True
        self._patience.deadline = time.monotonic() + self.server.request_s
        self.command, self.request_version, self.requestline = "", self.protocol_version, ""
        try:
            self.raw_requestline = self.rfile.readline(_MOST_LINE + 1)
            if len(self.raw_requestline) > _MOST_LINE:
                self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
            elif self.raw_requestline and self.parse_request():
                self._send(self._answer())
            self._flush()
        except OSError:  # the client has gone, or its time is over: it gets no further answer
            self.close_connection = True

    def _flush(self) -> None:
        """Send what was written; each part of it has its time, so a slow network gets all."""
        left = self.wfile.getbuffer()
        self.wfile = io.BytesIO()
        self.connection.settimeout(self.server.request_s)
        while left:
            left = left[self.connection.send(left) :]

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
            self.close_connection = True
            return self._admission(path, fields)
        self.server.trust(self.connection)
        if "token" in fields:
            return _home()
        return self._made(Request(path, fields, self.headers.get("If-None-Match", "")))

    def _admission(self, path: str, fields: Mapping[str, str]) -> Answer:
        """Return the cookie for the printed address."""
        if path == "/" and self.command == "GET" and self.server.admits(fields.get("token", "")):
            attributes = "HttpOnly; SameSite=Lax; Path=/"
            return _home({"Set-Cookie": f"{self.server.cookie}; {attributes}"})
        said = "open the address that shardprep view has printed: it lets a browser in"
        return plain(HTTPStatus.FORBIDDEN, said)

    def _made(self, request: Request) -> Answer:
        try:
            return self.server.answer(request)
        except Exception:
            if not self.server.is_closed:  # else its files and threads are closed, too
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
        if self.command != "HEAD":
            self.wfile.write(answer.body)


def _home(headers: Mapping[str, str] | None = None) -> Answer:
    """Return the way to the first page; the address no longer shows a token then."""
    return Answer(b"", TEXT, HTTPStatus.SEE_OTHER, {"Location": "/", **(headers or {})})
