"""A Kaggle on loopback that speaks what the unmodified client speaks, and fails as asked.

The client is sent here by its environment alone: it takes `http://localhost` for Kaggle, and this
server for the proxy of every plain http address, invented hosts included (no name is looked up).
"""

import contextlib
import io
import json
import re
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

CALLS = (
    "GetDatasetStatus", "GetDataset", "StartBlobUpload", "CreateDataset", "CreateDatasetVersion",
)  # fmt: skip
_BLOCK_BYTES = 4096


@dataclass(frozen=True)
class Answer:
    status: int
    message: str = "no"
    retry_after: str | None = None


@dataclass(frozen=True)
class Transfer:
    """How one transfer of a file goes wrong; by default it does not."""

    status: int = 200
    """Refused by that, with nothing taken."""
    cut: int | None = None
    """Close the connection after this number of bytes of the next larger file."""
    then: Callable[[], object] = lambda: None
    """Called when it has gone wrong."""


@dataclass
class Blob:
    name: str
    size: int
    data: bytearray = field(default_factory=bytearray)


@dataclass
class Dataset:
    title: str
    license: str
    is_private: bool
    versions: list[dict[str, bytes]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)
    """Words for the newest version, one for each question; the last one stays."""
    is_listed: bool = False
    """The newest version has its number."""

    @property
    def number(self) -> int:
        return len(self.versions) - (not self.is_listed)


@dataclass
class Uploads:
    """Uploads that the server has taken. Faults are used up from the front, one by one."""

    answers: dict[str, list[Answer | dict[str, Any]]] = field(default_factory=dict)
    """By call: refusals, or JSON instead of the real answer."""
    transfers: list[Transfer] = field(default_factory=list)
    statuses: list[str] = field(default_factory=lambda: ["READY"])
    """Words for each new version."""
    change: Callable[[dict[str, bytes]], None] = lambda _: None
    """Damages the files of a version."""
    datasets: dict[str, Dataset] = field(default_factory=dict)
    blobs: dict[str, Blob] = field(default_factory=dict)
    """By token."""
    ranges: list[str] = field(default_factory=list)
    """Content-Range of each transfer that has one."""

    def answer(self, call: str, body: dict[str, Any]) -> Answer | dict[str, Any]:
        if self.answers.get(call):
            return self.answers[call].pop(0)
        found: Answer | dict[str, Any] = getattr(self, f"_{call}")(body)
        return found

    def archives(self) -> dict[str, bytes]:
        """Return the zip of each version, and of the newest, by the client's name for it."""
        found = {}
        for name, dataset in self.datasets.items():
            for number, files in enumerate(dataset.versions, 1):
                found[f"{name}/{number}"] = found[name] = _zipped(files)
        return found

    def _GetDatasetStatus(self, body: dict[str, Any]) -> Answer | dict[str, Any]:  # noqa: N802
        dataset = self._named(body)
        if dataset is None:
            return _refused(404)
        status = dataset.statuses.pop(0) if len(dataset.statuses) > 1 else dataset.statuses[0]
        dataset.is_listed |= status == "READY"
        return {"status": status}

    def _GetDataset(self, body: dict[str, Any]) -> Answer | dict[str, Any]:  # noqa: N802
        dataset = self._named(body)
        if dataset is None:
            return _refused(404)
        facts = {"title": dataset.title, "isPrivate": dataset.is_private}
        return facts | {"currentVersionNumber": dataset.number}

    def _StartBlobUpload(self, body: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        token = f"token-{len(self.blobs)}"
        self.blobs[token] = Blob(body["name"], body["contentLength"])
        return {"token": token, "createUrl": f"http://store.test/upload/{token}?upload_id=secret"}

    def _CreateDataset(self, body: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        name = f"{body['ownerSlug']}/{body['slug']}"
        dataset = Dataset(body["title"], body["licenseName"], body.get("isPrivate", False))
        self.datasets[name] = dataset
        return self._add(dataset, body["files"])

    def _CreateDatasetVersion(self, body: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        dataset = self._named(body)
        assert dataset is not None
        dataset.notes.append(body["body"]["versionNotes"])
        return self._add(dataset, body["body"]["files"])

    def _add(self, dataset: Dataset, files: list[dict[str, str]]) -> dict[str, Any]:
        found: dict[str, bytes] = {}
        for one in files:
            blob = self.blobs[one["token"]]
            assert len(blob.data) == blob.size, "a file of which bytes are missing"
            found |= _unpacked(blob)
        self.change(found)
        dataset.versions.append(found)
        dataset.statuses, dataset.is_listed = [*self.statuses], False
        return {"status": "ok", "url": "https://www.kaggle.com/datasets/x/y", "error": ""}

    def _named(self, body: dict[str, Any]) -> Dataset | None:
        return self.datasets.get(f"{body['ownerSlug']}/{body['datasetSlug']}")

    def take(self, request: BaseHTTPRequestHandler, token: str) -> tuple[int, dict[str, str]]:
        """Take the bytes of a PUT; return a status and headers, 0 where nothing is to be said."""
        blob, told = self.blobs[token], request.headers.get("Content-Range", "")
        self.ranges += [told] if told else []
        if told.startswith("bytes */"):
            if len(blob.data) == blob.size:
                return 200, {}
            return 308, {"Range": f"bytes=0-{len(blob.data) - 1}"} if blob.data else {}
        start = int(found[1]) if (found := re.match(r"bytes (\d+)-", told)) else 0
        assert start == len(blob.data) or not start
        length = int(request.headers["Content-Length"])
        is_due = self.transfers and (self.transfers[0].cut or 0) < length
        fault = self.transfers.pop(0) if is_due else Transfer()
        del blob.data[start:]
        most = length if fault.cut is None else fault.cut
        while fault.status == 200 and len(blob.data) - start < most:
            left = most - (len(blob.data) - start)
            block = request.rfile.read(min(left, _BLOCK_BYTES))
            blob.data += block
            if not block:
                break
        fault.then()
        if fault.status != 200:
            request.rfile.read(length)
            return fault.status, {}
        return (200 if fault.cut is None else 0), {}


def _unpacked(blob: Blob) -> dict[str, bytes]:
    """Return what Kaggle makes of a file: itself, or the folder that a zip is."""
    folder = blob.name.removesuffix(".zip")
    if folder == blob.name:
        return {blob.name: bytes(blob.data)}
    with zipfile.ZipFile(io.BytesIO(blob.data)) as archive:
        return {f"{folder}/{name}": archive.read(name) for name in archive.namelist()}


def _zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def _refused(status: int) -> Answer:
    return Answer(status, "Not found")


USER, KEY = "somebody", "0123456789abcdef0123456789abcdef"
LAST_MODIFIED = 1_700_000_000.0


@dataclass(frozen=True)
class Body:
    """How one transfer goes wrong; by default it does not."""

    status: int = 200
    cut: int | None = None
    """Close after this number of bytes."""
    hang: int | None = None
    """Send nothing after this number of bytes; -1: not even the status line."""
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
        self.gate.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
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
        """Send an archive, a part of it, or the next fault."""
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
