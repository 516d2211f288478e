"""A workspace on a disk: `<version>.incomplete/`, renamed when it is complete."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.dataset.manifest import MANIFEST_FILE, load_manifest
from shardprep.storage.atomic_file import sync_folder
from shardprep.storage.folder import LocalFolder
from shardprep.storage.lock import LOCK_FILE, locked
from shardprep.storage.objects import ObjectFacts
from shardprep.writer.workspace.layout import BUILD_FILE, RECEIPTS_DIR, SCRATCH_DIR
from shardprep.writer.workspace.states import Workspace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardprep.dataset.folder import DatasetFolder
    from shardprep.dataset.manifest import Fingerprint, Manifest
    from shardprep.storage.folder import Folder


@dataclass(frozen=True, slots=True)
class LocalWorkspace(Workspace):
    """A folder on a disk, kept by locks."""

    folder: DatasetFolder

    is_exclusive = True

    @property
    def location(self) -> str:
        return str(self.folder.final)

    @property
    def state(self) -> LocalFolder:
        return LocalFolder(self.folder.incomplete)

    def output(self, fingerprint: Fingerprint) -> Folder:
        del fingerprint
        return self.state

    def stands(self) -> bool:
        return self.folder.is_finished

    def finished(self) -> Manifest | None:
        return load_manifest(self.folder.final) if self.folder.is_finished else None

    def sealed(self) -> Manifest | None:
        work = self.folder.incomplete
        return load_manifest(work) if (work / MANIFEST_FILE).is_file() else None

    def files(self) -> Mapping[str, ObjectFacts]:
        folder = LocalFolder(self.folder.final)
        sizes = {name: (folder.path / name).stat().st_size for name in folder.names()}
        return {name: ObjectFacts(name, num_bytes, "") for name, num_bytes in sizes.items()}

    def documents(self) -> Path:
        return self.folder.final

    def draft(self, output: Folder) -> Path:
        del output
        return self.folder.incomplete

    @contextlib.contextmanager
    def held(self, *, alone: bool) -> Iterator[bool]:
        with locked(self.folder.incomplete, alone=alone) as is_held:
            if alone and is_held:
                self._sweep()
            yield is_held

    def _sweep(self) -> None:
        """Remove temporary files of processes that died."""
        work = self.folder.incomplete
        shutil.rmtree(work / SCRATCH_DIR, ignore_errors=True)
        for path in (*work.glob(".*.tmp"), *work.glob("*/.*.tmp")):
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        below = self.folder.incomplete / SCRATCH_DIR  # the disk that has room for the dataset
        below.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=below, ignore_cleanup_errors=True) as folder:
            yield Path(folder)

    def start(self, build: bytes, *, over: bool, may_stand: bool) -> bool:
        del over, may_stand  # the lock is held, and the finished dataset lies elsewhere
        for path in self.folder.incomplete.iterdir():
            if path.name != LOCK_FILE:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.state.write(BUILD_FILE, build)
        return True

    def adopt(self, file: str, name: str, mark: str) -> str:
        path, to = self.folder.final / file, self.folder.incomplete / name
        if not to.exists():
            to.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path.resolve(), to)
            except OSError:  # a file system without links
                shutil.copyfile(path, to)
        return mark

    def discard(self) -> None:
        shutil.rmtree(self.folder.incomplete, ignore_errors=True)
        with contextlib.suppress(OSError):  # other datasets are in there, or it is not ours
            self.folder.incomplete.parent.rmdir()
            self.folder.out.rmdir()

    def seal(self, manifest: Manifest, output: Folder) -> None:
        output.write(MANIFEST_FILE, manifest.dumps().encode())

    def publish(self, manifest: Manifest) -> None:
        del manifest
        incomplete, final, old = self.folder.incomplete, self.folder.final, self.folder.old
        shutil.rmtree(incomplete / RECEIPTS_DIR, ignore_errors=True)
        (incomplete / BUILD_FILE).unlink(missing_ok=True)
        self._sweep()
        shutil.rmtree(old, ignore_errors=True)
        if final.exists():
            final.rename(old)
        (incomplete / LOCK_FILE).unlink(missing_ok=True)
        incomplete.rename(final)
        (final / LOCK_FILE).unlink(missing_ok=True)  # of a process that came in between
        sync_folder(final.parent)
        shutil.rmtree(old, ignore_errors=True)
