"""The watcher of a download: a protocol, which the command line implements."""

from __future__ import annotations

from typing import Protocol


class DownloadWatcher(Protocol):
    """Receives the progress of a download."""

    def notice(self, line: str) -> None:
        """Something that a person may want to know, in one line."""

    def begin(self, what: str, num_bytes: int | None) -> None:
        """A phase ("downloading", "checking", "copying") of so many bytes begins; None: unknown.

        A download that is taken up again begins anew, and its first `progress` is above 0.
        """

    def progress(self, num_bytes: int) -> None:
        """So many bytes of the phase are done; fewer than before where it started over."""
