"""Failures of the kaggle client: when to retry, and an error of one line with the next step."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from shardprep.errors import OptionName, SourceError
from shardprep.progress import Watch
from shardprep.source.kaggle.credentials import Credential, credentials
from shardprep.source.kaggle.ref import SITE, KaggleRef

FaultKind = Literal[
    "http", "connection", "unresolved", "silent", "refused", "credentials", "import", "disk",
    "client", "died",
]  # fmt: skip
_SETTINGS = f"{SITE}/settings"
AGAIN = "run the same command again: it continues where it stopped"
_LATER = "run the same command again later: it continues where it stopped"


@dataclass(eq=False)
class ClientError(Exception):
    """One attempt of the kaggle client failed."""

    kind: FaultKind
    message: str = ""
    status: int = 0
    retry_after_s: float | None = None
    in_body: bool = False
    """True if the client had begun to write the file."""

    @property
    def is_passing(self) -> bool:
        is_busy = self.status in (408, 429) or self.status >= 500
        return self.kind in ("connection", "silent") or self.spoils_file or is_busy

    @property
    def spoils_file(self) -> bool:
        """True if the partial file may be damaged: kaggle 2.2.4 writes error messages into it."""
        return self.in_body and self.kind in ("http", "client")


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """Limits of a download. Times are in seconds."""

    silence_s: float = 60.0
    attempts: int = 5
    """Maximum number of attempts in a row without progress."""
    backoff_s: float = 2.0
    """Pause before the second attempt. It doubles for each further attempt."""
    longest_wait_s: float = 300.0
    """Longest pause. If a server requests a longer pause, the attempts end."""

    def pause(
        self,
        fault: ClientError,
        failures: int,
        error: SourceError,
        watcher: Watch,
        *,
        has_answered: bool,
    ) -> None:
        """Wait before the next attempt; raise `error` after the last one or a permanent fault.

        An unresolved host name is not permanent if Kaggle has answered this run before.
        """
        wait_s = self.backoff_s * 2 ** (failures - 1)
        if fault.retry_after_s is not None:
            wait_s = fault.retry_after_s
        is_last = failures >= self.attempts or wait_s > self.longest_wait_s
        is_passing = fault.is_passing or (has_answered and fault.kind == "unresolved")
        if is_last or not is_passing:
            raise error from fault
        watcher.notice(f"{error.what}: trying again in {wait_s:,.0f} s")
        time.sleep(wait_s)


def explained(ref: KaggleRef, fault: ClientError, *, upload: bool = False) -> SourceError:
    """Return the error for a failed download or upload, with the next step."""
    known = credentials()
    if fault.kind == "credentials" or fault.status == 401:
        return _not_accepted(ref, known) if known else no_credentials(ref)
    if not known and fault.status in (403, 404):
        return no_credentials(ref)
    lines = _upload_lines(ref, fault) if upload else None
    if lines is None:
        lines = _http_lines(ref, fault) if fault.kind == "http" else _other_lines(ref, fault)
    return SourceError(str(ref), *lines)


def _upload_lines(ref: KaggleRef, fault: ClientError) -> tuple[str, str] | None:
    """Return problem and next step of a failed upload; None to use the text for downloads."""
    said = f"{fault.status}: {fault.message}" if fault.status else fault.message
    if fault.status == 403:
        hint = f"check that {ref.owner} is you or your organisation, and verify your phone number"
        return f"Kaggle rejects the upload ({said})", f"{hint} at {_SETTINGS}"
    if fault.kind == "refused" or (400 <= fault.status < 500 and not fault.is_passing):
        hint = f"see {SITE}/{ref.owner}/datasets for your datasets and quota, then {AGAIN}"
        if "title" in said.lower() or "slug" in said.lower():
            hint = "choose another name"
        return f"Kaggle rejects the upload ({said})", hint
    return {
        "client": (f"the kaggle client failed ({said})", AGAIN),
        "disk": (f"files cannot be written ({said})", "free some space, or set SHARDPREP_CACHE"),
    }.get(fault.kind)


def _http_lines(ref: KaggleRef, fault: ClientError) -> tuple[str, str]:
    status, said = fault.status, f"{fault.status}: {fault.message}"
    rules = ref.kind == "competition" and "rules" in fault.message.lower()
    if fault.in_body:
        lines = f"the download broke off ({said})", _LATER
    elif status == 403 and rules:
        what = "the competition's rules are not accepted yet (403)"
        lines = what, f"accept them at {ref.page}/rules"
    elif status == 403:
        why = "the account may have to join first, or to verify a phone number"
        lines = f"Kaggle refuses access ({said})", f"open {ref.page} in a browser: {why}"
    elif status == 404:
        also = "a dataset is kaggle:OWNER/NAME"
        also = also if ref.kind == "competition" else "a private dataset must be shared with you"
        lines = f"Kaggle has no such {ref.kind} (404)", f"check the name at {ref.page}; {also}"
    elif status == 429:
        wait = f"{fault.retry_after_s:,.0f} s" if fault.retry_after_s else "some minutes"
        lines = "Kaggle limits the number of requests (429)", f"wait {wait}, then {AGAIN}"
    elif status >= 500:
        lines = f"Kaggle has an internal error ({said})", _LATER
    else:
        lines = f"Kaggle rejects the download ({said})", f"see {ref.page} in a browser"
    return lines


def _other_lines(ref: KaggleRef, fault: ClientError) -> tuple[str, str]:
    what, hint = {
        "connection": (
            "no connection to Kaggle",
            f"check the network and HTTPS_PROXY, then {AGAIN}",
        ),
        "unresolved": (
            "no connection to Kaggle: its name cannot be resolved",
            "check the network; in a notebook, turn the internet on or add the data as an input",
        ),
        "silent": ("no data from Kaggle", _LATER),
        "import": ("the kaggle client cannot be loaded", "pip install 'kaggle>=2.2.4,<3' six"),
        "disk": (
            "the download cannot be written",
            f"free some space, or choose another SHARDPREP_CACHE (download: {OptionName('to')})",
        ),
        "client": ("the kaggle client failed", f"download {ref.page} and give the archive"),
        "died": (
            "the kaggle client was killed by the system or a user",
            f"free some memory, then {AGAIN}",
        ),
    }[fault.kind]
    if fault.in_body and fault.is_passing:
        what, hint = "the download broke off", _LATER
    return f"{what} ({fault.message})", hint


def no_credentials(ref: KaggleRef) -> SourceError:
    """Return the error for missing credentials, with every way to set them."""
    return SourceError(
        str(ref),
        "no Kaggle credentials found",
        f"make a token at {_SETTINGS} and set KAGGLE_API_TOKEN or save it as "
        "~/.kaggle/access_token; or set KAGGLE_USERNAME and KAGGLE_KEY; or save kaggle.json in "
        "~/.kaggle, ~/.config/kaggle or KAGGLE_CONFIG_DIR; or run kaggle auth login",
    )


def _not_accepted(ref: KaggleRef, known: list[Credential]) -> SourceError:
    first, *others = (credential.source for credential in known)
    what = f"Kaggle does not accept the credentials of {first} (401)"
    if not others:
        return SourceError(str(ref), what, f"renew them at {_SETTINGS}, or run kaggle auth login")
    what += f", which have priority over those of {', '.join(others)}"
    hint = f"remove {first} to use {others[0]}, or renew it at {_SETTINGS}"
    return SourceError(str(ref), what, hint)
