"""An S3 of our own on loopback: moto's server as a process, and a proxy before it that fails.

`python -m tests.support.object_store` is that process.

Fixtures are in conftest.py: `object_store` (the server, one a session) and `bucket` (a new
bucket, which the environment of the test leads to).
"""

import contextlib
import functools
import http.client
import io
import logging
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import quote, urlsplit

from tests.support.paths import ROOT

ACCESS_KEY, SECRET_KEY = "AKIATESTACCESSKEY", "a-secret-that-nobody-may-see"
_BLOCK_BYTES = 64 << 10
_SIGNED = {"Authorization": f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20260101/us-east-1/s3/"}
"""moto accepts these headers as a signature."""


class ObjectStore:
    def __enter__(self) -> Self:
        from tests.support.costs import add_server  # the server itself needs no pytest

        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.object_store"],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        add_server(self._process.pid)
        assert self._process.stdout is not None
        with self._process.stdout as said:
            self.endpoint = said.readline().strip()
        if not self.endpoint:
            message = "moto's server does not start"
            raise RuntimeError(message)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @functools.cached_property
    def client(self) -> Any:
        """boto3's S3: an oracle that shares no code with the program."""
        import boto3

        return boto3.client(
            "s3", endpoint_url=self.endpoint, region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
        )  # fmt: skip


def environment(endpoint: str) -> dict[str, str]:
    """Return the variables that lead a process to the store."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@dataclass
class Bucket:
    store: ObjectStore
    name: str
    client: Any = field(init=False)

    def __post_init__(self) -> None:
        self.client = self.store.client
        self.client.create_bucket(Bucket=self.name)

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    def put(self, key: str, data: bytes) -> str:
        self._asked("PUT", key, data)
        return f"{self.url}/{key}"

    def tree(self, below: str = "") -> dict[str, bytes]:
        """Return all objects below a key, like `builders.tree`."""
        prefix = f"{below}/" if below else ""
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.name, Prefix=prefix
        )
        keys = [one["Key"] for page in pages for one in page.get("Contents", ())]
        return {key[len(prefix) :]: self.read(key) for key in keys}

    def read(self, key: str) -> bytes:
        return self._asked("GET", key)

    def has(self, key: str) -> bool:
        return bool(self.client.list_objects_v2(Bucket=self.name, Prefix=key)["KeyCount"])

    def _asked(self, method: str, key: str, body: bytes | None = None) -> bytes:
        """Return the answer about an object, ten times as fast as boto3."""
        server = http.client.HTTPConnection(urlsplit(self.store.endpoint).netloc)
        with contextlib.closing(server):
            server.request(method, f"/{self.name}/{quote(key)}", body, _SIGNED)
            answer = server.getresponse()
            data = answer.read()
        assert answer.status == 200, (method, key, answer.status)
        return data

    def unfinished_uploads(self) -> list[str]:
        """Return the keys of multipart uploads that were never completed."""
        found = self.client.list_multipart_uploads(Bucket=self.name)
        return [one["Key"] for one in found.get("Uploads", ())]


@dataclass(frozen=True)
class Request:
    number: int
    method: str
    path: str
    headers: Mapping[str, str]

    @property
    def is_upload_part(self) -> bool:
        """Whether it uploads a part of a multipart upload."""
        return self.method == "PUT" and "partNumber=" in self.path


@dataclass(frozen=True)
class Fault:
    delay_s: float = 0.0
    hold: threading.Event | None = None
    status: int | None = None
    body: str = ""
    is_reset: bool = False
    """The connection is reset before the server receives the request."""
    cut_at: int | None = None
    """Number of bytes of the body after which the connection is reset."""
    stall_at: int | None = None
    """Number of bytes of the body after which nothing is sent."""
    is_deaf: bool = False
    """The server processes the request, and its answer is lost."""
    bytes_per_s: float | None = None


@dataclass
class Proxy:
    """Context: forwards requests to the store, with the faults of `rule`."""

    store: ObjectStore
    rule: Callable[[Request], Fault | None] = lambda _: None
    requests: list[Request] = field(default_factory=list)

    def __enter__(self) -> Self:
        upstream = urlsplit(self.store.endpoint).netloc
        self._lock = threading.Lock()

        handler = type("Handler", (_Passing,), {"proxy": self, "host": upstream})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        # A client that is killed breaks off in the midst of a request.
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def took(self, method: str, path: str, headers: Mapping[str, str]) -> Fault:
        """Record a request; return its fault."""
        with self._lock:
            request = Request(len(self.requests), method, path, headers)
            self.requests.append(request)
        return self.rule(request) or Fault()

    def reset(self) -> None:
        with self._lock:
            self.requests.clear()
        self.rule = lambda _: None

    def count(self, method: str = "", path: str = "") -> int:
        """Return the number of requests with this method and text in their path."""
        return sum(r.method.startswith(method) and path in r.path for r in list(self.requests))


def nth(number: int, fault: Fault, wanted: Callable[[Request], bool]) -> Any:
    """Return a rule that applies a fault to the nth wanted request, from 0."""
    lock = threading.Lock()
    seen = 0

    def rule(request: Request) -> Fault | None:
        nonlocal seen
        if not wanted(request):
            return None
        with lock:
            seen += 1
            return fault if seen == number + 1 else None

    return rule


class _Passing(BaseHTTPRequestHandler):
    proxy: Proxy
    host: str
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _pass(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        fault = self.proxy.took(self.command, self.path, headers)
        time.sleep(fault.delay_s)
        if fault.hold is not None:
            fault.hold.wait()
        if fault.is_reset:
            self._break_off()
            return
        with contextlib.suppress(OSError):
            body = b"".join(
                _slowly(self.rfile.read, int(headers.get("content-length", 0)), fault.bytes_per_s)
            )
            if fault.status is not None:
                self._answer(fault.status, {"Content-Type": "text/xml"}, fault.body.encode(), fault)
                return
            server = http.client.HTTPConnection(self.host)
            with contextlib.closing(server):
                server.putrequest(
                    self.command, self.path, skip_host=True, skip_accept_encoding=True
                )
                for name, value in self.headers.items():
                    server.putheader(name, value)
                server.endheaders(body)
                answer = server.getresponse()
                data = answer.read()
            if fault.is_deaf:
                self._break_off()
                return
            self._answer(answer.status, dict(answer.getheaders()), data, fault)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass  # noqa: N815 - http.server's names

    def _answer(self, status: int, headers: dict[str, str], data: bytes, fault: Fault) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, value)
        length = headers.get("Content-Length", len(data)) if self.command == "HEAD" else len(data)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault.cut_at is not None:
            self.wfile.write(data[: fault.cut_at])
            self.wfile.flush()
            self._break_off()
            return
        if fault.stall_at is not None:
            self.wfile.write(data[: fault.stall_at])
            self.wfile.flush()
            threading.Event().wait()
        for block in _slowly(io.BytesIO(data).read, len(data), fault.bytes_per_s):
            self.wfile.write(block)

    def _break_off(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RD)
        self.connection.close()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _slowly(read: Any, num_bytes: int, bytes_per_s: float | None) -> Iterator[bytes]:
    block_bytes = _BLOCK_BYTES if bytes_per_s is None else max(1, int(bytes_per_s / 10))
    while num_bytes > 0:
        block = read(min(num_bytes, block_bytes))
        if not block:
            return
        if bytes_per_s is not None:
            time.sleep(len(block) / bytes_per_s)
        yield block
        num_bytes -= len(block)


def process_environment(endpoint: str, **more: str) -> dict[str, str]:
    """Return the environment of a program that uses the store."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "GOOGLE_", "AZURE_"))}
    return {**kept, **environment(endpoint), "NO_COLOR": "1", **more}


def _serve() -> None:
    """Serve S3, and print the address first.

    `moto.server` looks for the service that each request is for among all of AWS, in a folder
    that it lists twice a request, and logs the request: that takes as long as the answer.
    """
    from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server(
        "127.0.0.1", 0, create_backend_app("s3"), threaded=True, request_handler=MotoRequestHandler
    )
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    _serve()
