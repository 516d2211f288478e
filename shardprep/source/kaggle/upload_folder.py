"""The folder of an upload in the cache: what is sent, what has arrived, and what came back.

files/     links to the files of the dataset, and the client's `dataset-metadata.json`
.kaggle/   the client's notes: the address of each file, to go on with it
note.json  of which files the last upload was, and which version it has made
back/      the archive that is downloaded for the check
"""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from shardprep.storage.atomic_file import write_durably
from shardprep.storage.cache import cache_root, make_cache
from shardprep.storage.lock import locked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from shardprep.source.kaggle.ref import KaggleRef

_METADATA = "dataset-metadata.json"


@dataclass(frozen=True, slots=True)
class Note:
    """The last upload that was begun."""

    fingerprint: str = ""
    """Hash of the paths, sizes and hashes of its files."""
    after: int = 0
    """Version that was the newest on Kaggle when it began, 0 for none."""
    is_asked_for: bool = False
    """All has arrived, and Kaggle was asked to make a version of it."""
    version: int | None = None
    """Version that it has made, None as long as that is not known."""
    is_checked: bool = False
    """It has come back as it was sent."""


class UploadFolder:
    """Knowledge of this machine about uploads to one dataset of Kaggle."""

    def __init__(self, ref: KaggleRef) -> None:
        self.path = cache_root() / "kaggle" / "uploads" / ref.owner / ref.name
        self.files = self.path / "files"
        self.back = self.path / "back"
        self._note = self.path / "note.json"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder, readable for its owner alone, and be the only one at work in it.

        Raises:
            BusyError: another upload to the same dataset is at work.

        """
        make_cache(self.path).chmod(0o700)  # the client's notes let anyone write to an address
        with locked(self.path, who="upload", flag="SHARDPREP_CACHE"):
            yield

    @property
    def note(self) -> Note:
        """The note, one of nothing where there is none."""
        try:
            return Note(**json.loads(self._note.read_text()))
        except (OSError, ValueError, TypeError):
            return Note()

    def write_note(self, note: Note) -> None:
        """Keep a note. What has arrived of other files than it is of is forgotten."""
        if note.fingerprint != self.note.fingerprint:
            shutil.rmtree(self.path / ".kaggle", ignore_errors=True)
        write_durably(self._note, json.dumps(asdict(note)).encode())

    def forget(self) -> None:
        """Let the next run send everything anew."""
        self._note.unlink(missing_ok=True)
        self.clear()

    def clear(self) -> None:
        """Remove all but the note."""
        for folder in (self.files, self.back, self.path / ".kaggle"):
            shutil.rmtree(folder, ignore_errors=True)

    def link(self, dataset: Path, paths: Iterable[str], metadata: dict[str, object]) -> None:
        """Lay out what the client is to send, by links: the dataset's own folder stays as it is."""
        shutil.rmtree(self.files, ignore_errors=True)
        for path in paths:
            link = self.files / path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to((dataset / path).resolve())
        (self.files / _METADATA).write_text(json.dumps(metadata))
