"""A workspace on a disk: the folder `<version>.incomplete/`, renamed when it is complete."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shardprep.dataset.folder import INCOMPLETE_SUFFIX, OLD_SUFFIX, has_manifest
from shardprep.dataset.manifest import MANIFEST_FILE, Fingerprint, Manifest, load_manifest
from shardprep.storage.atomic_file import sync_folder
from shardprep.storage.folder import Folder, LocalFolder
from shardprep.storage.lock import LOCK_FILE, locked
from shardprep.storage.objects import ListedObject
from shardprep.writer.workspace.files import (
    BUILD_FILE,
    RECEIPTS_DIR,
    SCRATCH_DIR,
    Build,
    dump_build,
)


@dataclass(frozen=True, slots=True)
class LocalWorkspace:
    """A workspace on a disk, protected by locks; has the methods of `ObjectWorkspace`."""

    final: Path

    is_exclusive = True
    """Whether `held` locks out other runs of a build."""

    @property
    def location(self) -> str:
        return str(self.final)

    @property
    def incomplete(self) -> Path:
        return self.final.with_name(self.final.name + INCOMPLETE_SUFFIX)

    @property
    def state(self) -> LocalFolder:
        return LocalFolder(self.incomplete)

    def output(self, build: Build, old: bytes | None) -> Folder:
        """Return the folder for the dataset's files; `old` is the manifest to replace, or None."""
        del build, old
        return self.state

    def stands(self) -> bool:
        return has_manifest(self.final)

    def published(self) -> bytes | None:
        """Return the published manifest, to detect other runs; always None on a disk."""
        return None

    def finished(self) -> Manifest | None:
        return load_manifest(self.final) if self.stands() else None

    def sealed(self) -> Manifest | None:
        """Return the manifest of a complete dataset that is not published yet, else None."""
        work = self.incomplete
        return load_manifest(work) if (work / MANIFEST_FILE).is_file() else None

    def files(self) -> Mapping[str, ListedObject]:
        """Return all files in the finished dataset's folder by name, foreign files included."""
        folder = LocalFolder(self.final)
        return {
            name: ListedObject(name, (folder.path / name).stat().st_size, "")
            for name in folder.names()
        }

    def documents(self, output: Folder | None = None) -> Path:
        """Return a local folder with files of the dataset or of `output`; shards may be missing."""
        return self.final if output is None else self.incomplete

    @contextlib.contextmanager
    def held(self, *, alone: bool) -> Iterator[bool]:
        """Lock the build, `alone` or together with other parts; BusyError if it is locked.

        Yield False on a disk without locks. If `alone`, remove temporary files of killed runs.
        """
        with locked(self.incomplete, alone=alone) as is_held:
            if alone and is_held:
                self._sweep()
            yield is_held

    def _sweep(self) -> None:
        work = self.incomplete
        shutil.rmtree(work / SCRATCH_DIR, ignore_errors=True)
        for path in (*work.glob(".*.tmp"), *work.glob("*/.*.tmp")):
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        below = self.incomplete / SCRATCH_DIR  # on the disk of the dataset, which has room
        below.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=below, ignore_cleanup_errors=True) as folder:
            yield Path(folder)

    def start(self, fingerprint: Fingerprint, *, over: bytes | None) -> bool:
        """Start a build and remove an old one; return False if `BUILD_FILE` is not `over`.

        `over` has the bytes of the `BUILD_FILE` that this run has read, or None if it was missing.
        """
        del over  # the lock is held, and the finished dataset is in another folder
        for path in self.incomplete.iterdir():
            if path.name != LOCK_FILE:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.state.write(BUILD_FILE, dump_build(Build(fingerprint)))
        return True

    def adopt(self, name: str) -> None:
        """Link or copy a file of the finished dataset into the build."""
        path, to = self.final / name, self.incomplete / name
        if not to.exists():
            to.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path.resolve(), to)
            except OSError:  # a file system without links
                shutil.copyfile(path, to)

    def discard(self) -> None:
        shutil.rmtree(self.incomplete, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty, or not ours
            self.final.parent.rmdir()
            self.final.parent.parent.rmdir()

    def seal(self, manifest: Manifest, output: Folder) -> None:
        """Write the manifest to `output`, as the last file of the dataset."""
        output.write(MANIFEST_FILE, manifest.dumps().encode())

    def is_settled(self, manifest: Manifest) -> bool:
        """Return whether the publication of a dataset is complete."""
        del manifest
        return True  # one rename publishes all files

    def remove_foreign(self, manifest: Manifest, output: Folder) -> None:
        """Do nothing: on a disk, `start` has already removed the files of other datasets."""

    def publish(self, manifest: Manifest, old: bytes | None) -> None:
        """Publish the sealed dataset, and end the build; `old` is the manifest to replace."""
        del manifest, old
        incomplete, final = self.incomplete, self.final
        aside = final.with_name(final.name + OLD_SUFFIX)
        shutil.rmtree(incomplete / RECEIPTS_DIR, ignore_errors=True)
        (incomplete / BUILD_FILE).unlink(missing_ok=True)
        self._sweep()
        shutil.rmtree(aside, ignore_errors=True)
        if final.exists():
            final.rename(aside)
        (incomplete / LOCK_FILE).unlink(missing_ok=True)
        incomplete.rename(final)
        (final / LOCK_FILE).unlink(missing_ok=True)  # the lock of another process
        sync_folder(final.parent)
        shutil.rmtree(aside, ignore_errors=True)
