"""Limits of trying again: how long a silent server is waited for, and how often it is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardprep.source.kaggle.client_error import ClientError


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """Limits of a download or an upload: seconds to wait and number of attempts."""

    silence_s: float = 60.0
    """Without a byte or a sign of life, after which the client is ended."""
    attempts: int = 5
    """In a row that bring nothing new; one that does starts the count again."""
    backoff_s: float = 2.0
    """Before the second attempt; twice as much before each further one."""
    longest_wait_s: float = 300.0
    """A server that asks for more is not waited for."""

    def wait_s(self, fault: ClientError, failures: int) -> float | None:
        """Return the seconds until the next attempt, None where there is to be no further one."""
        wait = self.backoff_s * 2 ** (failures - 1)
        if fault.retry_after_s is not None:
            wait = fault.retry_after_s
        is_last = failures >= self.attempts or wait > self.longest_wait_s
        return None if is_last or not fault.is_passing else wait
