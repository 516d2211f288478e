"""A fast, read-only S3 server of one folder: a process that sends files from the page cache.

It answers listings, HEAD, and GET of whole objects and ranges, and ignores signatures. Per byte, it
takes no more processor time than `sendfile`.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socketserver
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from benchmarks.measure import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedIOBase

BUCKET = "benchmark"
_DATE = "2026-01-01T00:00:00.000Z"
_DATE_HTTP = "Thu, 01 Jan 2026 00:00:00 GMT"


class FolderStore:
    """Serves a folder as the bucket `BUCKET`, and sets the environment variables for clients.

    The server ends with this process, because readers that are still open may send requests.
    """

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.store", str(folder)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        os.environ |= {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._line()}",
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def cpu_s(self) -> float:
        """Return the processor seconds that the server has taken."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


class _Handler(socketserver.StreamRequestHandler):
    """Requests of one connection, one after the other."""

    disable_nagle_algorithm = True
    folder: Path

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            while line := self.rfile.readline():
                method, target, _ = line.decode().split()
                headers = dict(_headers(self.rfile))
                self._answer(method, urlsplit(target), headers)

    def _answer(self, method: str, target: SplitResult, headers: dict[str, str]) -> None:
        path = unquote(target.path).partition(f"/{BUCKET}")[2].strip("/")
        file = self.folder / path
        if path and file.is_file():
            self._send_file(method, file, headers.get("range", ""))
        elif "list-type" in target.query:
            prefix = parse_qs(target.query).get("prefix", [""])[0]
            body = _listing(self.folder, prefix).encode()
            self._head("200 OK", len(body), "Content-Type: application/xml\r\n")
            self.wfile.write(body)
        else:
            self._head("404 Not Found", 0, "")

    def _send_file(self, method: str, path: Path, wanted: str) -> None:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start, stop, status, more = 0, size, "200 OK", ""
            if wanted:
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                start, stop = int(first), min(size, int(last) + 1) if last else size
                status = "206 Partial Content"
                more = f"Content-Range: bytes {start}-{stop - 1}/{size}\r\n"
            more += f'ETag: "{size:x}"\r\nLast-Modified: {_DATE_HTTP}\r\n'
            self._head(status, stop - start, more)
            while method == "GET" and start < stop:
                start += os.sendfile(self.connection.fileno(), file.fileno(), start, stop - start)

    def _head(self, status: str, num_bytes: int, more: str) -> None:
        self.wfile.write(f"HTTP/1.1 {status}\r\nContent-Length: {num_bytes}\r\n{more}\r\n".encode())


def _headers(file: BufferedIOBase) -> Iterator[tuple[str, str]]:
    while line := file.readline().strip():
        name, _, value = line.decode().partition(":")
        yield name.lower(), value.strip()


def _listing(folder: Path, prefix: str) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    keys = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
    rows = "".join(
        f"<Contents><Key>{escape(key)}</Key><LastModified>{_DATE}</LastModified>"
        f"<ETag>&quot;{size:x}&quot;</ETag><Size>{size}</Size></Contents>"
        for key, size in keys.items()
        if key.startswith(prefix)
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"


def main() -> None:
    """Print the port and serve a folder until stdin ends; a line asks for processor seconds."""
    handler = type("Handler", (_Handler,), {"folder": Path(sys.argv[1])})
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    for _ in sys.stdin:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        print(usage.ru_utime + usage.ru_stime, flush=True)


if __name__ == "__main__":
    main()
