"""The folder of an upload in the cache: sent files, notes, and the copy for the check.

files/     links to the files of the dataset, and the client's `dataset-metadata.json`
.kaggle/   the client's notes: the upload address of each file, to continue it
note.json  hash of the files of the last upload, and the version that it created
back/      the archive that is downloaded for the check
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.storage.atomic_file import write_durably
from shardprep.storage.cache import cache_root, make_cache
from shardprep.storage.lock import locked

if TYPE_CHECKING:
    from shardprep.source.kaggle.ref import KaggleRef

_METADATA = "dataset-metadata.json"


@dataclass(frozen=True, slots=True)
class Note:
    """The last started upload."""

    fingerprint: str = ""
    """Hash of the paths, sizes and hashes of the files."""
    after: int = 0
    """Newest version on Kaggle at the start; 0 for none."""
    is_asked_for: bool = False
    """True if all files were sent and the version was requested."""
    version: int | None = None
    """Created version; None while unknown."""
    is_checked: bool = False
    """True if the downloaded copy was equal."""


class UploadFolder:
    """This machine's notes about uploads to one Kaggle dataset."""

    def __init__(self, ref: KaggleRef) -> None:
        self.path = cache_root() / "kaggle" / "uploads" / ref.owner / ref.name
        self.files = self.path / "files"
        self.back = self.path / "back"
        self._note = self.path / "note.json"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Create the folder, readable only for its owner, and lock it.

        Raises:
            BusyError: another upload to the same dataset is running.

        """
        make_cache(self.path).chmod(0o700)  # notes contain upload addresses
        with locked(self.path, who="upload", flag="SHARDPREP_CACHE"):
            yield

    @property
    def note(self) -> Note:
        """The note, or an empty one."""
        try:
            return Note(**json.loads(self._note.read_text()))
        except (OSError, ValueError, TypeError):
            return Note()

    def write_note(self, note: Note) -> None:
        """Write the note, and forget sent files of other datasets."""
        if note.fingerprint != self.note.fingerprint:
            shutil.rmtree(self.path / ".kaggle", ignore_errors=True)
        write_durably(self._note, json.dumps(asdict(note)).encode())

    def forget(self) -> None:
        """Forget all sent files, so that the next run sends everything."""
        self._note.unlink(missing_ok=True)
        self.clear()

    def clear(self) -> None:
        """Remove everything except the note."""
        for folder in (self.files, self.back, self.path / ".kaggle"):
            shutil.rmtree(folder, ignore_errors=True)

    def link(self, dataset: Path, paths: Iterable[str], metadata: dict[str, object]) -> None:
        """Create the folder to send from links; the dataset's own folder is not changed."""
        shutil.rmtree(self.files, ignore_errors=True)
        for path in paths:
            link = self.files / path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to((dataset / path).resolve())
        (self.files / _METADATA).write_text(json.dumps(metadata))
