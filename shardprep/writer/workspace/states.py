"""Find the workspace of a build, and lead the build from state to state.

docs/architecture.md lists the states. Intact shards of a damaged dataset count as written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

import pyarrow as pa

from shardprep.dataset.folder import (
    INCOMPLETE_SUFFIX,
    ITEMS_FILE,
    SCHEMA_FILE,
    has_manifest,
    inventory,
    is_own,
    read_schema,
)
from shardprep.dataset.item_table import columns_of, read_items, rows_by_shard
from shardprep.dataset.locate import VERSION_FOLDER, below, versions_below
from shardprep.dataset.manifest import Fingerprint, Manifest, fingerprint_differences
from shardprep.errors import (
    BuildError,
    DatasetError,
    OptionName,
    RecipeError,
    ShardprepError,
    command_line,
    some_of,
)
from shardprep.recipe.recipe import Recipe
from shardprep.storage.folder import LocalFolder, ObjectFolder
from shardprep.storage.regular_file import sha256_of
from shardprep.storage.space import resumable_writes
from shardprep.storage.store import ChangedError
from shardprep.storage.url import ObjectUrl, parse_place
from shardprep.writer.plan.build_plan import read_outline
from shardprep.writer.shard import ReceiptFacts, write_receipt
from shardprep.writer.workspace.files import (
    BUILD_FILE,
    RECEIPTS_DIR,
    SCRATCH_DIR,
    DisturbedError,
    Folders,
    LateError,
    disturbed,
    hash_of,
    new_build,
    parse_build,
    read_build,
    receipt_name,
    replace_hint,
    taken_over,
)
from shardprep.writer.workspace.local import LocalWorkspace
from shardprep.writer.workspace.remote import ObjectWorkspace


def workspace_of(recipe: Recipe) -> Workspace:
    """Return the workspace for the dataset of a recipe; RecipeError if `out` is a dataset."""
    root = parse_place(recipe.out)
    if isinstance(root, Path) and has_manifest(root):
        what, hint = f"{root} is a dataset", "give the folder in which the new dataset will be"
        raise RecipeError(OptionName("out"), what, hint)
    return _at(root, (recipe.dataset_name, recipe.version))


def find_workspace(where: str) -> Workspace:
    """Return the workspace of a dataset, or of the only build or dataset below a folder.

    Unfinished builds have precedence. DatasetError unless exactly one exists.
    """
    root = parse_place(where)
    named = root.resolve() if root.name in ("", "..") and isinstance(root, Path) else root
    if VERSION_FOLDER.fullmatch(named.name):
        own = _at(named)
        folder = ObjectFolder(root) if isinstance(root, ObjectUrl) else LocalFolder(root)
        # Otherwise this is a folder of datasets whose name looks like a version.
        if own.stands() or own.state.names() or not folder.names():
            return own
    found = versions_below(root)
    unfinished = [one for one in found if one.is_unfinished]
    meant = [_at(root, one.names) for one in unfinished or found]
    if len(meant) == 1:
        return meant[0]
    if not meant:
        hint = f"give the folder of a dataset, or the {OptionName('out')} of its build"
        raise DatasetError(where, "holds no dataset, finished or not", hint)
    what = "several unfinished builds" if unfinished else "only finished datasets"
    names = some_of([one.location for one in meant])
    raise DatasetError(where, f"holds {what}: {names}", "name one of them")


def refuse_other_parts(recipe: Recipe, asked: Workspace) -> None:
    """Raise DatasetError if the recipe's `out` has a build in parts other than `asked`."""
    root = parse_place(recipe.out)
    if isinstance(root, Path) and not root.is_dir():
        return
    places = [_at(root, one.names) for one in versions_below(root) if one.is_unfinished]
    others = [one.location for one in places if one != asked and _is_in_parts(one)]
    if others:
        what = f"has no unfinished parts: they are in {some_of(others)}"
        commands = ", ".join(command_line("finalize", one) for one in others[:4])
        raise DatasetError(asked.location, what, f"run {commands}")


def _is_in_parts(workspace: Workspace) -> bool:
    try:
        outline = read_outline(workspace.state)
    except BuildError:
        return True  # `finalize` reports the damage
    return outline is not None and outline.num_parts > 1


def _at(root: Path | ObjectUrl, names: Sequence[str] = ()) -> Workspace:
    folder = below(root, names)
    if isinstance(folder, ObjectUrl):
        return ObjectWorkspace(folder._replace(key=folder.key.removesuffix(INCOMPLETE_SUFFIX)))
    if folder.parent.name in ("", ".."):  # the path alone does not name the dataset
        folder = folder.resolve()
    return LocalWorkspace(folder.with_name(folder.name.removesuffix(INCOMPLETE_SUFFIX)))


Workspace: TypeAlias = LocalWorkspace | ObjectWorkspace
Result = TypeVar("Result")
_MOST_TRIES = 5


@contextlib.contextmanager
def writing(workspace: Workspace) -> Iterator[None]:
    """Turn OSError, and ChangedError for files of this workspace, into BuildError."""
    try:
        with resumable_writes(workspace.state):
            yield
    except ChangedError as error:
        if not error.where.startswith(workspace.location):
            raise  # from a dataset that is read
        raise DisturbedError(error.where, error.what, "try again") from error


def fingerprint_of(workspace: Workspace) -> Fingerprint | None:
    """Return the fingerprint of the unfinished build, None without one; BuildError if damaged."""
    begun = read_build(workspace.state)
    if begun is not None:
        return begun.fingerprint
    sealed = workspace.sealed()
    return None if sealed is None else sealed.fingerprint


def is_begun(workspace: Workspace) -> bool:
    """Return whether there is an unfinished build, even if its `BUILD_FILE` is damaged."""
    return workspace.state.read(BUILD_FILE) is not None or workspace.sealed() is not None


def has_work(workspace: Workspace) -> bool:
    """Return whether the unfinished build has written any shard."""
    start = f"{RECEIPTS_DIR}/"
    return workspace.sealed() is not None or any(
        name.startswith(start) and ".tfrecord-" in name for name in workspace.state.names()
    )


def begin(workspace: Workspace, fingerprint: Fingerprint, *, overwrite: bool) -> bool:
    """Continue the build of this fingerprint, or start a new one; return True if it is new.

    An unfinished build of another fingerprint is removed with `overwrite`, or on a disk if it has
    no shard. Otherwise BuildError is raised. A finished dataset is not changed.
    """
    there = workspace.state.read(BUILD_FILE)
    sealed = workspace.sealed() if there is None else None
    if there is not None or sealed is not None:
        begun = (
            sealed.fingerprint if sealed else parse_build(workspace.state, there or b"").fingerprint
        )
        changes = fingerprint_differences(begun, fingerprint)
        if not changes:
            return False
        if not overwrite and (not workspace.is_exclusive or has_work(workspace)):
            is_dead = "" if workspace.is_exclusive else "if that has ended, "
            way = (
                f"add {OptionName('overwrite')} or remove this folder to start again, or give the "
                "former options"
            )
            raise _other_build(workspace, changes, is_dead + way)
    with writing(workspace):
        if workspace.start(fingerprint, over=there):
            return True
    return begin(workspace, fingerprint, overwrite=overwrite)  # another run has begun in between


def join(workspace: Workspace, fingerprint: Fingerprint, old: bytes | None) -> None:
    """Continue or start a build in parts; errors as in `check_begun` and `refuse_other_build`."""
    if fingerprint_of(workspace) is None:
        with writing(workspace):
            is_new = workspace.state.create(BUILD_FILE, new_build(fingerprint))
        try:
            check_begun(workspace, old)
        except LateError:
            if is_new:
                workspace.state.remove([BUILD_FILE])
            raise
    refuse_other_build(workspace, fingerprint)


def refuse_other_build(workspace: Workspace, fingerprint: Fingerprint) -> None:
    """Raise BuildError if the unfinished build has another fingerprint."""
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
    """Raise BuildError if the finished dataset has other inputs or options."""
    there = finished.fingerprint.model_copy(update={"versions": fingerprint.versions})
    if changes := fingerprint_differences(there, fingerprint):
        what = f"already exists, and was built with other {', '.join(changes)}"
        raise BuildError(workspace.location, what, replace_hint())


def check_begun(workspace: Workspace, old: bytes | None) -> None:
    """Raise LateError if a dataset was published after this run read the manifest `old`."""
    if workspace.published() != old:
        where, what = workspace.location, "another build has just finished here"
        raise LateError(where, what, "try again")


def folders_of(workspace: Workspace, fingerprint: Fingerprint, old: bytes | None) -> Folders:
    """Return the folders of the unfinished build; BuildError if it is gone or replaced."""
    build = read_build(workspace.state)
    if build is None:
        raise disturbed(workspace.state)
    if fingerprint_differences(build.fingerprint, fingerprint):
        raise taken_over(workspace.state)
    output, mark = workspace.output(build, old), hash_of(build.fingerprint)
    return Folders(output, workspace.state, mark, build.token)


def forget(workspace: Workspace, shards: Iterable[str]) -> None:
    """Remove the receipts of shards, so that the next run writes the shards again."""
    workspace.state.remove([receipt_name(shard) for shard in shards])


@contextlib.contextmanager
def begun(
    workspace: Workspace, fingerprint: Fingerprint, replaced: bytes | None, *, overwrite: bool
) -> Iterator[None]:
    """Begin a build as `begin` does; remove it if the block fails before any shard is written.

    `replaced` is the manifest that was published when this run began. In object storage other runs
    may use the build, so only the run that has begun a build removes it.
    """
    is_new = begin(workspace, fingerprint, overwrite=overwrite)
    try:
        check_begun(workspace, replaced)
        yield
    except BaseException:
        # Errors of the clean-up must not hide the first error.
        with contextlib.suppress(ShardprepError, OSError):
            _take_back(workspace, fingerprint, is_new=is_new)
        raise


def _take_back(workspace: Workspace, fingerprint: Fingerprint, *, is_new: bool) -> None:
    there = fingerprint_of(workspace)
    if there is None:  # in object storage an equal run has removed it, and may begin another
        is_ours = workspace.is_exclusive
    else:
        is_ours = not fingerprint_differences(there, fingerprint)
    if (is_new or workspace.is_exclusive) and is_ours and not has_work(workspace):
        workspace.discard()


def take_back_unbegun(workspace: Workspace) -> None:
    """Remove the files of a part that failed before the build began."""
    if is_begun(workspace):
        return
    with contextlib.suppress(BuildError), workspace.held(alone=True) as is_held:
        if is_held and not is_begun(workspace):
            workspace.discard()


def end_publishing(workspace: Workspace, finished: Manifest) -> None:
    """Finish publishing a dataset that is already in force, if a run was interrupted."""
    if not workspace.is_settled(finished):
        with workspace.held(alone=True), writing(workspace):
            workspace.publish(finished, finished.dumps().encode())


def shared(
    workspace: Workspace,
    attempt: Callable[[bytes | None], Result],
    fingerprint: Fingerprint | None = None,
) -> Result | Manifest:
    """Return the result of `attempt`, or the manifest that an equal run has published first.

    `attempt` gets the currently published manifest or None, and is repeated if an equal run has
    removed files of the build. Without a fingerprint, all runs count as equal.
    """
    for num_left in reversed(range(_MOST_TRIES)):
        old = workspace.published()
        try:
            return attempt(old)
        except (BuildError, DatasetError) as error:
            if workspace.is_exclusive:
                raise
            is_new = workspace.published() not in (None, old)
            if is_new and (there := _equal_dataset(workspace, fingerprint)) is not None:
                end_publishing(workspace, there)
                return there
            if not isinstance(error, DisturbedError) or not num_left:
                raise
            if is_new and not isinstance(error, LateError):
                raise taken_over(workspace.state) from error
    raise AssertionError


def _equal_dataset(workspace: Workspace, fingerprint: Fingerprint | None) -> Manifest | None:
    with contextlib.suppress(DatasetError):  # the dataset is damaged
        there = workspace.finished()
        if there and not (fingerprint and fingerprint_differences(there.fingerprint, fingerprint)):
            return there
    return None


_NUM_THREADS = 16


@dataclass(frozen=True, slots=True)
class DamagedDataset:
    """A damaged dataset, to build again with the same bytes."""

    manifest: Manifest
    intact: Mapping[str, str]
    """Name of each intact shard → its ETag in object storage; "" on a disk, which has no ETags."""
    items: Path | None
    """Path of `items.parquet`, or None if damaged or missing; then all shards are written again."""
    foreign: Sequence[str]
    """Names of files in the folder that are not part of the dataset; they are kept."""

    def __str__(self) -> str:
        num_all = len(self.manifest.shards)
        num_gone = num_all - len(self.intact) if self.items else num_all
        what = f"{num_gone:,} of {num_all:,} shards are" if num_gone else "documents are"
        return f"the dataset is incomplete: {what} built again"

    def take_into(self, workspace: Workspace) -> None:
        """Add the foreign files to the build, and the intact shards too if `items` is known."""
        for name in self.foreign:
            workspace.adopt(name)
        if self.items is None:
            return
        items = read_items(self.items)
        rows, shards = rows_by_shard(items), self.manifest.shards

        def take(name: str) -> None:
            table = pa.Table.from_pydict(rows[name].to_pydict(), schema=columns_of(items.schema))
            workspace.adopt(name)
            facts = ReceiptFacts(shard=shards[name], mark=self.intact[name], build="")
            write_receipt(workspace.state, facts, table)

        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            list(pool.map(take, self.intact))


def find_damage(
    workspace: Workspace, finished: Manifest, fingerprint: Fingerprint
) -> DamagedDataset | None:
    """Return a finished dataset with its intact shards, or None if no file is missing or truncated.

    Only names and shard lengths are checked. BuildError for damage if `fingerprint` differs.
    """
    files = workspace.files()
    folder = workspace.documents()
    intact = {
        name: files[name].etag
        for name, shard in finished.shards.items()
        if name in files and files[name].num_bytes == shard.num_bytes
    }
    try:
        names = inventory(finished, read_schema(folder))
    except ShardprepError:
        gone = [SCHEMA_FILE]
    else:
        cut = [name for name in finished.shards if name in files and name not in intact]
        gone = [*sorted(names - files.keys()), *cut]
    if not gone:
        return None
    if changes := fingerprint_differences(finished.fingerprint, fingerprint):
        what = f"lacks {some_of(gone)}, and {', '.join(changes)} changed since it was built"
        hint = f"restore source and options, or add {OptionName('overwrite')} to build all again"
        raise BuildError(workspace.location, what, hint)
    items = folder / ITEMS_FILE
    is_sound = items.is_file() and sha256_of(items) == finished.files.get(ITEMS_FILE)
    return DamagedDataset(finished, intact, items if is_sound else None, foreign_files(files))


def foreign_files(files: Iterable[str]) -> list[str]:
    """Return the names of files that are neither part of a dataset nor temporary."""
    return [
        name
        for name in files
        if not is_own(name)
        and name.split("/")[0] not in ("..", RECEIPTS_DIR, SCRATCH_DIR)
        and not name.endswith(".tmp")
    ]
