"""Upload a dataset: send the files, wait for Kaggle, download the version and compare it.

A version is created once, even if Kaggle's answer is lost. Before each attempt, a note records the
newest version on Kaggle and the hash of the files. If a newer version exists at the next attempt,
the request had arrived, and nothing is sent again.

The folder of an upload in the cache:

    files/     links to the files of the dataset, and the client's `dataset-metadata.json`
    .kaggle*   the client's notes: the upload address of each file, to continue it
    note.json  hash of the files of the last upload, and the version that it created
    back/      the archive that is downloaded for the check
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from shardprep.errors import OptionName, RecipeError, SourceError, some_of
from shardprep.progress import Watcher
from shardprep.source.kaggle.archive_check import differences
from shardprep.source.kaggle.client_error import AGAIN, ClientError, RetryLimits, explained
from shardprep.source.kaggle.client_process import bytes_in, client_reports
from shardprep.source.kaggle.download import download
from shardprep.source.kaggle.ref import KaggleRef
from shardprep.source.kaggle.upload_metadata import Publication, check_new
from shardprep.storage.atomic_file import write_durably
from shardprep.storage.cache import cache_root, make_cache
from shardprep.storage.lock import locked
from shardprep.storage.space import shortage

_FAILED = ("failed", "deleted")


@dataclass(frozen=True, slots=True)
class UploadLimits(RetryLimits):
    """Limits of an upload: the limits of a download, and times in seconds for the processing."""

    processing_s: float = 7200.0
    """Longest time without a change of Kaggle's state."""
    poll_s: float = 10.0
    """Longest interval between two polls. The first intervals are shorter."""
    listing_s: float = 60.0
    """Time during which Kaggle may still report the state of the previous version."""


class KaggleState(NamedTuple):
    """The state of a dataset on Kaggle."""

    user: str = ""
    status: str | None = None
    """Kaggle's word for the state of the newest version; None if the dataset does not exist."""
    version: int | None = None
    """Newest finished version, or None."""
    is_private: bool | None = None

    @property
    def has_failed(self) -> bool:
        return self.status in _FAILED

    @property
    def in_words(self) -> str:
        return (self.status or "not there yet").replace("_", " ")

    def is_settled(self, version: int) -> bool:
        """Return True if `version` is ready; for 0, if Kaggle is not processing the dataset."""
        if not version:
            return self.status in (None, "ready", *_FAILED)
        return self.status == "ready" and (self.version or 0) >= version


@dataclass(frozen=True, slots=True)
class Note:
    """The last upload that was started, as the file `note.json` records it."""

    fingerprint: str = ""
    after: int = 0
    """Newest version on Kaggle before the upload, or 0."""
    is_asked_for: bool = False
    """True if all files were sent and the version was requested."""
    version: int | None = None
    """The version that the upload created; None while it is unknown."""
    is_checked: bool = False


class UploadFolder:
    """The cache folder for uploads to one dataset; see the head of this module."""

    def __init__(self, ref: KaggleRef) -> None:
        self.path = cache_root() / "kaggle" / "uploads" / ref.owner / ref.name
        self.files = self.path / "files"
        self.back = self.path / "back"
        self._note = self.path / "note.json"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Create the folder, readable only for its owner, and lock it for the context."""
        make_cache(self.path).chmod(0o700)  # notes contain upload addresses
        with locked(self.path, who="upload", flag="SHARDPREP_CACHE"):
            yield

    @property
    def note(self) -> Note:
        try:
            return Note(**json.loads(self._note.read_text()))
        except (OSError, ValueError, TypeError):
            return Note()

    def write_note(self, note: Note) -> None:
        """Write the note. Delete the client's notes if they are about other files."""
        if note.fingerprint != self.note.fingerprint:
            self._forget_sent()
        write_durably(self._note, json.dumps(asdict(note)).encode())

    def forget(self) -> None:
        """Remove everything, including the note, so that the next run sends all files."""
        self._note.unlink(missing_ok=True)
        self.clear()

    def clear(self) -> None:
        """Remove everything except the note."""
        for folder in (self.files, self.back):
            shutil.rmtree(folder, ignore_errors=True)
        self._forget_sent()

    def _forget_sent(self) -> None:
        for folder in self.path.glob(".kaggle*"):  # its name depends on the client's version
            shutil.rmtree(folder, ignore_errors=True)

    def link(self, dataset: Path, paths: Iterable[str], metadata: dict[str, object]) -> None:
        """Fill the folder `files` with links to the files of `dataset`, and with `metadata`."""
        shutil.rmtree(self.files, ignore_errors=True)
        for path in paths:
            link = self.files / path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to((dataset / path).resolve())
        (self.files / "dataset-metadata.json").write_text(json.dumps(metadata))


class KaggleVersion(NamedTuple):
    """The version that an upload created."""

    version: int
    was_there: bool
    """True if an earlier run had created the version, so that this one sent nothing."""
    is_checked: bool
    """True if the version was downloaded and every byte is equal."""
    is_private: bool | None
    """None if Kaggle does not say."""


def upload(
    wanted: Publication,
    hashes: Mapping[str, str],
    *,
    check: bool,
    watcher: Watcher,
    limits: UploadLimits | None = None,
) -> KaggleVersion:
    """Upload a dataset as a new dataset or version, and return the version.

    Call `check_publication` first. `hashes` is path → SHA-256 in hexadecimal. An interrupted upload
    is continued. With `check`, the version is downloaded and compared. RecipeError if an option
    contradicts the dataset on Kaggle, SourceError if the upload or the comparison fails.
    """
    folder = UploadFolder(wanted.ref)
    with folder.held():
        run = _UploadRun(wanted, hashes, folder, watcher, limits or UploadLimits())
        return run.upload(check=check)


class _UploadRun:
    def __init__(
        self,
        wanted: Publication,
        hashes: Mapping[str, str],
        folder: UploadFolder,
        watcher: Watcher,
        limits: UploadLimits,
    ) -> None:
        self._wanted, self._hashes, self._folder = wanted, hashes, folder
        self._watcher, self._limits = watcher, limits
        self._has_answered = False
        self._fingerprint = hashlib.sha256(json.dumps(sorted(hashes.items())).encode()).hexdigest()
        self._num_sent = 0

    def upload(self, *, check: bool) -> KaggleVersion:
        there = self._settled()
        was_there = self._is_ours(there)
        if not was_there:
            self._check_against(there)
            there = self._made(self._delivered(there))
        note = replace(self._folder.note, version=there.version)
        self._folder.write_note(note)
        if check and not note.is_checked:
            self._compare(there)
            note = replace(note, is_checked=True)
            self._folder.write_note(note)
        self._folder.clear()
        return KaggleVersion(there.version or 0, was_there, note.is_checked, there.is_private)

    def _is_ours(self, there: KaggleState) -> bool:
        """Return True if the note shows that the newest version on Kaggle has these files."""
        note, newest = self._folder.note, there.version or 0
        is_asked_for = note.is_asked_for and note.fingerprint == self._fingerprint
        if there.status != "ready" or not is_asked_for:
            return False
        return newest > note.after if note.version is None else newest == note.version

    def _check_against(self, there: KaggleState) -> None:
        wanted, ref = self._wanted, self._wanted.ref
        if there.status is None:
            check_new(wanted)
            if there.user and there.user.lower() != ref.owner.lower():
                line = f"the credentials belong to {there.user}: Kaggle rejects the upload"
                self._watcher.notice(f"{line} unless {ref.owner} is an organisation of theirs")
            return
        settings = f"{ref.page}/settings"
        if there.is_private is not None and there.is_private is wanted.is_public:
            is_now, hint = "public", f"add {OptionName('public')} to publish it"
            if there.is_private:
                is_now, hint = "private", f"leave {OptionName('public')} out"
            what = f"the dataset is {is_now} on Kaggle, and the new version would be too"
            raise RecipeError(str(ref), what, f"{hint}, or change that at {settings}")
        if wanted.title is not None or wanted.license is not None:
            line = f"{ref} has its title and licence already"
            self._watcher.notice(f"{line}: they are changed at {settings}")

    def _delivered(self, there: KaggleState) -> KaggleState:
        """Send the files until Kaggle accepts them; return the state before the last attempt."""
        failures = 0
        while not self._is_ours(there):
            before = self._num_sent
            try:
                self._send(there)
            except ClientError as fault:
                failures = failures + 1 if self._num_sent <= before else 1
                self._pause(fault, failures)
                there = self._settled()
            else:
                break
        return there

    def _made(self, before: KaggleState) -> KaggleState:
        version = self._folder.note.after + 1
        there, ref = self._settled(version, before), self._wanted.ref
        if there.has_failed:
            self._folder.forget()
            what = f"Kaggle could not process version {version} ({there.in_words})"
            hint = f"{ref.page} may show the reason; then run the command again"
            raise SourceError(str(ref), what, hint)
        return there

    def _send(self, there: KaggleState) -> None:
        wanted, folder = self._wanted, self._folder
        num_bytes = wanted.num_bytes
        if there.status is None:
            order, last = "create", "public" if wanted.is_public else "private"
        else:
            order, last = "version", wanted.message
        note = Note(self._fingerprint, there.version or 0)
        folder.write_note(note)
        folder.link(wanted.folder, wanted.sizes, wanted.metadata(is_new=there.status is None))
        before: int | None = None
        arguments = [order, str(folder.files), str(folder.path), last]
        with client_reports(arguments, folder.path, silence_s=self._limits.silence_s) as reports:
            for report in reports:
                if "sent" in report:
                    sent = min(report["sent"], num_bytes)  # the zip of a folder can be larger
                    self._num_sent = max(self._num_sent, sent)
                    if before is None:
                        self._watcher.start("uploading", num_bytes, "bytes", sent)
                    else:
                        self._watcher.advance(sent - before)
                    before = sent
                if "arrived" in report:
                    folder.write_note(replace(note, is_asked_for=True))

    def _compare(self, there: KaggleState) -> None:
        """Download and compare the version. After a difference, the next run sends all files."""
        wanted, folder = self._wanted, self._folder
        folder.back.mkdir(exist_ok=True)
        have = bytes_in(folder.back)
        if lacking := shortage(folder.back, max(0, wanted.num_bytes - have), have):
            what = f"the copy from Kaggle does not fit {folder.back} for the check: {lacking}"
            hint = "free some space, set SHARDPREP_CACHE to another folder, or add"
            raise SourceError(str(wanted.ref), what, f"{hint} {OptionName('no_check')}")
        ref = replace(wanted.ref, version=there.version)
        self._watcher.notice(f"Kaggle has version {there.version}: downloading it for a check")
        archive = download(
            ref, to=folder.back, refresh=True, watcher=self._watcher, retries=self._limits
        )
        if found := differences(archive, self._hashes, self._watcher):
            folder.forget()
            what = f"the copy from Kaggle differs from the sent files: {some_of(found, 3)}"
            hint = "run the same command again: it sends all files again"
            raise SourceError(str(ref), what, hint)

    def _settled(self, version: int = 0, before: KaggleState | None = None) -> KaggleState:
        """Wait until Kaggle has finished `version` (0: all versions) or failed; return the state.

        `before` is the state before the version was requested; Kaggle may report it for a while.
        """
        failures = 0
        there: KaggleState | None = None
        while there is None:
            try:
                there = self._polled(version, before)
            except ClientError as fault:
                failures += 1
                self._pause(fault, failures)
        if there.has_failed or there.is_settled(version):
            return there
        which = f"version {version}" if version else "an earlier version"
        what = f"Kaggle is still processing {which} ({there.in_words})"
        limit = f"nothing new for {self._limits.processing_s:,.0f} s"
        ref = self._wanted.ref
        raise SourceError(str(ref), f"{what}, {limit}", f"see {ref.page}, then {AGAIN}")

    def _pause(self, fault: ClientError, failures: int) -> None:
        error = explained(self._wanted.ref, fault, upload=True)
        self._limits.pause(fault, failures, error, self._watcher, has_answered=self._has_answered)

    def _polled(self, version: int, before: KaggleState | None) -> KaggleState:
        """Poll until the state is settled, failed or unchanged for too long, and return it."""
        limits, watcher = self._limits, self._watcher
        order = ["state", self._wanted.ref.slug, str(limits.poll_s)]
        old_status = before.status if before else ""
        there, since_s = None, time.monotonic()
        watcher.start("asking Kaggle")
        with client_reports(order, self._folder.path, silence_s=limits.silence_s) as reports:
            for state in (KaggleState(**one["state"]) for one in reports if "state" in one):
                self._has_answered = True
                is_new, there = state != there, state
                if is_new:
                    since_s = time.monotonic()
                same_s = time.monotonic() - since_s
                is_old = there.status == old_status and same_s < limits.listing_s
                if there.is_settled(version) or (there.has_failed and not is_old):
                    break
                if is_new and not is_old:
                    watcher.notice(f"Kaggle is processing the dataset: {there.in_words}")
                if is_new:
                    watcher.start("waiting for Kaggle")
                if same_s >= limits.processing_s:
                    break
        watcher.finish()
        return there or KaggleState()
