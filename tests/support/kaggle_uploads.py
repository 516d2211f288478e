"""Uploads to the Kaggle on loopback: resumable, processed, unpacked, and failing as asked."""

from __future__ import annotations

import io
import re
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from http.server import BaseHTTPRequestHandler

CALLS = (
    "GetDatasetStatus", "GetDataset", "StartBlobUpload", "CreateDataset", "CreateDatasetVersion",
)  # fmt: skip
_BLOCK_BYTES = 4096


@dataclass(frozen=True)
class Answer:
    """How one API call fails."""

    status: int
    message: str = "no"
    retry_after: str | None = None


@dataclass(frozen=True)
class Transfer:
    """How one transfer of a file goes wrong; by default it does not."""

    status: int = 200
    """Refused by that, with nothing taken."""
    cut: int | None = None
    """The connection is closed after so many bytes of the next file that has more."""
    then: Callable[[], object] = lambda: None
    """Called when it has gone wrong."""


@dataclass
class Blob:
    """A file that is sent."""

    name: str
    size: int
    data: bytearray = field(default_factory=bytearray)


@dataclass
class Dataset:
    """A dataset, and the files of each version."""

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
        """Number of the newest version that is finished."""
        return len(self.versions) - (not self.is_listed)


@dataclass
class Uploads:
    """Uploads that the server has taken. Faults are used up from the front, one by one."""

    answers: dict[str, list[Answer | dict[str, Any]]] = field(default_factory=dict)
    """By call: refusals, or JSON in place of what the call would give."""
    lost: dict[str, list[Answer]] = field(default_factory=dict)
    """By call: refusals after the call was done all the same."""
    transfers: list[Transfer] = field(default_factory=list)
    resumes: list[int] = field(default_factory=list)
    """Status of questions for what has arrived, in place of the answer."""
    statuses: list[str] = field(default_factory=lambda: ["READY"])
    """Words for each new version."""
    num_stale: int = 0
    """Questions for a new version that are answered with the word for the one before."""
    change: Callable[[dict[str, bytes]], None] = lambda _: None
    """Does to the files of a version what is not to be done to them."""
    datasets: dict[str, Dataset] = field(default_factory=dict)
    blobs: dict[str, Blob] = field(default_factory=dict)
    """By token."""
    ranges: list[str] = field(default_factory=list)
    """Content-Range of each transfer that has one."""

    def answer(self, call: str, body: dict[str, Any]) -> Answer | dict[str, Any]:
        """Return JSON, or a refusal."""
        if self.answers.get(call):
            return self.answers[call].pop(0)
        found: Answer | dict[str, Any] = getattr(self, f"_{call}")(body)
        return self.lost[call].pop(0) if self.lost.get(call) else found

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
        stale = dataset.statuses[-1:] * self.num_stale
        dataset.statuses, dataset.is_listed = [*stale, *self.statuses], False
        return {"status": "ok", "url": "https://www.kaggle.com/datasets/x/y", "error": ""}

    def _named(self, body: dict[str, Any]) -> Dataset | None:
        return self.datasets.get(f"{body['ownerSlug']}/{body['datasetSlug']}")

    def take(self, request: BaseHTTPRequestHandler, token: str) -> tuple[int, dict[str, str]]:
        """Take the bytes of a PUT; return a status and headers, 0 where nothing is to be said."""
        blob, told = self.blobs[token], request.headers.get("Content-Range", "")
        self.ranges += [told] if told else []
        if told.startswith("bytes */"):
            if self.resumes:
                return self.resumes.pop(0), {}
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
