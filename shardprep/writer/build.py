"""Build a dataset from a source, or one part of its shards; `finalize` joins the parts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardprep.dataset.card import Card
from shardprep.dataset.manifest import Fingerprint, Manifest
from shardprep.errors import BuildError, SourceError
from shardprep.processes import WorkerLimits
from shardprep.progress import Watch
from shardprep.recipe.recipe import Recipe
from shardprep.writer.chunk import Encode
from shardprep.writer.chunk_encoder import ChunkEncoder
from shardprep.writer.engine.job import ItemCounts, OnProgress, ShardJob, Workers
from shardprep.writer.finalize import BuildResult, images_done
from shardprep.writer.plan.build_plan import BuildPlan, Outline, make_outline
from shardprep.writer.plan.fingerprint import make_fingerprint
from shardprep.writer.plan.shard_plan import Part, ShardPlan
from shardprep.writer.plan.source_plan import make_plan
from shardprep.writer.reuse import OldDataset
from shardprep.writer.run import make_dataset, make_shards
from shardprep.writer.workspace import states
from shardprep.writer.workspace.files import Folders
from shardprep.writer.workspace.states import DamagedDataset, Workspace, workspace_of


@dataclass(frozen=True, slots=True, repr=False)
class PartResult(Card):
    """A written part of a build. Fields with the same name mean the same as in `BuildResult`."""

    workspace: Workspace
    part: Part
    num_all_shards: int
    num_new_items: int = 0
    num_copied: int = 0
    elapsed_s: float = 0.0
    was_there: bool = False

    @property
    def location(self) -> str:
        return self.workspace.location

    @property
    def num_shards(self) -> int:
        return len(self.part.of(range(self.num_all_shards)))

    def facts(self) -> dict[str, Any]:
        return {
            "at": self.location,
            "part": str(self.part),
            "shards": f"{self.num_shards:,} of {self.num_all_shards:,}",
            "this run": f"{self.done} in {self.elapsed_s:.1f} s",
        }

    @property
    def done(self) -> str:
        return images_done(self.num_new_items, self.num_copied)


def build_dataset(
    recipe: Recipe,
    workers: Workers,
    watcher: Watch,
    *,
    overwrite: bool = False,
    reuse: OldDataset | None = None,
    damaged: DamagedDataset | None = None,
) -> BuildResult:
    """Build the dataset of a recipe, or continue an unfinished build.

    A finished dataset with the same inputs and options is kept; its missing or truncated files are
    built again. Other inputs or options raise BuildError without `overwrite`. With `overwrite`, an
    unfinished build is removed, and a finished dataset is replaced when the new one is complete.
    Images are copied from `reuse` if encoding would give the same bytes. A repair passes the
    `damaged` dataset, and BuildError is raised if the new manifest differs.
    """
    images = RecipeImages(recipe, make_fingerprint(recipe), workers, reuse)
    return make_dataset(workspace_of(recipe), images, watcher, overwrite=overwrite, damaged=damaged)


def build_part(
    recipe: Recipe, part: Part, workers: Workers, watcher: Watch, reuse: OldDataset | None = None
) -> PartResult:
    """Write the shards of one part of a build; `finalize_dataset` makes a dataset of all parts.

    A finished dataset stays unchanged. BuildError if a build or dataset with other options exists.
    """
    start = time.monotonic()
    workspace, fingerprint = workspace_of(recipe), make_fingerprint(recipe)

    def attempt(old: bytes | None) -> PartResult | Manifest:
        finished = workspace.finished()
        if finished is not None:
            return finished
        try:
            with workspace.held(alone=False):
                finished = workspace.finished()  # another run may have published the dataset
                if finished is not None:
                    return finished
                states.refuse_other_build(workspace, fingerprint)
                sealed, counts = workspace.sealed(), ItemCounts()
                if sealed is not None:
                    num_shards = len(sealed.shards)
                else:
                    images = RecipeImages(recipe, fingerprint, workers, reuse)
                    written = make_shards(workspace, images, part, old, watcher)
                    num_shards, counts = len(written.outline.shards), written.counts
                new, elapsed_s = (counts.num_items, counts.num_copied), time.monotonic() - start
                return PartResult(workspace, part, num_shards, *new, elapsed_s)
        finally:
            states.take_back_unbegun(workspace)

    result = states.shared(workspace, attempt, fingerprint)
    if not isinstance(result, Manifest):
        return result
    states.refuse_other_dataset(workspace, result, fingerprint)
    states.end_publishing(workspace, result)
    return PartResult(workspace, part, len(result.shards), was_there=True)


@dataclass(frozen=True, slots=True)
class RecipeImages:
    """The images of a recipe's source; implements `BuildImages`."""

    recipe: Recipe
    fingerprint: Fingerprint
    workers: Workers
    reuse: OldDataset | None = None

    work = "encoding"

    def plan(self, scratch: Path, watcher: Watch) -> BuildPlan:
        return make_plan(self.recipe, scratch, watcher, self.workers.num)

    def outline(self, plan: BuildPlan, num_parts: int) -> Outline:
        return make_outline(plan, self.recipe, self.fingerprint, num_parts)

    def write(
        self,
        folders: Folders,
        plan: BuildPlan,
        shards: Sequence[ShardPlan],
        on_progress: OnProgress,
        watcher: Watch,
    ) -> None:
        form = None if plan.annotations is None else plan.annotations.spec
        encode_all = ChunkEncoder(plan.spec, plan.schema, plan.columns, form, plan.target)
        encoder: Encode = encode_all
        if self.reuse is not None:
            encoder, shards, remark = self.reuse.applied(encode_all, shards)
            watcher.notice(remark)
        limits = WorkerLimits.of(self.recipe.timeout, self.recipe.max_pixels)
        job = ShardJob.of(folders, encoder, limits, plan)
        self.workers.engine(job, shards, self.workers.num, on_progress)

    def check(self) -> None:
        with contextlib.suppress(SourceError):
            if make_fingerprint(self.recipe).inputs == self.fingerprint.inputs:
                return
        what = "was changed or removed while it was read"
        hint = "the build is discarded: run it again when the source no longer changes"
        raise BuildError(self.recipe.source, what, hint)
