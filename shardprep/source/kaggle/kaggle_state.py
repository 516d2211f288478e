"""The state of a dataset on Kaggle, asked for until Kaggle is done with it."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from shardprep.errors import SourceError
from shardprep.progress import Watcher
from shardprep.source.kaggle.client_error import AGAIN, ClientError, explained
from shardprep.source.kaggle.client_process import client_reports
from shardprep.source.kaggle.retry import RetryLimits

if TYPE_CHECKING:
    from pathlib import Path

    from shardprep.source.kaggle.ref import KaggleRef

_FAILED = ("failed", "deleted")
"""Words of Kaggle for a version that it has not made."""


@dataclass(frozen=True, slots=True)
class UploadLimits(RetryLimits):
    """Limits of an upload: those of its requests, and of the time that Kaggle takes."""

    processing_s: float = 7200.0
    """Without a change of what Kaggle says that it does with the files."""
    poll_s: float = 10.0
    """Between two questions for that, the first ones apart."""
    listing_s: float = 60.0
    """In which Kaggle may still say of a version what it said of the one before."""


class KaggleState(NamedTuple):
    """A dataset as Kaggle has it."""

    user: str = ""
    """The owner of the credentials, "" if that is not known."""
    status: str | None = None
    """Kaggle's word for the state of the newest version, None where there is no such dataset."""
    version: int | None = None
    """Number of the newest version that is finished; None where there is none."""
    is_private: bool | None = None

    @property
    def has_failed(self) -> bool:
        """Whether Kaggle could not make the newest version."""
        return self.status in _FAILED

    @property
    def in_words(self) -> str:
        """The state in words, as Kaggle calls it."""
        return (self.status or "not there yet").replace("_", " ")

    def is_settled(self, version: int) -> bool:
        """Tell whether Kaggle has that version, 0 for any or none, and nothing more to do."""
        if not version:
            return self.status in (None, "ready", *_FAILED)
        return self.status == "ready" and (self.version or 0) >= version


class KaggleDataset:
    """A dataset that Kaggle has, or is to have."""

    def __init__(
        self, ref: KaggleRef, folder: Path, watcher: Watcher, limits: UploadLimits
    ) -> None:
        """`folder` is one that the client may write to."""
        self.ref = ref
        self._folder, self._watcher, self._limits = folder, watcher, limits
        self._has_answered = False

    def settled(self, version: int = 0, before: KaggleState | None = None) -> KaggleState:
        """Wait until Kaggle is done with that version and all before, or has failed.

        `before` is what Kaggle had when it was asked for the version: a failure in that is an old
        one.

        Raises:
            SourceError: it takes too long, or does not answer.

        """
        there = self._asked(version, before)
        if there.has_failed or there.is_settled(version):
            return there
        which = f"version {version}" if version else "an earlier version"
        what = f"Kaggle is still processing {which} ({there.in_words})"
        limit = f"nothing new for {self._limits.processing_s:,.0f} s"
        raise SourceError(str(self.ref), f"{what}, {limit}", f"see {self.ref.page}, then {AGAIN}")

    def pause(self, fault: ClientError, failures: int) -> None:
        """Wait before the next attempt; raise what ended this one where there is to be none."""
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
        """Return the state when it is settled, has failed, or stays the same for too long."""
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
