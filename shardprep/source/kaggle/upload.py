"""Upload a dataset: send the files, wait for Kaggle, download the version and compare it.

A version is created once, even if Kaggle's answer is lost. Before each attempt, a note records the
newest version on Kaggle and the hash of the files. If a newer version exists at the next attempt,
the request had arrived, and nothing is sent again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from shardprep.errors import OptionName, RecipeError, SourceError, some_of
from shardprep.progress import Watcher
from shardprep.source.kaggle.archive_check import differences
from shardprep.source.kaggle.client_error import ClientError
from shardprep.source.kaggle.client_process import bytes_in, client_reports
from shardprep.source.kaggle.download import download
from shardprep.source.kaggle.kaggle_state import KaggleDataset, KaggleState, UploadLimits
from shardprep.source.kaggle.upload_folder import Note, UploadFolder
from shardprep.source.kaggle.upload_metadata import Publication, check_new
from shardprep.storage.space import shortage


class KaggleVersion(NamedTuple):
    """A version on Kaggle."""

    version: int
    was_there: bool
    """True if an earlier upload had created it, so that nothing was sent."""
    is_checked: bool
    """True if it was downloaded and every byte is equal."""
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
    """Upload a dataset as a new dataset or version, continuing an interrupted upload.

    Args:
        wanted: the dataset, checked by `check_publication`.
        hashes: SHA-256 of each file in hexadecimal, by path.
        check: download the version and compare every byte.
        watcher: gets the progress; if it raises, the upload ends and can be continued.
        limits: limits of the retries and of the processing time.

    Raises:
        RecipeError: an option contradicts the dataset on Kaggle, or Kaggle's rules.
        SourceError: the upload failed.
        BusyError: another process uploads to the same dataset.

    """
    folder = UploadFolder(wanted.ref)
    with folder.held():
        return _UploadRun(wanted, hashes, folder, watcher, limits or UploadLimits()).upload(
            check=check
        )


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
        self._kaggle = KaggleDataset(wanted.ref, folder.path, watcher, limits)
        self._fingerprint = hashlib.sha256(json.dumps(sorted(hashes.items())).encode()).hexdigest()
        self._num_sent = 0

    def upload(self, *, check: bool) -> KaggleVersion:
        there = self._kaggle.settled()
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
        """Return True if, by the note, the newest version on Kaggle has these files."""
        note, newest = self._folder.note, there.version or 0
        is_asked_for = note.is_asked_for and note.fingerprint == self._fingerprint
        if there.status != "ready" or not is_asked_for:
            return False
        return newest > note.after if note.version is None else newest == note.version

    def _check_against(self, there: KaggleState) -> None:
        """Check the options against the dataset on Kaggle; RecipeError if they contradict it."""
        wanted, ref = self._wanted, self._wanted.ref
        if there.status is None:
            check_new(wanted)
            if there.user and there.user.lower() != ref.owner.lower():
                line = f"the credentials belong to {there.user}: Kaggle rejects the upload"
                self._watcher.notice(f"{line} unless {ref.owner} is an organisation of theirs")
            return
        settings = f"{ref.page}/settings"
        if there.is_private is not None and there.is_private is wanted.is_public:
            is_now = "private" if there.is_private else "public"
            hint = (
                f"leave {OptionName('public')} out"
                if there.is_private
                else f"add {OptionName('public')} to publish it"
            )
            what = f"the dataset is {is_now} on Kaggle, and the new version would be too"
            raise RecipeError(str(ref), what, f"{hint}, or change that at {settings}")
        if wanted.title is not None or wanted.license is not None:
            line = f"{ref} has its title and licence already"
            self._watcher.notice(f"{line}: they are changed at {settings}")

    def _delivered(self, there: KaggleState) -> KaggleState:
        """Send the files until Kaggle accepts them, which a lost answer may hide.

        Returns the state before.
        """
        failures = 0
        while not self._is_ours(there):
            before = self._num_sent
            try:
                self._send(there)
            except ClientError as fault:
                failures = failures + 1 if self._num_sent <= before else 1
                self._kaggle.pause(fault, failures)
                there = self._kaggle.settled()
            else:
                break
        return there

    def _made(self, before: KaggleState) -> KaggleState:
        """Wait until Kaggle has created the version; SourceError if it fails."""
        version = self._folder.note.after + 1
        there, ref = self._kaggle.settled(version, before), self._wanted.ref
        if there.has_failed:
            self._folder.forget()
            what = f"Kaggle could not process version {version} ({there.in_words})"
            raise SourceError(
                str(ref), what, f"{ref.page} may show the reason; then run the command again"
            )
        return there

    def _send(self, there: KaggleState) -> None:
        """Send the missing files, and request a version of all files."""
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
        """Download a version and compare every byte; after a difference, all is sent again.

        Raises:
            SourceError: the version cannot be downloaded, or differs from the sent files.

        """
        wanted, folder = self._wanted, self._folder
        folder.back.mkdir(exist_ok=True)
        have = bytes_in(folder.back)
        if lacking := shortage(folder.back, max(0, wanted.num_bytes - have), have):
            what = f"the copy from Kaggle does not fit {folder.back} for the check: {lacking}"
            hint = (
                "free some space, set SHARDPREP_CACHE to another "
                f"folder, or add {OptionName('no_check')}"
            )
            raise SourceError(str(wanted.ref), what, hint)
        ref = replace(wanted.ref, version=there.version)
        self._watcher.notice(f"Kaggle has version {there.version}: downloading it for a check")
        archive = download(
            ref, to=folder.back, refresh=True, watcher=self._watcher, retries=self._limits
        )
        if found := differences(archive, self._hashes, self._watcher):
            folder.forget()
            what = f"the copy from Kaggle differs from the sent files: {some_of(found, 3)}"
            raise SourceError(
                str(ref), what, "run the same command again: it sends all files again"
            )
