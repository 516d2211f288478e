"""The build: plan, encode, commit shard by shard, publish.

A run that ends early, however it ends, keeps what is done in its workspace; the same command
finds it, checks it and goes on. A build in parts is the same, with the last step for itself.
"""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from shardprep import profiling
from shardprep.dataset.card import Card
from shardprep.dataset.manifest import fingerprint_differences
from shardprep.errors import BuildError, ShardprepError, SourceError
from shardprep.writer.chunk import ChunkEncoder
from shardprep.writer.engine.job import ShardJob, by_chunks
from shardprep.writer.engine.local import run_chunks
from shardprep.writer.engine.process import WorkerLimits
from shardprep.writer.finalize import BuildResult, complete, publish
from shardprep.writer.fingerprint import make_fingerprint
from shardprep.writer.outline import check_outline, make_outline, write_outline
from shardprep.writer.plan import PlanWatcher, frozen_plan
from shardprep.writer.shard import done_receipt, write_skipped
from shardprep.writer.shard_plan import WHOLE, Part
from shardprep.writer.workspace import states
from shardprep.writer.workspace.damaged import find_damage
from shardprep.writer.workspace.find import workspace_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardprep.dataset.manifest import Fingerprint, Manifest
    from shardprep.recipe.recipe import Recipe
    from shardprep.writer.engine.job import Engine
    from shardprep.writer.outline import Outline
    from shardprep.writer.plan import BuildPlan
    from shardprep.writer.shard_plan import ShardPlan
    from shardprep.writer.workspace.damaged import DamagedDataset
    from shardprep.writer.workspace.states import Folders, Workspace

_NUM_THREADS = 8
"""Number of threads that hash shards, or wait for object storage."""


class Watcher(PlanWatcher, Protocol):
    """Receives the progress of a build."""

    def planned(self, plan: BuildPlan, shards: Sequence[ShardPlan], num_done: int) -> None:
        """Take the plan, and the shards that this run is to write; called once.

        Earlier runs have done `num_done` of the items in these shards.
        """


@dataclass(frozen=True, slots=True, repr=False)
class PartResult(Card):
    """A part of a build whose shards are all written."""

    workspace: Workspace
    part: Part
    num_all_shards: int
    num_new_items: int = 0
    """Items that this run has encoded; others were done by an earlier one."""
    elapsed_s: float = 0.0
    was_there: bool = False
    """Whether the dataset was finished before, with the same inputs and options."""

    @property
    def location(self) -> str:
        """Path or address of the dataset to be."""
        return self.workspace.location

    @property
    def num_shards(self) -> int:
        """Number of shards in this part."""
        return len(self.part.of(range(self.num_all_shards)))

    def facts(self) -> dict[str, Any]:
        """Return where the dataset is to be, and what is done of it."""
        return {
            "at": self.location,
            "part": str(self.part),
            "shards": f"{self.num_shards:,} of {self.num_all_shards:,}",
            "this run": f"{self.num_new_items:,} images in {self.elapsed_s:.1f} s",
        }


ON_THIS_MACHINE = by_chunks(run_chunks)
"""The engine of processes on this machine."""


def build_dataset(
    recipe: Recipe,
    *,
    num_workers: int,
    watcher: Watcher,
    overwrite: bool = False,
    engine: Engine = ON_THIS_MACHINE,
    damaged: DamagedDataset | None = None,
) -> BuildResult:
    """Build the dataset of a recipe, or finish a build that was begun.

    A dataset that is finished with the same inputs and options is left as it is, but for files
    that are missing. A dataset that is replaced stays whole and readable until the new one is.

    Args:
        recipe: source, options and place of the dataset.
        num_workers: processes that encode images, at least 1; with an engine on a cluster, shards
            that are written at a time.
        watcher: receives the progress.
        overwrite: replace a finished dataset, and remove an unfinished build with other inputs or
            options.
        engine: runs the chunks.
        damaged: a damaged dataset to replace by one with the same manifest, and by no other.

    Raises:
        TooManyRejectedError: more images are rejected than the recipe accepts.
        BuildError: the dataset or an unfinished build is there with other inputs or options,
            another process is at work there (`BusyError`), the disk is full, workers die, or the
            source changed while it was read.
        SourceError: the source cannot be read, or has no images.
        RecipeError: the options do not fit the source.
        SchemaError: the schema asks for what the source has not.
        StorageError: object storage does not answer, or refuses.

    """
    start = time.monotonic()
    workspace, fingerprint = workspace_of(recipe), make_fingerprint(recipe)
    stands = workspace.stands()
    finished = workspace.finished() if stands and not overwrite and damaged is None else None
    if finished is not None:
        states.refuse_other_dataset(workspace, finished, fingerprint)
        states.end_publishing(workspace, finished)
        damaged = find_damage(workspace, finished, fingerprint)
        if damaged is None:
            return BuildResult(workspace.location, workspace.documents(), finished, was_there=True)
        watcher.notice(str(damaged))
    num_new = 0
    with workspace.held(alone=True):
        may_stand = overwrite or damaged is not None
        is_new = states.begin(workspace, fingerprint, overwrite=overwrite, may_stand=may_stand)
        try:
            manifest = workspace.sealed()
            if manifest is None:
                if damaged is not None:
                    with states.writing(workspace):
                        damaged.take_into(workspace)
                shards = _Shards(workspace, recipe, fingerprint, num_workers, engine)
                folders, outline, num_new = shards.write(WHOLE, watcher)
                expected = None if damaged is None else damaged.manifest
                manifest = complete(workspace, folders, outline, expected)
        except BaseException as error:
            manifest = None if stands else _by_another(workspace, fingerprint, error)
            if manifest is None:
                # The user is told what went wrong first, not what goes wrong here.
                with contextlib.suppress(ShardprepError, OSError):
                    states.take_back(workspace, fingerprint, is_new=is_new)
                raise
        return publish(workspace, manifest, start, num_new)


def _by_another(
    workspace: Workspace, fingerprint: Fingerprint, error: BaseException
) -> Manifest | None:
    """Return the manifest of the same build, where another run has finished it meanwhile."""
    if workspace.is_exclusive or not isinstance(error, BuildError):
        return None
    there = workspace.finished()
    is_same = there is not None and not fingerprint_differences(there.fingerprint, fingerprint)
    return there if is_same else None


def build_part(
    recipe: Recipe,
    part: Part,
    *,
    num_workers: int,
    watcher: Watcher,
    engine: Engine = ON_THIS_MACHINE,
) -> PartResult:
    """Write the shards of one part of a build; `finalize_dataset` makes a dataset of all of them.

    Parts may be built in any order, at the same time, and again. Where the dataset is finished
    with the same inputs and options, nothing is done. Arguments are those of `build_dataset`.

    Raises:
        BuildError: a dataset or a build with other inputs or options is there, `finalize` is at
            work (`BusyError`), the disk is full, workers die, or the source changed.
        SourceError, RecipeError, SchemaError, StorageError: as `build_dataset`.
    """
    start = time.monotonic()
    workspace, fingerprint = workspace_of(recipe), make_fingerprint(recipe)
    finished = workspace.finished()
    if finished is None:
        try:
            with workspace.held(alone=False):
                finished = workspace.finished()  # it may have been published meanwhile
                if finished is None:
                    states.refuse_other_build(workspace, fingerprint)
                    known: Manifest | Outline | None = workspace.sealed()
                    num_new = 0
                    if known is None:
                        shards = _Shards(workspace, recipe, fingerprint, num_workers, engine)
                        _, known, num_new = shards.write(part, watcher)
                    elapsed = time.monotonic() - start
                    return PartResult(workspace, part, len(known.shards), num_new, elapsed)
        finally:
            states.take_back_unbegun(workspace)
    states.refuse_other_dataset(workspace, finished, fingerprint)
    return PartResult(workspace, part, len(finished.shards), was_there=True)


@dataclass(frozen=True, slots=True)
class _Shards:
    """The step of a build that writes shards."""

    workspace: Workspace
    recipe: Recipe
    fingerprint: Fingerprint
    num_workers: int
    engine: Engine

    def write(self, part: Part, watcher: Watcher) -> tuple[Folders, Outline, int]:
        """Write the shards of a part that are not done.

        Return the folders and the outline of the build, and the number of items encoded now.
        """
        workspace = self.workspace
        with (
            workspace.scratch() as scratch,
            frozen_plan(self.recipe, scratch, watcher, self.num_workers) as plan,
        ):
            outline = make_outline(plan, self.recipe, self.fingerprint, part.count)
            mine = part.of(plan.shards)
            states.join(workspace, self.fingerprint)
            folders = states.folders_of(workspace, self.fingerprint)
            with states.writing(workspace):
                write_outline(folders.state, outline)
                write_skipped(folders.state, plan.skipped)
                num_new = self._write_shards(folders, plan, mine, watcher)
                check_outline(folders.state, outline)  # another part may have begun beside it
        self._check_source(mine)
        return folders, outline, num_new

    def _write_shards(
        self, folders: Folders, plan: BuildPlan, mine: Sequence[ShardPlan], watcher: Watcher
    ) -> int:
        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            done = pool.map(lambda shard: done_receipt(folders, shard.name) is not None, mine)
            todo = [shard for shard, is_done in zip(mine, done, strict=True) if not is_done]
        num_todo = sum(len(shard.items) for shard in todo)
        num_mine = sum(len(shard.items) for shard in mine)
        watcher.planned(plan, mine, num_mine - num_todo)
        if not todo:
            return 0
        self._check_space(plan.estimated_bytes * num_todo // plan.num_items)
        limits = WorkerLimits.of(self.recipe.timeout, self.recipe.max_pixels)
        found = plan.annotations
        form = None if found is None else found.spec
        encoder = ChunkEncoder(
            plan.spec, plan.schema, plan.columns, form, is_timed=profiling.is_on()
        )
        record_bytes = plan.estimated_bytes // plan.num_items
        job = ShardJob(folders, encoder, limits, plan.num_items, record_bytes)
        with contextlib.closing(self.engine(job, todo, self.num_workers)) as progress:
            for step in progress:
                watcher.encoded(*step)
        return num_todo

    def _check_space(self, num_bytes: int) -> None:
        lacking = self.workspace.state.shortage(num_bytes)
        if lacking:
            hint = "free some space, give another --out, or a smaller --size"
            raise BuildError(str(self.workspace.state), f"about {lacking}", hint)

    def _check_source(self, mine: Sequence[ShardPlan]) -> None:
        """Check that the source is still what was planned; else forget the shards read from it."""
        with contextlib.suppress(SourceError):
            if make_fingerprint(self.recipe).inputs == self.fingerprint.inputs:
                return
        states.forget(self.workspace, (shard.name for shard in mine))
        raise BuildError(
            self.recipe.source,
            "has changed or gone while it was read",
            "nothing is kept of this build: run it again when the source is at rest",
        )
