"""Upload a dataset: link its files, send them with the kaggle client, compare what arrived.

The folder of an upload in the cache is removed at the end. It contains the links, the client's
notes (the upload address of each file), `begun.json`, and Kaggle's copy, downloaded to compare it.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from shardprep.errors import OptionName, RecipeError, SourceError, some_of
from shardprep.progress import Watch
from shardprep.source.kaggle.archive_check import differences
from shardprep.source.kaggle.client_error import AGAIN, ClientError, explained, no_credentials
from shardprep.source.kaggle.client_process import client_reports
from shardprep.source.kaggle.credentials import credentials
from shardprep.source.kaggle.download import download
from shardprep.source.kaggle.ref import KaggleRef
from shardprep.storage.atomic_file import write_durably
from shardprep.storage.cache import cache_root, make_cache
from shardprep.storage.lock import locked

_SILENCE_S, _POLL_S, _PROCESSING_S = 300.0, 10.0, 7200.0
_FAILED = ("failed", "deleted")
_NAME = re.compile("[a-z0-9]+(-[a-z0-9]+)*")


class KaggleState(NamedTuple):
    """State and newest finished version of a dataset; `status` is None if it does not exist."""

    status: str | None
    version: int = 0
    is_private: bool | None = None


def check_target(ref: KaggleRef) -> None:
    """Raise RecipeError for an invalid target, SourceError for missing credentials."""
    if ref.kind == "competition" or ref.version or not _NAME.fullmatch(ref.name):
        hint = "write kaggle:OWNER/NAME without a version; NAME has a-z, 0-9 and single hyphens"
        raise RecipeError(str(ref), "is not a target for an upload", hint)
    if not credentials():
        raise no_credentials(ref)


@dataclass(frozen=True, slots=True)
class Uploader:
    """An upload of the files of a dataset to a target that `check_target` accepts."""

    ref: KaggleRef
    folder: Path
    num_bytes: int
    hashes: Mapping[str, str]
    """Path below `folder` of each file to send → SHA-256 in hexadecimal."""
    license: str | None
    """Kaggle's name of the licence of a new dataset; None only if it is private."""
    message: str
    """Notes of a new version. Kaggle writes the notes of a new dataset."""
    is_public: bool
    watcher: Watch

    @property
    def _work(self) -> Path:
        return cache_root() / "kaggle" / "uploads" / self.ref.owner / self.ref.name / "work"

    def upload(self) -> KaggleState:
        """Send the files unless an earlier run did, compare Kaggle's copy, and return the state.

        RecipeError if an option contradicts the dataset on Kaggle, SourceError for a failure.
        """
        try:
            with locked(make_cache(self._work).parent, who="upload", flag="SHARDPREP_CACHE"):
                return self._upload()
        except ClientError as fault:
            raise explained(self.ref, fault, upload=True) from fault

    def _upload(self) -> KaggleState:
        there, note = self._state(), self._work / "begun.json"
        ours = hashlib.sha256(json.dumps(sorted(self.hashes.items())).encode()).hexdigest()
        files, after = json.loads(note.read_text()) if note.exists() else ("", 0)
        if files != ours or there.status != "ready" or there.version <= after:
            order = self._order(there)
            write_durably(note, json.dumps([ours, there.version]).encode())
            self._send(order)
            there = self._state(there.version)
        ref, to = replace(self.ref, version=there.version), self._work / "back"
        archive = download(ref, to=to, refresh=True, watcher=self.watcher)
        found = differences(archive, self.hashes, self.watcher)
        shutil.rmtree(self._work)
        if found:
            what = f"the copy from Kaggle differs from the sent files: {some_of(found, 3)}"
            raise SourceError(str(ref), what, "run the same command again: it sends all files")
        return there

    def _order(self, there: KaggleState) -> tuple[str, str, dict[str, object]]:
        """Return "create" or "version", its first argument, and metadata for the order "send"."""
        metadata: dict[str, object] = {"id": self.ref.slug}
        if there.status is None:
            if self.is_public and self.license is None:
                what = "is missing, but a public dataset needs a licence"
                raise RecipeError(OptionName("license"), what, "give a licence such as CC-BY-4.0")
            licenses = [{"name": self.license or "unknown"}]
            metadata |= {"title": self.ref.name.replace("-", " "), "licenses": licenses}
            return "create", "public" if self.is_public else "private", metadata
        if there.is_private is self.is_public:
            now, how = ("private", "leave out") if there.is_private else ("public", "add")
            what = f"the dataset is {now} on Kaggle, and a new version does not change that"
            hint = f"{how} {OptionName('public')}, or change it at {self.ref.page}/settings"
            raise RecipeError(str(self.ref), what, hint)
        return "version", self.message, metadata

    def _send(self, order: tuple[str, str, dict[str, object]]) -> None:
        files, notes = self._work / "files", self._work / "notes"
        notes.mkdir(mode=0o700, exist_ok=True)
        shutil.rmtree(files, ignore_errors=True)
        for path in self.hashes:
            (files / path).parent.mkdir(parents=True, exist_ok=True)
            (files / path).symlink_to((self.folder / path).resolve())
        (files / "dataset-metadata.json").write_text(json.dumps(order[2]))
        self.watcher.start("uploading", self.num_bytes, "bytes")
        arguments = ["send", *order[:2], str(files), str(notes)]
        with client_reports(arguments, self._work, silence_s=_SILENCE_S) as reports:
            for report in reports:
                self.watcher.advance(report.get("sent", 0))

    def _state(self, after: int = -1) -> KaggleState:
        """Return the state once a version above `after` is ready; for −1, once none is pending."""
        done = ("ready", None, *_FAILED) if after < 0 else ("ready",)
        end_s, there = time.monotonic() + _PROCESSING_S, KaggleState("unknown")
        order = ["state", self.ref.slug, str(_POLL_S)]
        with client_reports(order, self._work, silence_s=_SILENCE_S) as reports:
            self.watcher.start("asking Kaggle" if after < 0 else "waiting for Kaggle")
            for there in (KaggleState(**one["state"]) for one in reports if "state" in one):
                if there.status in done and there.version > after:
                    return there
                if there.status in _FAILED or time.monotonic() > end_s:
                    break
        what = f"Kaggle has not processed the version ({there.status})"
        raise SourceError(str(self.ref), what, f"see {self.ref.page}, then {AGAIN}")
