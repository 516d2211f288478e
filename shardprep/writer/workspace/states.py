"""The workspace of one build, whatever storage it lies in; the package's table lists its states."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from shardprep.errors import BuildError
from shardprep.writer.fingerprint import differences
from shardprep.writer.workspace.layout import (
    BUILD_FILE,
    Folders,
    build_hash,
    dump_build,
    has_receipts,
    parse_build,
    read_build,
    receipt_name,
    taken_over,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from shardprep.dataset.manifest import Fingerprint, Manifest
    from shardprep.storage.folder import Folder
    from shardprep.storage.objects import ObjectFacts


class Workspace(ABC):
    """The place where one version of a dataset is built, or stands finished."""

    __slots__ = ()

    is_exclusive: bool
    """Whether `held` keeps others out, so that a build found unfinished is no longer at work."""

    @property
    @abstractmethod
    def location(self) -> str:
        """Path or address of the finished dataset."""

    @property
    @abstractmethod
    def state(self) -> Folder:
        """The folder of the files that `layout` names."""

    @abstractmethod
    def output(self, fingerprint: Fingerprint) -> Folder:
        """Return the folder that a build of this fingerprint writes the dataset's files to."""

    @abstractmethod
    def stands(self) -> bool:
        """Tell whether there is a finished dataset, damaged or not."""

    @abstractmethod
    def finished(self) -> Manifest | None:
        """Return the manifest of the finished dataset, None where there is none."""

    @abstractmethod
    def sealed(self) -> Manifest | None:
        """Return the manifest of a dataset that is complete but not published, else None."""

    @abstractmethod
    def files(self) -> Mapping[str, ObjectFacts]:
        """Return all files of the finished dataset's folder, foreign ones too, by name."""

    @abstractmethod
    def documents(self) -> Path:
        """Return a local folder with all files of the finished dataset but its shards."""

    @abstractmethod
    def draft(self, output: Folder) -> Path:
        """Return a local folder with the documents of a build that has no manifest yet."""

    @abstractmethod
    def held(self, *, alone: bool) -> contextlib.AbstractContextManager[bool]:
        """Keep other builds out: all of them, or only those that must be `alone`.

        Gives whether this storage has locks. A workspace held alone is cleared of temporary files
        of dead processes.
        """

    @abstractmethod
    def scratch(self) -> contextlib.AbstractContextManager[Path]:
        """Give a local folder for unpacked archives, removed in the end."""

    @abstractmethod
    def start(self, build: bytes, *, over: bool, may_stand: bool) -> bool:
        """Make `build` the `BUILD_FILE` of an otherwise empty workspace.

        Args:
            build: content of the file.
            over: take over the build that was begun here; else return False where one was.
            may_stand: a finished dataset may be here, and stays as it is.

        """

    @abstractmethod
    def adopt(self, file: str, name: str, mark: str) -> str:
        """Make a file of the finished dataset, at no copy if possible, a file of the build.

        Args:
            file: name in the finished dataset.
            name: name in the build.
            mark: ETag in the finished dataset, "" on a disk.

        Returns:
            The ETag in the build, "" on a disk.

        """

    @abstractmethod
    def discard(self) -> None:
        """Remove a build that came to nothing."""

    @abstractmethod
    def seal(self, manifest: Manifest, output: Folder) -> None:
        """Write the manifest of the files in `output`: from then on the dataset is complete."""

    @abstractmethod
    def publish(self, manifest: Manifest) -> None:
        """Give the sealed dataset its name and remove all else; an interrupted run goes on."""

    def is_settled(self, manifest: Manifest) -> bool:
        """Tell whether `publish` of the finished dataset, which has this manifest, has ended."""
        del manifest
        return True

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Turn errors of the disk into errors of the build."""
        try:
            yield
        except OSError as error:
            raise BuildError(
                str(error.filename or self.state),
                f"cannot be written ({error.strerror or error})",
                "what is done is kept: free some space and run the same command again",
            ) from error

    def begun(self) -> Fingerprint | None:
        """Return the fingerprint of the build that was begun here, None where none was."""
        begun = read_build(self.state)
        if begun is not None:
            return begun
        sealed = self.sealed()
        return None if sealed is None else sealed.fingerprint

    def is_begun(self) -> bool:
        """Tell whether there is an unfinished build, whose `BUILD_FILE` may be damaged."""
        return self.state.read(BUILD_FILE) is not None or self.sealed() is not None

    def has_work(self) -> bool:
        """Tell whether the unfinished build has written anything that it need not write again."""
        return self.sealed() is not None or has_receipts(self.state.names())

    def begin(self, fingerprint: Fingerprint, *, overwrite: bool, may_stand: bool) -> bool:
        """Take up the unfinished build of this fingerprint, or start a new one.

        Args:
            fingerprint: inputs and options of the build.
            overwrite: an unfinished build of another fingerprint may be removed.
            may_stand: a finished dataset may be here, which the build is to replace.

        Returns:
            Whether the build is new.

        Raises:
            BuildError: another build has left work here that may not be removed.

        """
        begun = self.begun()
        if begun is not None:
            changes = differences(begun, fingerprint)
            if not changes:
                return False
            if not overwrite and (not self.is_exclusive or self.has_work()):
                is_dead = "" if self.is_exclusive else "if that is no more at work, "
                way = "add --overwrite to start again, or give the former options"
                raise self._other_build(changes, is_dead + way)
        with self.writing():
            build = dump_build(fingerprint)
            if self.start(build, over=begun is not None, may_stand=may_stand):
                return True
        # Another run has begun in between.
        return self.begin(fingerprint, overwrite=overwrite, may_stand=may_stand)

    def join(self, fingerprint: Fingerprint) -> None:
        """Take up a build that others may be writing parts of, or start it.

        Raises:
            BuildError: a build of another fingerprint was begun here.

        """
        if self.begun() is None:
            with self.writing():
                self.state.create(BUILD_FILE, dump_build(fingerprint))
        self.refuse_other_build(fingerprint)

    def refuse_other_build(self, fingerprint: Fingerprint) -> None:
        """Check that no build of another fingerprint was begun here.

        Raises:
            BuildError: one was.

        """
        begun = self.begun()
        if begun is not None and (changes := differences(begun, fingerprint)):
            raise self._other_build(
                changes,
                "give all parts the same source and options, or remove the folder to start again",
            )

    def _other_build(self, changes: list[str], hint: str) -> BuildError:
        what = f"an unfinished build is here, begun with other {', '.join(changes)}"
        return BuildError(str(self.state), what, hint)

    def refuse_other_dataset(self, finished: Manifest, fingerprint: Fingerprint) -> None:
        """Check that the finished dataset has this fingerprint, versions aside.

        Raises:
            BuildError: it was built from other inputs, or with other options.

        """
        there = finished.fingerprint.model_copy(update={"versions": fingerprint.versions})
        if changes := differences(there, fingerprint):
            raise BuildError(
                self.location,
                f"is there already, and was built with other {', '.join(changes)}",
                "add --overwrite to replace it, or give another --version or --name",
            )

    def folders(self, fingerprint: Fingerprint) -> Folders:
        """Return the folders that the build of this fingerprint, begun here, writes to.

        Raises:
            BuildError: another build has taken over, or none is begun.

        """
        data = self.state.read(BUILD_FILE)
        if data is None or differences(parse_build(self.state, data), fingerprint):
            raise taken_over(self.state)
        return Folders(self.output(fingerprint), self.state, build_hash(data))

    def forget(self, shards: Iterable[str]) -> None:
        """Remove the receipts of shards, so that these are written again."""
        self.state.remove([receipt_name(shard) for shard in shards])

    def take_back(self, fingerprint: Fingerprint, *, is_new: bool) -> None:
        """Remove a build that failed before any work was done, if no other run may be using it.

        Args:
            fingerprint: the fingerprint of the build that failed.
            is_new: it was begun by this run.

        """
        begun = self.begun()
        is_ours = begun is None or not differences(begun, fingerprint)
        if (is_new or self.is_exclusive) and is_ours and not self.has_work():
            self.discard()

    def take_back_unbegun(self) -> None:
        """Remove what a part has left that failed before the build was begun."""
        if self.is_begun():
            return
        with contextlib.suppress(BuildError), self.held(alone=True) as is_held:
            if is_held and not self.is_begun():
                self.discard()

    def end_publishing(self, finished: Manifest) -> None:
        """Publish to its end a finished dataset whose publishing was interrupted."""
        if not self.is_settled(finished):
            with self.held(alone=True), self.writing():
                self.publish(finished)
