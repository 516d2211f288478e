"""Where a dataset is being built, and the step by which it comes to exist there.

On a disk all work happens in `<version>.incomplete/`, which is renamed at the end. In object
storage, where nothing can be renamed, shards and documents are written where they will be, and
the manifest, which comes last and only where there is none, makes them a dataset; what must be
remembered until then lies below `<version>.incomplete/` there too. There are no locks either: the
`BUILD_FILE` there says whose the place is. It is created only where there is none; who is to take
the place of another build writes it before anything else, and who has lost it commits nothing
more, and takes its manifest back.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shardprep.dataset import INCOMPLETE_SUFFIX, LOCK_FILE, DatasetFolder, locked
from shardprep.durable import sync_folder
from shardprep.errors import BuildError
from shardprep.manifest import MANIFEST_FILE, load_manifest, parse_manifest
from shardprep.shard import BUILD_FILE, PARTS_DIR, Folders
from shardprep.storage.folder import LocalFolder, ObjectFolder
from shardprep.storage.staging import staged_documents
from shardprep.storage.url import ObjectUrl, parse_place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardprep.manifest import Manifest

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
    def folders(self) -> Folders:
        """Where a build puts what it makes."""

    @property
    def is_exclusive(self) -> bool:
        """Whether `held` keeps others out: what another has begun here is then no more at work."""

    def finished(self) -> Manifest | None:
        """Return the manifest of the finished dataset, None where there is none."""

    def sealed(self) -> Manifest | None:
        """Return the manifest of a dataset that is complete and has not its name yet."""

    def held(self, *, alone: bool) -> contextlib.AbstractContextManager[bool]:
        """Keep other builds out: all of them, or those that must be alone.

        Gives whether that can be had here.
        """

    def scratch(self) -> contextlib.AbstractContextManager[Path]:
        """Give a folder on this machine for what must be unpacked; it goes in the end."""

    def start(self, build: bytes, *, over: bool) -> bool:
        """Keep the `BUILD_FILE` of a new build and nothing else of an unfinished one.

        Without `over` only where no build was begun; False where one was.
        """

    def discard(self) -> None:
        """Take back what a build has made that came to nothing."""

    def seal(self, manifest: Manifest) -> None:
        """Write the manifest: from then on the dataset is complete."""

    def publish(self) -> None:
        """Give the complete dataset its name, and remove what it needs no more."""

    def retract(self) -> None:
        """Take the finished dataset away where a new one cannot come to exist beside it."""

    def documents(self) -> Path:
        """Return a folder of this machine with all of the finished dataset but its shards."""

    def draft(self) -> Path:
        """Return the same of one that lacks only its manifest."""


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
    def folders(self) -> Folders:
        """The folder of the unfinished build, for everything."""
        folder = LocalFolder(self.folder.incomplete)
        return Folders(folder, folder)

    @property
    def is_exclusive(self) -> bool:
        """There are locks."""
        return True

    def finished(self) -> Manifest | None:
        """Return the manifest under the final name."""
        return load_manifest(self.folder.final) if self.folder.is_finished else None

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

    def start(self, build: bytes, *, over: bool) -> bool:
        """Empty the folder of the unfinished build, which is held."""
        del over
        for path in self.folder.incomplete.iterdir():
            if path.name != LOCK_FILE:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        LocalFolder(self.folder.incomplete).write(BUILD_FILE, build)
        return True

    def discard(self) -> None:
        """Remove the folder, and those above it that it alone was in."""
        shutil.rmtree(self.folder.incomplete, ignore_errors=True)
        with contextlib.suppress(OSError):  # others are in there, or it is not ours
            self.folder.incomplete.parent.rmdir()
            self.folder.out.rmdir()

    def seal(self, manifest: Manifest) -> None:
        """Write the manifest beside the shards."""
        LocalFolder(self.folder.incomplete).write(MANIFEST_FILE, manifest.dumps().encode())

    def publish(self) -> None:
        """Rename the folder, in place of a dataset that is there."""
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

    def retract(self) -> None:
        """Do nothing: it stays until the new one is complete."""

    def documents(self) -> Path:
        """Return the finished dataset itself."""
        return self.folder.final

    def draft(self) -> Path:
        """Return the folder of the unfinished one."""
        return self.folder.incomplete


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """A key in object storage."""

    url: ObjectUrl

    @property
    def location(self) -> str:
        """The address of the dataset."""
        return str(self.url)

    @property
    def work(self) -> str:
        """The address of what is remembered of an unfinished build."""
        return str(self._parts.url)

    @property
    def _parts(self) -> ObjectFolder:
        return ObjectFolder(self.url._replace(key=self.url.key + INCOMPLETE_SUFFIX))

    @property
    def folders(self) -> Folders:
        """Shards where they will be, the rest beside them."""
        return Folders(ObjectFolder(self.url), self._parts)

    @property
    def is_exclusive(self) -> bool:
        """There are no locks."""
        return False

    def finished(self) -> Manifest | None:
        """Return the manifest, which only a complete dataset has."""
        data = ObjectFolder(self.url).read(MANIFEST_FILE)
        return None if data is None else parse_manifest(data, str(self.url / MANIFEST_FILE))

    def sealed(self) -> Manifest | None:
        """Return nothing: what is complete has its name."""
        return None

    def held(self, *, alone: bool) -> contextlib.AbstractContextManager[bool]:
        """Do nothing: the manifest is created by one build alone."""
        del alone
        return contextlib.nullcontext(enter_result=False)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Give a temporary folder."""
        with tempfile.TemporaryDirectory(prefix="shardprep-") as folder:
            yield Path(folder)

    def start(self, build: bytes, *, over: bool) -> bool:
        """Take the place first, then remove what was there before.

        Raises:
            BuildError: another build has published its dataset meanwhile.

        """
        folder, parts = ObjectFolder(self.url), self._parts
        if over:
            parts.write(BUILD_FILE, build)
        old, old_parts = folder.names(), parts.names()
        if not over:
            if BUILD_FILE in old_parts or not parts.create(BUILD_FILE, build):
                return False
            if folder.read(MANIFEST_FILE) is not None:
                parts.remove([BUILD_FILE])
                raise BuildError(
                    self.location, "another build has just finished here", "run the command again"
                )
        folder.remove([MANIFEST_FILE, *old])
        parts.remove([name for name in old_parts if name != BUILD_FILE])
        return True

    def discard(self) -> None:
        """Remove what is remembered."""
        self._parts.remove(self._parts.names())

    def seal(self, manifest: Manifest) -> None:
        """Create the manifest.

        Raises:
            BuildError: another build was first, with other bytes.

        """
        data = manifest.dumps().encode()
        folder = ObjectFolder(self.url)
        if not folder.create(MANIFEST_FILE, data) and folder.read(MANIFEST_FILE) != data:
            raise BuildError(
                self.location,
                "another build was published here meanwhile",
                "add --overwrite to replace it, or give another --version or --name",
            )

    def publish(self) -> None:
        """Remove what was remembered."""
        self._parts.remove(self._parts.names())

    def retract(self) -> None:
        """Remove the manifest: what is left is no dataset."""
        ObjectFolder(self.url).remove([MANIFEST_FILE])

    def documents(self) -> Path:
        """Return a copy."""
        return staged_documents(self.url)

    def draft(self) -> Path:
        """Return a copy."""
        return staged_documents(self.url)
