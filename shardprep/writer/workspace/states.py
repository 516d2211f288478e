"""The transitions between the states of a build that both storages share."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from shardprep.errors import BuildError
from shardprep.writer.fingerprint import differences
from shardprep.writer.workspace.layout import (
    BUILD_FILE,
    RECEIPTS_DIR,
    Folders,
    build_hash,
    dump_build,
    parse_build,
    read_build,
    receipt_name,
    taken_over,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardprep.dataset.manifest import Fingerprint, Manifest
    from shardprep.writer.workspace.local import LocalWorkspace
    from shardprep.writer.workspace.remote import ObjectWorkspace

    Workspace = LocalWorkspace | ObjectWorkspace


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
    """Take up the unfinished build of this fingerprint, or start a new one.

    Args:
        workspace: the place of the build.
        fingerprint: inputs and options of the build.
        overwrite: an unfinished build of another fingerprint may be removed.
        may_stand: a finished dataset may be here, which the build is to replace.

    Returns:
        Whether the build is new.

    Raises:
        BuildError: another build has left work here that may not be removed.

    """
    begun = fingerprint_of(workspace)
    if begun is not None:
        changes = differences(begun, fingerprint)
        if not changes:
            return False
        if not overwrite and (not workspace.is_exclusive or has_work(workspace)):
            is_dead = "" if workspace.is_exclusive else "if that is no more at work, "
            way = "add --overwrite to start again, or give the former options"
            raise _other_build(workspace, changes, is_dead + way)
    with writing(workspace):
        build = dump_build(fingerprint)
        if workspace.start(build, over=begun is not None, may_stand=may_stand):
            return True
    # Another run has begun in between.
    return begin(workspace, fingerprint, overwrite=overwrite, may_stand=may_stand)


def join(workspace: Workspace, fingerprint: Fingerprint) -> None:
    """Take up a build that others may be writing parts of, or start it.

    Raises:
        BuildError: a build of another fingerprint was begun here.

    """
    if fingerprint_of(workspace) is None:
        with writing(workspace):
            workspace.state.create(BUILD_FILE, dump_build(fingerprint))
    refuse_other_build(workspace, fingerprint)


def refuse_other_build(workspace: Workspace, fingerprint: Fingerprint) -> None:
    """Check that no build of another fingerprint was begun here.

    Raises:
        BuildError: one was.

    """
    begun = fingerprint_of(workspace)
    if begun is not None and (changes := differences(begun, fingerprint)):
        raise _other_build(
            workspace,
            changes,
            "give all parts the same source and options, or remove the folder to start again",
        )


def _other_build(workspace: Workspace, changes: list[str], hint: str) -> BuildError:
    what = f"an unfinished build is here, begun with other {', '.join(changes)}"
    return BuildError(str(workspace.state), what, hint)


def refuse_other_dataset(
    workspace: Workspace, finished: Manifest, fingerprint: Fingerprint
) -> None:
    """Check that the finished dataset has this fingerprint, versions aside.

    Raises:
        BuildError: it was built from other inputs, or with other options.

    """
    there = finished.fingerprint.model_copy(update={"versions": fingerprint.versions})
    if changes := differences(there, fingerprint):
        raise BuildError(
            workspace.location,
            f"is there already, and was built with other {', '.join(changes)}",
            "add --overwrite to replace it, or give another --version or --name",
        )


def folders_of(workspace: Workspace, fingerprint: Fingerprint) -> Folders:
    """Return the folders that the build of this fingerprint, begun here, writes to.

    Raises:
        BuildError: another build has taken over, or none is begun.

    """
    data = workspace.state.read(BUILD_FILE)
    if data is None or differences(parse_build(workspace.state, data), fingerprint):
        raise taken_over(workspace.state)
    return Folders(workspace.output(fingerprint), workspace.state, build_hash(data))


def forget(workspace: Workspace, shards: Iterable[str]) -> None:
    """Remove the receipts of shards, so that these are written again."""
    workspace.state.remove([receipt_name(shard) for shard in shards])


def take_back(workspace: Workspace, fingerprint: Fingerprint, *, is_new: bool) -> None:
    """Remove a build that failed before any work was done, if no other run may be using it.

    Args:
        workspace: the place of the build.
        fingerprint: the fingerprint of the build that failed.
        is_new: it was begun by this run.

    """
    begun = fingerprint_of(workspace)
    is_ours = begun is None or not differences(begun, fingerprint)
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
