"""The state of a dataset on Kaggle, polled until Kaggle has processed it."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from shardprep.errors import SourceError
from shardprep.progress import Watcher
from shardprep.source.kaggle.client_error import AGAIN, ClientError, RetryLimits, explained
from shardprep.source.kaggle.client_process import client_reports
from shardprep.source.kaggle.ref import KaggleRef

_FAILED = ("failed", "deleted")
"""Kaggle's words for a version that it could not create."""


@dataclass(frozen=True, slots=True)
class UploadLimits(RetryLimits):
    """Limits of an upload: of its requests, and of the processing time at Kaggle."""

    processing_s: float = 7200.0
    """Longest time without a change of Kaggle's state."""
    poll_s: float = 10.0
    """Interval between later polls; the first are more frequent."""
    listing_s: float = 60.0
    """Seconds for which Kaggle may still report the state of the previous version."""


class KaggleState(NamedTuple):
    """The state of a dataset on Kaggle."""

    user: str = ""
    """Owner of the credentials; "" if unknown."""
    status: str | None = None
    """Kaggle's word for the state of the newest version; None without a dataset."""
    version: int | None = None
    """Number of the newest finished version, or None."""
    is_private: bool | None = None

    @property
    def has_failed(self) -> bool:
        return self.status in _FAILED

    @property
    def in_words(self) -> str:
        return (self.status or "not there yet").replace("_", " ")

    def is_settled(self, version: int) -> bool:
        """Return True if Kaggle has finished that version (0: any or none)."""
        if not version:
            return self.status in (None, "ready", *_FAILED)
        return self.status == "ready" and (self.version or 0) >= version


class KaggleDataset:
    """A dataset on Kaggle, which may not exist yet."""

    def __init__(
        self, ref: KaggleRef, folder: Path, watcher: Watcher, limits: UploadLimits
    ) -> None:
        """`folder` is writable for the client."""
        self.ref = ref
        self._folder, self._watcher, self._limits = folder, watcher, limits
        self._has_answered = False

    def settled(self, version: int = 0, before: KaggleState | None = None) -> KaggleState:
        """Wait until Kaggle has finished or failed that version and all earlier ones.

        `before` is the state before the version was requested; a failure in it is an old one.

        Raises:
            SourceError: Kaggle takes too long or does not answer.

        """
        there = self._asked(version, before)
        if there.has_failed or there.is_settled(version):
            return there
        which = f"version {version}" if version else "an earlier version"
        what = f"Kaggle is still processing {which} ({there.in_words})"
        limit = f"nothing new for {self._limits.processing_s:,.0f} s"
        raise SourceError(str(self.ref), f"{what}, {limit}", f"see {self.ref.page}, then {AGAIN}")

    def pause(self, fault: ClientError, failures: int) -> None:
        """Wait before the next attempt, or raise the error if there is none."""
        error = explained(self.ref, fault, upload=True)
        seen = fault.after_answer() if self._has_answered else fault
        wait_s = self._limits.wait_s(seen, failures)
        if wait_s is None:
            raise error from fault
        self._watcher.notice(f"{error.what}: trying again in {wait_s:,.0f} s")
        time.sleep(wait_s)

    def _asked(self, version: int, before: KaggleState | None) -> KaggleState:
        for failures in itertools.count(1):
            try:
                return self._polled(version, before)
            except ClientError as fault:
                self.pause(fault, failures)
        raise AssertionError

    def _polled(self, version: int, before: KaggleState | None) -> KaggleState:
        """Return the state when it is settled, failed or unchanged for too long."""
        limits, watcher = self._limits, self._watcher
        order = ["state", self.ref.slug, str(limits.poll_s)]
        old_status = before.status if before else ""
        there, since_s = None, time.monotonic()
        watcher.start("asking Kaggle")
        with client_reports(order, self._folder, silence_s=limits.silence_s) as reports:
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
