"""Archives from Kaggle: one archive per ref, whole and checked under its name, or not there.

The client works in a hidden folder beside the archive's place; what it brought gets its name only
after every checksum in it has been read, since kaggle 2.2.4 can leave a file of the right size with
wrong bytes. A note beside it says which file that was, so that later runs ask nobody.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import tarfile
import time
import zipfile
import zlib
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol
from urllib.parse import urlsplit

from shardprep.durable import sync_folder, write_durably
from shardprep.errors import RecipeError, SourceError
from shardprep.source.kaggle_client import (
    ClientError,
    Order,
    arrived,
    bytes_in,
    credentials,
    run_client,
)
from shardprep.source.sniff import HEAD_BYTES, archive_type
from shardprep.source.streams import decompressed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, BinaryIO

    from shardprep.source.kaggle_client import Credential

SCHEME = "kaggle:"

_SITE = "https://www.kaggle.com"
_HOSTS = ("www.kaggle.com", "kaggle.com")
_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_VERSION = re.compile("[1-9][0-9]{0,8}")
_STATE = ".shardprep"
_BLOCK_BYTES = 1 << 20
_KEEP_FREE_BYTES = 64 << 20
_PAGE_STARTS = (b"<!doctype html", b"<html")
_DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, LZMAError, EOFError, OSError)
_SETTINGS = f"{_SITE}/settings"
_AGAIN = "run the same command again: it goes on where it stopped"
_LATER = "run the same command again later: it goes on where it stopped"


@dataclass(frozen=True, slots=True)
class KaggleRef:
    """One archive that Kaggle offers; `str()` is how a person writes it."""

    kind: Literal["competition", "dataset"]
    owner: str
    """Of a dataset; "" for a competition."""
    name: str
    version: int | None = None
    """Of a dataset; None: the newest when it is downloaded."""

    def __str__(self) -> str:
        return SCHEME + self.slug

    @property
    def slug(self) -> str:
        """What the client calls it: `name`, `owner/name` or `owner/name/3`."""
        parts = (self.owner, self.name, str(self.version or ""))
        return "/".join(part for part in parts if part)

    @property
    def cache_path(self) -> Path:
        """Its own folder, relative to the cache."""
        if self.kind == "competition":
            return Path("kaggle", "competitions", self.name)
        return Path("kaggle", "datasets", self.owner, self.name, str(self.version or "newest"))

    @property
    def page(self) -> str:
        """The web page on which a person finds it."""
        if self.kind == "competition":
            return f"{_SITE}/competitions/{self.name}"
        return f"{_SITE}/datasets/{self.owner}/{self.name}"

    @property
    def rules_page(self) -> str:
        """Where the rules of a competition are accepted; nothing but a browser can do it."""
        return f"{self.page}/rules"


def is_ref(source: str) -> bool:
    """Tell whether a source means Kaggle: `kaggle:…`, or an address of kaggle.com."""
    return source.startswith(SCHEME) or _host(source) in _HOSTS


def parse_ref(text: str) -> KaggleRef:
    """Return what `text` names: `[kaggle:]NAME`, `[kaggle:]OWNER/NAME[/VERSION]`, or a page's URL.

    Raises:
        RecipeError: it names neither a competition nor a dataset.

    """
    path = text.removeprefix(SCHEME)
    is_page = _host(path) in _HOSTS
    parts = [part for part in (urlsplit(path).path if is_page else path).split("/") if part]
    ref = _page_ref(parts) if is_page else _short_ref(parts)
    if ref is None or not all(map(_SLUG.fullmatch, ref.slug.split("/"))):
        raise RecipeError(
            repr(text),
            "names neither a competition nor a dataset of Kaggle",
            "write kaggle:COMPETITION, kaggle:OWNER/DATASET, kaggle:OWNER/DATASET/VERSION, or "
            f"paste its address ({_SITE}/competitions/… or {_SITE}/datasets/…)",
        )
    return ref


def _host(text: str) -> str | None:
    try:
        return urlsplit(text).hostname
    except ValueError:  # brackets that hold no address
        return None


def _page_ref(parts: list[str]) -> KaggleRef | None:
    match parts:
        case ["competitions" | "c", name, *_]:
            return KaggleRef("competition", "", name)
        case ["datasets", owner, name, "versions", version, *_] if _VERSION.fullmatch(version):
            return KaggleRef("dataset", owner, name, int(version))
        case ["datasets", owner, name, *_]:
            return KaggleRef("dataset", owner, name)
    return None


def _short_ref(parts: list[str]) -> KaggleRef | None:
    match parts:
        case ["competitions" | "c" | "datasets", _, *_]:
            return _page_ref(parts)
        case [name]:
            return KaggleRef("competition", "", name)
        case [owner, name]:
            return KaggleRef("dataset", owner, name)
        case [owner, name, version] | [owner, name, "versions", version]:
            if _VERSION.fullmatch(version):
                return KaggleRef("dataset", owner, name, int(version))
    return None


class DownloadWatcher(Protocol):
    """Told how a download goes."""

    def notice(self, line: str) -> None:
        """Something that a person may want to know, in one line."""

    def begin(self, what: str, num_bytes: int | None) -> None:
        """A phase ("downloading", "checking", "copying") of so many bytes begins; None: unknown.

        A download that is taken up again begins anew, and its first `progress` is above 0.
        """

    def progress(self, num_bytes: int) -> None:
        """So many bytes of the phase are done; fewer than before where it started over."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long and how often a download is tried."""

    silence_s: float = 60.0
    """Without a byte or a sign of life, after which the client is ended."""
    attempts: int = 5
    """In a row that bring nothing new; one that does starts the count again."""
    backoff_s: float = 2.0
    """Before the second attempt; twice as much before each further one."""
    longest_wait_s: float = 300.0
    """A server that asks for more is not waited for."""


def cache_folder(ref: KaggleRef) -> Path:
    """Return where the archive of a ref is kept: below SHARDPREP_CACHE or ~/.cache/shardprep."""
    root = os.environ.get("SHARDPREP_CACHE") or Path.home() / ".cache" / "shardprep"
    return Path(root).expanduser() / ref.cache_path


def cached_archive(ref: KaggleRef) -> Path | None:
    """Return the checked archive in the cache, None where there is none; asks nobody."""
    return _Shelf(cache_folder(ref), ref).checked()


def download(
    ref: KaggleRef,
    *,
    to: Path | None = None,
    refresh: bool = False,
    watcher: DownloadWatcher,
    patience: Patience | None = None,
) -> Path:
    """Return the checked archive of a ref, downloaded unless it is there already.

    An interrupted download is taken up again. A second process waits for the first and takes what
    that one has brought.

    Args:
        ref: what to download.
        to: a folder of the user's to put it into, instead of the cache.
        refresh: download it even if it is there; what is there stays until the new one is whole.
        watcher: told how it goes.
        patience: how long and how often to try.

    Raises:
        SourceError: it cannot be had; says why and what to do.

    """
    shelf = _Shelf(to or cache_folder(ref), ref)
    if not refresh and (archive := shelf.checked()):
        return archive
    in_cache = cached_archive(ref) if to and not refresh else None
    known = credentials()
    if not (in_cache or known or ref.kind == "dataset"):  # a public dataset needs no account
        raise _no_credentials(ref)
    try:
        with shelf.locked(watcher) as lock:
            if archive := shelf.archive_since_start(refresh=refresh):
                return archive
            if to and not refresh:
                shelf.refuse_to_replace()
            if in_cache:
                return shelf.keep(_copied(in_cache, shelf.incoming, watcher))
            watcher.notice(f"downloading {ref} to {shelf.folder}")
            return shelf.keep(_whole(shelf, lock, watcher, patience or Patience()))
    except OSError as error:
        place = str(error.filename or shelf.folder)
        raise SourceError(
            place, f"{error.strerror}", "choose another --to or SHARDPREP_CACHE"
        ) from error


class _Shelf:
    """The folder that an archive is put into, and what is known of it in `.shardprep` there."""

    def __init__(self, folder: Path, ref: KaggleRef) -> None:
        self.folder = folder
        self.ref = ref
        self.state = folder / _STATE / ref.cache_path
        self.incoming = self.state / "incoming"
        self._note = self.state / "checked.json"
        self._noted_at_start = self._noted_at()

    def checked(self) -> Path | None:
        """Return the archive if it is the one that was checked, told by size and time."""
        note = self._read_note()
        path = self.folder / str(note.get("file"))
        return path if path.is_file() and self._describe(path) == note else None

    def archive_since_start(self, *, refresh: bool) -> Path | None:
        """Return what another process has brought while this one waited for the lock."""
        is_news = self._noted_at() != self._noted_at_start
        return self.checked() if is_news or not refresh else None

    def refuse_to_replace(self) -> None:
        """Never write over a file that may be the user's own."""
        path = self.folder / f"{self.ref.name}.zip"
        if path.exists():
            raise SourceError(
                str(path),
                f"is there already, and is not a checked download of {self.ref}",
                "use it as it is, move it away, or replace it with --refresh",
            )

    @contextlib.contextmanager
    def locked(self, watcher: DownloadWatcher) -> Iterator[int]:
        """Be the only one who writes here; yield the lock's descriptor."""
        self.state.mkdir(parents=True, exist_ok=True)
        with (self.state / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                watcher.notice(f"another process is downloading {self.ref}: waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            self.incoming.mkdir(exist_ok=True)
            yield lock.fileno()

    def keep(self, archive: Path) -> Path:
        """Give a checked archive its name. The note comes first: alone, it vouches for nothing."""
        with archive.open("rb") as file:
            os.fsync(file.fileno())
        path = self.folder / archive.name
        write_durably(self._note, json.dumps(self._describe(archive)).encode())
        archive.replace(path)
        sync_folder(self.folder)
        shutil.rmtree(self.incoming, ignore_errors=True)
        return path

    def _describe(self, path: Path) -> dict[str, object]:
        status = path.stat()
        return {
            "source": str(self.ref),
            "file": path.name,
            "num_bytes": status.st_size,
            "mtime_ns": status.st_mtime_ns,
        }

    def _noted_at(self) -> int:
        return self._note.stat().st_mtime_ns if self._note.exists() else 0

    def _read_note(self) -> dict[str, object]:
        try:
            note = json.loads(self._note.read_text())
        except (OSError, ValueError):
            return {}
        return note if isinstance(note, dict) else {}


def _copied(archive: Path, folder: Path, watcher: DownloadWatcher) -> Path:
    num_bytes = archive.stat().st_size
    watcher.begin("copying", num_bytes)
    _check_space(folder, archive.name, num_bytes)
    copy = folder / archive.name
    shutil.copy2(archive, copy)
    watcher.progress(num_bytes)
    return copy


def _whole(shelf: _Shelf, lock: int, watcher: DownloadWatcher, patience: Patience) -> Path:
    """Download until every checksum holds; damage costs a second download from zero, no third."""
    ref = shelf.ref
    found = ""
    for _ in range(2):
        _download_once(shelf, lock, watcher, patience)
        paths = arrived(shelf.incoming)
        found = damage(paths[0], watcher) if len(paths) == 1 else "no archive"
        if not found:
            return paths[0]
        is_page = len(paths) == 1 and _is_page(paths[0])
        _clear(shelf.incoming)
        if is_page:
            raise SourceError(
                str(ref),
                "Kaggle sent a web page instead of an archive",
                f"open {ref.page} in a browser: something there may have to be confirmed first",
            )
        watcher.notice(f"{ref} arrived damaged ({found}): starting again from zero")
    raise SourceError(
        str(ref),
        f"arrived damaged twice ({found})",
        f"try again later, or download it from {ref.page} in a browser and give that file",
    )


def _download_once(shelf: _Shelf, lock: int, watcher: DownloadWatcher, patience: Patience) -> None:
    """Let the client run until it says that it is done, again and again while that may help."""
    order = Order(shelf.ref.kind, shelf.ref.slug, shelf.incoming)
    gauge = _Gauge(shelf, watcher)
    most = bytes_in(shelf.incoming)
    failures = 0
    while True:
        try:
            return run_client(order, gauge, lock=lock, silence_s=patience.silence_s)
        except ClientError as fault:
            if fault.spoils_file or bytes_in(shelf.incoming) < gauge.most:
                _clear(shelf.incoming)
            have = bytes_in(shelf.incoming)
            failures = failures + 1 if have <= most else 1
            most = max(most, have)
            error = _explained(shelf.ref, fault)
            wait = patience.backoff_s * 2 ** (failures - 1)
            if fault.retry_after_s is not None:
                wait = fault.retry_after_s
            if (
                not fault.is_passing
                or failures >= patience.attempts
                or wait > patience.longest_wait_s
            ):
                raise error from fault
        watcher.notice(f"{error.what}: trying again in {wait:,.0f} s")
        time.sleep(wait)


class _Gauge:
    """Passes on what the client reports, and ends it before the disk is full."""

    def __init__(self, shelf: _Shelf, watcher: DownloadWatcher) -> None:
        self.shelf = shelf
        self.watcher = watcher
        self.most = 0
        """The largest that the file has been; it shrinks where the client wrote over it."""
        self.num_bytes: int | None = None

    def size(self, num_bytes: int | None) -> None:
        self.num_bytes = num_bytes
        self.watcher.begin("downloading", num_bytes)

    def progress(self, num_bytes: int) -> None:
        self.most = max(self.most, num_bytes)
        missing = max(0, self.num_bytes - num_bytes) if self.num_bytes else 0
        _check_space(self.shelf.incoming, str(self.shelf.ref), missing)
        self.watcher.progress(num_bytes)


def _check_space(folder: Path, name: str, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < num_bytes + _KEEP_FREE_BYTES:
        raise SourceError(
            name,
            f"does not fit: {num_bytes / 1e6:,.0f} MB are still to come, and {folder} has "
            f"{free / 1e6:,.0f} MB left",
            "free some space, or choose another place with --to or SHARDPREP_CACHE",
        )


def _clear(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def damage(path: Path, watcher: DownloadWatcher) -> str:
    """Return what is wrong with an archive, "" for one whose every checksum holds.

    A zip is read to the last member, .gz, .bz2 and .xz to their end; a tar holds checksums of its
    headers alone, and of 7z and rar no more is looked at than how they start.
    """
    with path.open("rb") as file:
        kind = archive_type(file.read(HEAD_BYTES))
        file.seek(0)
        watcher.begin("checking", path.stat().st_size)
        try:
            if kind == "zip":
                _read_zip(file, watcher)
            elif kind in ("gz", "bz2", "xz"):
                _read_all(decompressed(file, kind), file, watcher)
            elif kind == "tar":
                with tarfile.open(fileobj=file, mode="r:") as archive:
                    archive.getmembers()
        except _DAMAGE as error:
            if isinstance(error, OSError) and error.errno is not None:  # not the data, the disk
                raise
            return str(error)
    return "" if kind else "it is no archive"


def _read_zip(file: BinaryIO, watcher: DownloadWatcher) -> None:
    num_unread = 0
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            try:
                with archive.open(info) as member:
                    _read_all(member, file, watcher)
            except (NotImplementedError, RuntimeError):  # an unknown method; encrypted
                num_unread += 1
            except _DAMAGE as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                message = f"member {info.filename!r}: {error}"
                raise zipfile.BadZipFile(message) from error
    if num_unread:
        why = "encrypted, or packed by a method that is not known here"
        watcher.notice(f"members not checked: {num_unread:,}, {why}")


def _read_all(stream: IO[bytes], file: BinaryIO, watcher: DownloadWatcher) -> None:
    while stream.read(_BLOCK_BYTES):
        watcher.progress(file.tell())


def _is_page(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(HEAD_BYTES).lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(_PAGE_STARTS)


def _explained(ref: KaggleRef, fault: ClientError) -> SourceError:
    """Say what a failed attempt means, and what a person can do."""
    known = credentials()
    if fault.kind == "credentials" or fault.status == 401:
        return _not_accepted(ref, known) if known else _no_credentials(ref)
    if not known and fault.status in (403, 404):
        return _no_credentials(ref)
    what, hint = _http_lines(ref, fault) if fault.kind == "http" else _other_lines(ref, fault)
    return SourceError(str(ref), what, hint)


def _http_lines(ref: KaggleRef, fault: ClientError) -> tuple[str, str]:
    status, said = fault.status, f"{fault.status}: {fault.message}"
    rules = ref.kind == "competition" and "rules" in fault.message.lower()
    if fault.in_body:
        lines = f"the download broke off ({said})", _LATER
    elif status == 403 and rules:
        lines = (
            "the competition's rules are not accepted yet (403)",
            f"accept them at {ref.rules_page}",
        )
    elif status == 403:
        why = "the account may have to join first, or to verify a phone number"
        lines = f"Kaggle refuses access ({said})", f"open {ref.page} in a browser: {why}"
    elif status == 404:
        also = "a dataset is kaggle:OWNER/NAME" if ref.kind == "competition" else "is it private?"
        lines = f"Kaggle has no such {ref.kind} (404)", f"check the name at {ref.page}; {also}"
    elif status == 429:
        wait = f"{fault.retry_after_s:,.0f} s" if fault.retry_after_s else "some minutes"
        lines = "Kaggle limits how often it is asked (429)", f"wait {wait}, then {_AGAIN}"
    elif status >= 500:
        lines = f"Kaggle answers with an error of its own ({said})", _LATER
    else:
        lines = f"Kaggle cannot serve it ({said})", f"see {ref.page} in a browser"
    return lines


def _other_lines(ref: KaggleRef, fault: ClientError) -> tuple[str, str]:
    what, hint = {
        "connection": (
            "no connection to Kaggle",
            f"check the network and HTTPS_PROXY, then {_AGAIN}",
        ),
        "silent": ("nothing has come from Kaggle", _LATER),
        "import": ("the kaggle client cannot be loaded", "pip install 'kaggle>=2.2.4,<3' six"),
        "disk": ("cannot be written", "free some space, or choose another --to or SHARDPREP_CACHE"),
        "client": ("the kaggle client failed", f"download it from {ref.page} and give that file"),
        "died": ("the kaggle client was ended from outside", f"free some memory, then {_AGAIN}"),
    }[fault.kind]
    if fault.in_body and fault.is_passing:
        what, hint = "the download broke off", _LATER
    return f"{what} ({fault.message})", hint


def _no_credentials(ref: KaggleRef) -> SourceError:
    return SourceError(
        str(ref),
        "no Kaggle credentials are found",
        f"make a token at {_SETTINGS} and set KAGGLE_API_TOKEN or save it as "
        "~/.kaggle/access_token; or set KAGGLE_USERNAME and KAGGLE_KEY; or save kaggle.json in "
        "~/.kaggle, ~/.config/kaggle or KAGGLE_CONFIG_DIR; or run kaggle auth login",
    )


def _not_accepted(ref: KaggleRef, known: list[Credential]) -> SourceError:
    """Name the credentials that were sent, and the good ones that they may hide."""
    first, *others = (credential.source for credential in known)
    what = f"Kaggle does not accept the credentials of {first} (401)"
    if not others:
        return SourceError(str(ref), what, f"renew them at {_SETTINGS}, or run kaggle auth login")
    return SourceError(
        str(ref),
        f"{what}, which are taken before those of {', '.join(others)}",
        f"remove {first} to use {others[0]}, or renew it at {_SETTINGS}",
    )
