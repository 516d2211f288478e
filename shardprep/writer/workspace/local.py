"""Where a dataset is being built, and the step by which it comes to exist there.

On a disk all work happens in `<version>.incomplete/`, which is renamed at the end. A finished
dataset that stands there stays as it is until then. How it is in object storage, `remote_place`
says.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shardprep.dataset.folder import DatasetFolder
from shardprep.dataset.manifest import MANIFEST_FILE, load_manifest
from shardprep.errors import BuildError
from shardprep.storage.atomic_file import sync_folder
from shardprep.storage.folder import LocalFolder
from shardprep.storage.lock import LOCK_FILE, locked
from shardprep.storage.objects import ObjectFacts
from shardprep.storage.url import ObjectUrl, parse_place
from shardprep.writer.shard import BUILD_FILE, PARTS_DIR
from shardprep.writer.workspace.remote import ObjectPlace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardprep.dataset.manifest import Fingerprint, Manifest
    from shardprep.storage.folder import Folder

WORK_DIR = ".work"


@contextlib.contextmanager
def writing(place: Place) -> Iterator[None]:
    """Say in our words what the disk has to say."""
    try:
        yield
    except OSError as error:
        raise BuildError(
            str(error.filename or place.work),
            f"cannot be written ({error.strerror or error})",
            "what is done is kept: free some space and run the same command again",
        ) from error


class Place(Protocol):
    """Where one dataset is being built, or stands finished."""

    @property
    def location(self) -> str:
        """Where the finished dataset is, for people."""

    @property
    def work(self) -> str:
        """Where the unfinished one is, for people."""

    @property
    def parts(self) -> Folder:
        """The folder of what is needed until the dataset is complete."""

    def shards(self, fingerprint: Fingerprint) -> Folder:
        """Return where a build of this fingerprint puts what the dataset will consist of."""

    @property
    def is_exclusive(self) -> bool:
        """Whether `held` keeps others out: what another has begun here is then no more at work."""

    def stands(self) -> bool:
        """Tell whether there is a finished dataset, damaged or not."""

    def finished(self) -> Manifest | None:
        """Return the manifest of the finished dataset, None where there is none."""

    def files(self) -> Mapping[str, ObjectFacts]:
        """Return the files of the finished dataset by name, and those of others beside them."""

    def sealed(self) -> Manifest | None:
        """Return the manifest of a dataset that is complete and has not its name yet."""

    def held(self, *, alone: bool) -> contextlib.AbstractContextManager[bool]:
        """Keep other builds out: all of them, or those that must be alone.

        Gives whether that can be had here.
        """

    def scratch(self) -> contextlib.AbstractContextManager[Path]:
        """Give a folder on this machine for what must be unpacked; it goes in the end."""

    def start(self, build: bytes, *, over: bool, may_stand: bool) -> bool:
        """Keep the `BUILD_FILE` of a new build and nothing else of an unfinished one.

        Args:
            build: what it is to hold.
            over: take the place of a build that was begun; without it, False where one was.
            may_stand: there may be a finished dataset, which stays as it is.

        """

    def adopt(self, file: str, name: str, mark: str) -> str:
        """Let a file of the finished dataset count as one that the build has made.

        Args:
            file: its name there.
            name: its name in the build.
            mark: by which `files` has told its bytes.

        Returns:
            By what the folder of the build tells its bytes again.

        """

    def discard(self) -> None:
        """Take back what a build has made that came to nothing."""

    def seal(self, manifest: Manifest, shards: Folder) -> None:
        """Write the manifest of what lies in `shards`: from then on the dataset is complete."""

    def is_settled(self, manifest: Manifest) -> bool:
        """Tell whether `publish` of the finished dataset, which has this manifest, has ended."""

    def publish(self, manifest: Manifest) -> None:
        """Give the complete dataset its name, and remove what it needs no more.

        One that was begun before is ended.
        """

    def documents(self) -> Path:
        """Return a folder of this machine with all of the finished dataset but its shards."""

    def draft(self, shards: Folder) -> Path:
        """Return the same of one that lies in `shards` and lacks only its manifest."""


def place_of(out: str, name: str, version: str) -> Place:
    """Return where a dataset of this name and version is built below `out`."""
    where = parse_place(out)
    if isinstance(where, ObjectUrl):
        return ObjectPlace(where / name / version)
    return LocalPlace(DatasetFolder(where, name, version))


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """A folder on a disk."""

    folder: DatasetFolder

    @property
    def location(self) -> str:
        """The path of the finished dataset."""
        return str(self.folder.final)

    @property
    def work(self) -> str:
        """The path of the unfinished one."""
        return str(self.folder.incomplete)

    @property
    def parts(self) -> LocalFolder:
        """The folder of the unfinished build, for everything."""
        return LocalFolder(self.folder.incomplete)

    def shards(self, fingerprint: Fingerprint) -> Folder:
        """Return the same."""
        del fingerprint
        return self.parts

    @property
    def is_exclusive(self) -> bool:
        """There are locks."""
        return True

    def stands(self) -> bool:
        """Look for the manifest under the final name."""
        return self.folder.is_finished

    def finished(self) -> Manifest | None:
        """Return the manifest under the final name."""
        return load_manifest(self.folder.final) if self.folder.is_finished else None

    def files(self) -> Mapping[str, ObjectFacts]:
        """Return the files in the folder."""
        folder = LocalFolder(self.folder.final)
        return {
            name: ObjectFacts(name, (folder.path / name).stat().st_size, "")
            for name in folder.names()
        }

    def sealed(self) -> Manifest | None:
        """Return the manifest in the folder of the unfinished build."""
        work = self.folder.incomplete
        return load_manifest(work) if (work / MANIFEST_FILE).is_file() else None

    @contextlib.contextmanager
    def held(self, *, alone: bool) -> Iterator[bool]:
        """Hold the lock of the unfinished folder; who is alone sweeps out what the dead left."""
        with locked(self.folder.incomplete, alone=alone) as is_held:
            if alone and is_held:
                self._sweep()
            yield is_held

    def _sweep(self) -> None:
        """Remove what processes that died had begun to write, or to read."""
        work = self.folder.incomplete
        shutil.rmtree(work / WORK_DIR, ignore_errors=True)
        for path in (*work.glob(".*.tmp"), *work.glob("*/.*.tmp")):
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Give a folder beside the shards, where there is room for what is unpacked."""
        below = self.folder.incomplete / WORK_DIR
        below.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=below, ignore_cleanup_errors=True) as folder:
            yield Path(folder)

    def start(self, build: bytes, *, over: bool, may_stand: bool) -> bool:
        """Empty the folder of the unfinished build, which is held."""
        del over, may_stand
        for path in self.folder.incomplete.iterdir():
            if path.name != LOCK_FILE:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.parts.write(BUILD_FILE, build)
        return True

    def adopt(self, file: str, name: str, mark: str) -> str:
        """Give a file a second name, or copy it where the file system cannot."""
        path, to = self.folder.final / file, self.folder.incomplete / name
        if not to.exists():
            to.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path.resolve(), to)
            except OSError:
                shutil.copyfile(path, to)
        return mark

    def discard(self) -> None:
        """Remove the folder, and those above it that it alone was in."""
        shutil.rmtree(self.folder.incomplete, ignore_errors=True)
        with contextlib.suppress(OSError):  # others are in there, or it is not ours
            self.folder.incomplete.parent.rmdir()
            self.folder.out.rmdir()

    def seal(self, manifest: Manifest, shards: Folder) -> None:
        """Write the manifest beside the shards."""
        shards.write(MANIFEST_FILE, manifest.dumps().encode())

    def is_settled(self, manifest: Manifest) -> bool:
        """A folder gets its name at once."""
        del manifest
        return True

    def publish(self, manifest: Manifest) -> None:
        """Rename the folder, in place of a dataset that is there."""
        del manifest
        incomplete, final, old = self.folder.incomplete, self.folder.final, self.folder.old
        shutil.rmtree(incomplete / PARTS_DIR, ignore_errors=True)
        (incomplete / BUILD_FILE).unlink(missing_ok=True)
        self._sweep()
        shutil.rmtree(old, ignore_errors=True)
        if final.exists():
            final.rename(old)
        (incomplete / LOCK_FILE).unlink(missing_ok=True)
        incomplete.rename(final)
        (final / LOCK_FILE).unlink(missing_ok=True)  # of one that came between
        sync_folder(final.parent)
        shutil.rmtree(old, ignore_errors=True)

    def documents(self) -> Path:
        """Return the finished dataset itself."""
        return self.folder.final

    def draft(self, shards: Folder) -> Path:
        """Return the folder of the unfinished one."""
        del shards
        return self.folder.incomplete
