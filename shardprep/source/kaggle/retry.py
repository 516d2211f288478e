"""Limits of retries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardprep.source.kaggle.client_error import ClientError


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """Waiting times in seconds and number of attempts of a download or upload."""

    silence_s: float = 60.0
    """Silence after which the client is ended."""
    attempts: int = 5
    """Attempts in a row without progress."""
    backoff_s: float = 2.0
    """Pause before the second attempt; it doubles before each further one."""
    longest_wait_s: float = 300.0
    """Longest pause that a server may request."""

    def wait_s(self, fault: ClientError, failures: int) -> float | None:
        """Return the seconds until the next attempt, or None after the last."""
        wait = self.backoff_s * 2 ** (failures - 1)
        if fault.retry_after_s is not None:
            wait = fault.retry_after_s
        is_last = failures >= self.attempts or wait > self.longest_wait_s
        return None if is_last or not fault.is_passing else wait
