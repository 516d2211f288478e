"""The files that an unfinished build keeps beside its shards, and the transitions of its states.

Here are those that both storages share. The files lie in `<version>.incomplete/`: on a disk the
shards do too, in object storage they lie where `Workspace.output` says.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from shardprep.dataset.grammar import DocumentError, parse_document
from shardprep.dataset.manifest import Fingerprint, fingerprint_differences
from shardprep.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardprep.dataset.manifest import Manifest
    from shardprep.storage.folder import Folder
    from shardprep.writer.workspace.local import LocalWorkspace
    from shardprep.writer.workspace.remote import ObjectWorkspace

    Workspace: TypeAlias = LocalWorkspace | ObjectWorkspace

BUILD_FILE = ".build.json"
"""The fingerprint of the build that owns the folder."""
RECEIPTS_DIR = ".parts"
OUTLINE_FILE = f"{RECEIPTS_DIR}/outline.json"
SKIPPED_FILE = f"{RECEIPTS_DIR}/skipped.parquet"
"""Rows of the inputs that never became items."""
SCRATCH_DIR = ".work"
"""Unpacked archives, on a disk only."""


def receipt_name(shard: str) -> str:
    """Return the name of the receipt of a shard."""
    return f"{RECEIPTS_DIR}/{shard}.parquet"


@dataclass(frozen=True, slots=True)
class Folders:
    """The two folders that a build writes to; a small value that travels to every worker."""

    output: Folder
    """Shards and documents: the files of the future dataset."""
    state: Folder
    """The files named above; the same folder on a disk."""
    build: str = ""
    """SHA-256 of the `BUILD_FILE`, by which receipts are told from another build's.

    Checks nothing where it is ""."""

    def check_build(self) -> None:
        """Check that this build still owns the folder, and has not been published."""
        if self.build and _sha256(self.state.read(BUILD_FILE) or b"") != self.build:
            raise taken_over(self.state)

    def is_taken_over(self) -> bool:
        """Tell whether another build owns the folder now; False where none does."""
        there = self.state.read(BUILD_FILE)
        return bool(self.build) and there is not None and _sha256(there) != self.build


def taken_over(state: Folder) -> BuildError:
    """Return the error of a build whose folder another build has taken over."""
    return BuildError(
        str(state),
        "another build has taken the place of this one",
        "end one of them, or give another --name or --version",
    )


def read_build(state: Folder) -> Fingerprint | None:
    """Return the fingerprint in the `BUILD_FILE`, None where there is no such file."""
    data = state.read(BUILD_FILE)
    return None if data is None else _parse_build(state, data)


def _parse_build(state: Folder, data: bytes) -> Fingerprint:
    try:
        return parse_document(Fingerprint, data)
    except DocumentError as error:
        raise BuildError(
            state.located(BUILD_FILE), f"is damaged ({error})", f"remove {state} to start again"
        ) from error


def dump_build(fingerprint: Fingerprint) -> bytes:
    """Return the bytes of the `BUILD_FILE` of a fingerprint."""
    return fingerprint.model_dump_json(indent=2).encode()


def _sha256(build: bytes) -> str:
    return hashlib.sha256(build).hexdigest()


@contextlib.contextmanager
def writing(workspace: Workspace) -> Iterator[None]:
    """Turn errors of the disk into errors of the build."""
    try:
        yield
    except OSError as error:
        raise BuildError(
            str(error.filename or workspace.state),
            f"cannot be written ({error.strerror or error})",
            "what is done is kept: free some space and run the same command again",
        ) from error


def fingerprint_of(workspace: Workspace) -> Fingerprint | None:
    """Return the fingerprint of the build that was begun here, None where none was."""
    begun = read_build(workspace.state)
    if begun is not None:
        return begun
    sealed = workspace.sealed()
    return None if sealed is None else sealed.fingerprint


def is_begun(workspace: Workspace) -> bool:
    """Tell whether there is an unfinished build, whose `BUILD_FILE` may be damaged."""
    return workspace.state.read(BUILD_FILE) is not None or workspace.sealed() is not None


def has_work(workspace: Workspace) -> bool:
    """Tell whether the unfinished build has written anything that it need not write again."""
    start = f"{RECEIPTS_DIR}/"
    return workspace.sealed() is not None or any(
        name.startswith(start) and ".tfrecord-" in name for name in workspace.state.names()
    )


def begin(
    workspace: Workspace, fingerprint: Fingerprint, *, overwrite: bool, may_stand: bool
) -> bool:
    """Take up the unfinished build of this fingerprint, or start a new one; tell whether it is new.

    With `overwrite`, an unfinished build of another fingerprint may be removed; else it is an error
    where it has done any work. A finished dataset, which the build is to replace, `may_stand` here.
    """
    begun = fingerprint_of(workspace)
    if begun is not None:
        changes = fingerprint_differences(begun, fingerprint)
        if not changes:
            return False
        if not overwrite and (not workspace.is_exclusive or has_work(workspace)):
            is_dead = "" if workspace.is_exclusive else "if that is no more at work, "
            way = "add --overwrite to start again, or give the former options"
            raise _other_build(workspace, changes, is_dead + way)
    with writing(workspace):
        if workspace.start(fingerprint, over=begun is not None, may_stand=may_stand):
            return True
    # Another run has begun in between.
    return begin(workspace, fingerprint, overwrite=overwrite, may_stand=may_stand)


def join(workspace: Workspace, fingerprint: Fingerprint) -> None:
    """Take up a build that others may be writing parts of, or start it."""
    if fingerprint_of(workspace) is None:
        with writing(workspace):
            workspace.state.create(BUILD_FILE, dump_build(fingerprint))
    refuse_other_build(workspace, fingerprint)


def refuse_other_build(workspace: Workspace, fingerprint: Fingerprint) -> None:
    """Check that no build of another fingerprint was begun here."""
    begun = fingerprint_of(workspace)
    if begun is not None and (changes := fingerprint_differences(begun, fingerprint)):
        way = "give all parts the same source and options, or remove the folder to start again"
        raise _other_build(workspace, changes, way)


def _other_build(workspace: Workspace, changes: list[str], hint: str) -> BuildError:
    what = f"an unfinished build is here, begun with other {', '.join(changes)}"
    return BuildError(str(workspace.state), what, hint)


def refuse_other_dataset(
    workspace: Workspace, finished: Manifest, fingerprint: Fingerprint
) -> None:
    """Check that the finished dataset has this fingerprint, versions aside."""
    there = finished.fingerprint.model_copy(update={"versions": fingerprint.versions})
    if changes := fingerprint_differences(there, fingerprint):
        raise BuildError(
            workspace.location,
            f"is there already, and was built with other {', '.join(changes)}",
            "add --overwrite to replace it, or give another --version or --name",
        )


def folders_of(workspace: Workspace, fingerprint: Fingerprint) -> Folders:
    """Return the folders that the build of this fingerprint, begun here, writes to."""
    data = workspace.state.read(BUILD_FILE)
    if data is None or fingerprint_differences(_parse_build(workspace.state, data), fingerprint):
        raise taken_over(workspace.state)
    return Folders(workspace.output(fingerprint), workspace.state, _sha256(data))


def forget(workspace: Workspace, shards: Iterable[str]) -> None:
    """Remove the receipts of shards, so that these are written again."""
    workspace.state.remove([receipt_name(shard) for shard in shards])


def take_back(workspace: Workspace, fingerprint: Fingerprint, *, is_new: bool) -> None:
    """Remove a build that failed before any work was done, if no other run may be using it.

    `is_new` tells whether this run has begun it.
    """
    begun = fingerprint_of(workspace)
    is_ours = begun is None or not fingerprint_differences(begun, fingerprint)
    if (is_new or workspace.is_exclusive) and is_ours and not has_work(workspace):
        workspace.discard()


def take_back_unbegun(workspace: Workspace) -> None:
    """Remove what a part has left that failed before the build was begun."""
    if is_begun(workspace):
        return
    with contextlib.suppress(BuildError), workspace.held(alone=True) as is_held:
        if is_held and not is_begun(workspace):
            workspace.discard()


def end_publishing(workspace: Workspace, finished: Manifest) -> None:
    """Publish to its end a finished dataset whose publishing was interrupted."""
    if not workspace.is_settled(finished):
        with workspace.held(alone=True), writing(workspace):
            workspace.publish(finished)
