"""The build: plan, encode, commit shard by shard, publish. Complete or absent, and resumable.

A run that ends early, however it ends, leaves what is done where `place` says; the same command
finds it, checks it and goes on. A build in parts is the same, with the last step for itself.
"""

from __future__ import annotations

import contextlib
import gc
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shardprep import profiling
from shardprep.errors import BuildError, ShardprepError, SourceError
from shardprep.writer.chunk import ChunkEncoder
from shardprep.writer.documents import write_skipped
from shardprep.writer.engine.job import ShardJob, by_chunks
from shardprep.writer.engine.limits import WorkerLimits
from shardprep.writer.engine.local import run_chunks
from shardprep.writer.finalize import BuildResult, complete, end_publishing
from shardprep.writer.fingerprint import differences, make_fingerprint
from shardprep.writer.outline import make_outline, write_outline
from shardprep.writer.part import WHOLE, Part
from shardprep.writer.plan import make_plan
from shardprep.writer.shard import ShardTask, is_done
from shardprep.writer.workspace.begin import (
    begin,
    drop,
    folders_of,
    has_work,
    is_of,
    join,
    refuse_another,
    same_or_refuse,
    take_back,
)
from shardprep.writer.workspace.local import place_of, writing
from shardprep.writer.workspace.retract import look_for_remains, restore, said_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardprep.dataset.manifest import Fingerprint, Manifest
    from shardprep.recipe.recipe import Recipe
    from shardprep.writer.engine.job import Engine
    from shardprep.writer.outline import Outline
    from shardprep.writer.plan import BuildPlan
    from shardprep.writer.shard import Folders
    from shardprep.writer.workspace.local import Place
    from shardprep.writer.workspace.retract import Remains

_SPARE_BYTES = 64 << 20
_WORKER_BYTES = 1 << 30
_NUM_THREADS = 8
"""That hash shards, or wait for object storage."""
_PIXEL_BYTES = 16
"""What decoding may take for each pixel that an image may have, copies on the way included."""


class Watcher(Protocol):
    """Whoever wants to know how a build goes."""

    def notice(self, line: str) -> None:
        """Take one line about something worth knowing."""

    def planned(self, plan: BuildPlan, shards: Sequence[ShardTask], num_done: int) -> None:
        """Take the plan, once, and what of it this run is to do.

        An earlier run has done `num_done` of the items.
        """

    def encoded(self, num_items: int, num_rejected: int) -> None:
        """Take how many more items are done, and how many of these are rejected."""


@dataclass(frozen=True, slots=True)
class PartResult:
    """What the build of a part has come to."""

    place: Place
    part: Part
    num_all_shards: int
    num_new_items: int = 0
    elapsed_s: float = 0.0
    was_there: bool = False
    """The dataset is finished, with the same inputs and options: nothing was done."""

    @property
    def num_shards(self) -> int:
        """Of this part; all of them are done."""
        return len(self.part.of(range(self.num_all_shards)))


ON_THIS_MACHINE = by_chunks(run_chunks)


def build_dataset(
    recipe: Recipe,
    *,
    num_workers: int,
    watcher: Watcher,
    overwrite: bool = False,
    engine: Engine = ON_THIS_MACHINE,
    remains: Remains | None = None,
) -> BuildResult:
    """Build the dataset of a recipe, or finish a build that was begun.

    With `remains` it replaces a damaged dataset, and only by one that is as its manifest says.

    Raises:
        ShardprepError: it cannot be built as asked, or too many items are rejected; what is done
            is kept for the next run.

    """
    start = time.monotonic()
    place = place_of(recipe.out, recipe.dataset_name, recipe.version)
    fingerprint = make_fingerprint(recipe)
    stands = place.stands()
    finished = place.finished() if stands and not overwrite and remains is None else None
    if finished is not None:
        same_or_refuse(place, finished, fingerprint)
        end_publishing(place, finished)
        remains = look_for_remains(place, finished, fingerprint)
        if remains is None:
            return BuildResult(place.location, place.documents(), finished, was_there=True)
        watcher.notice(said_of(remains))
    num_new = 0
    with place.held(alone=True):
        may_stand = overwrite or remains is not None
        is_new = begin(place, fingerprint, overwrite=overwrite, may_stand=may_stand)
        try:
            manifest = place.sealed()
            if manifest is None:
                shards = _Shards(place, recipe, fingerprint, num_workers, engine)
                manifest, num_new = shards.write_all(watcher, remains)
        except BaseException as error:
            manifest = None if stands else _by_another(place, fingerprint, error)
            if manifest is None:
                _leave(place, fingerprint, is_new=is_new)
                raise
        with writing(place):
            place.publish(manifest)
    elapsed = time.monotonic() - start
    return BuildResult(
        place.location, place.documents(), manifest, num_new_items=num_new, elapsed_s=elapsed
    )


def _by_another(place: Place, fingerprint: Fingerprint, error: BaseException) -> Manifest | None:
    """Return the manifest of the same build, where another run of it has finished meanwhile."""
    if place.is_exclusive or not isinstance(error, BuildError):
        return None
    finished = place.finished()
    return (
        finished
        if finished is not None and not differences(finished.fingerprint, fingerprint)
        else None
    )


def _leave(place: Place, fingerprint: Fingerprint, *, is_new: bool) -> None:
    """Take back a build that came to nothing; what was wrong before is what the user is told."""
    with contextlib.suppress(ShardprepError, OSError):
        is_ours = is_of(place, fingerprint)
        if (is_new or place.is_exclusive) and is_ours and not has_work(place):
            place.discard()


def build_part(
    recipe: Recipe,
    part: Part,
    *,
    num_workers: int,
    watcher: Watcher,
    engine: Engine = ON_THIS_MACHINE,
) -> PartResult:
    """Write the shards of one part of a build; `finalize_dataset` makes a dataset of all of them.

    Parts may be built in any order, at the same time, and again.

    Raises:
        ShardprepError: it cannot be built as asked.

    """
    start = time.monotonic()
    place = place_of(recipe.out, recipe.dataset_name, recipe.version)
    fingerprint = make_fingerprint(recipe)
    finished = place.finished()
    if finished is None:
        try:
            with place.held(alone=False):
                finished = place.finished()  # it may have been published meanwhile
                if finished is None:
                    refuse_another(place, fingerprint)
                    shards = _Shards(place, recipe, fingerprint, num_workers, engine)
                    num_shards, num_new = shards.write_part(part, watcher)
                    elapsed = time.monotonic() - start
                    return PartResult(place, part, num_shards, num_new, elapsed)
        finally:
            take_back(place)
    same_or_refuse(place, finished, fingerprint)
    return PartResult(place, part, len(finished.shards), was_there=True)


@dataclass(frozen=True, slots=True)
class _Shards:
    """The step in which shards are written, and all that it needs."""

    place: Place
    recipe: Recipe
    fingerprint: Fingerprint
    num_workers: int
    engine: Engine

    def write_part(self, part: Part, watcher: Watcher) -> tuple[int, int]:
        """Write a part, unless all are complete; return how many shards all have, and as below."""
        sealed = self.place.sealed()
        if sealed is not None:
            return len(sealed.shards), 0
        _, outline, num_new = self._write(part, watcher)
        return len(outline.shards), num_new

    def write_all(self, watcher: Watcher, remains: Remains | None) -> tuple[Manifest, int]:
        """Write what is not done of all, then the manifest; return it, and as below.

        Of a dataset of which there are remains the manifest is expected to come out.
        """
        if remains is not None:
            with writing(self.place):
                restore(self.place, remains)
        folders, outline, num_new = self._write(WHOLE, watcher)
        if remains is None:
            return complete(self.place, folders, outline), num_new
        outline = outline.model_copy(update={"max_rejected": 1.0})  # it was published with these
        return complete(self.place, folders, outline, remains.manifest), num_new

    def _write(self, part: Part, watcher: Watcher) -> tuple[Folders, Outline, int]:
        """Write what is not done of a part; return where, the outline, and how many items."""
        with self.place.scratch() as scratch, contextlib.ExitStack() as done:
            done.callback(gc.unfreeze)  # `make_plan` freezes what there is
            plan = make_plan(self.recipe, scratch, watcher.notice)
            outline = make_outline(plan, self.recipe, self.fingerprint, part.count)
            mine = part.of([ShardTask(plan.shard_name(shard), shard) for shard in plan.shards])
            join(self.place, self.fingerprint)
            folders = folders_of(self.place, self.fingerprint)
            with writing(self.place):
                write_outline(folders.parts, outline)
                write_skipped(folders.parts, plan.skipped)
                num_new = self._write_shards(folders, plan, mine, watcher)
        self._check_source(mine)
        return folders, outline, num_new

    def _write_shards(
        self, folders: Folders, plan: BuildPlan, mine: Sequence[ShardTask], watcher: Watcher
    ) -> int:
        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            done = pool.map(lambda shard: is_done(folders, shard.name), mine)
            todo = [shard for shard, is_so in zip(mine, done, strict=True) if not is_so]
        num_todo = sum(len(shard.plan.items) for shard in todo)
        num_mine = sum(len(shard.plan.items) for shard in mine)
        watcher.planned(plan, mine, num_mine - num_todo)
        if not todo:
            return 0
        self._check_space(plan.estimated_bytes * num_todo // plan.num_items)
        limits = WorkerLimits(
            item_s=self.recipe.timeout,
            worker_bytes=_WORKER_BYTES + _PIXEL_BYTES * self.recipe.max_pixels,
        )
        encoder = ChunkEncoder(plan.spec, plan.schema, plan.columns, is_timed=profiling.is_on())
        record_bytes = plan.estimated_bytes // plan.num_items
        job = ShardJob(folders, encoder, limits, plan.num_items, record_bytes)
        with contextlib.closing(self.engine(job, todo, self.num_workers)) as progress:
            for step in progress:
                watcher.encoded(*step)
        return num_todo

    def _check_space(self, num_bytes: int) -> None:
        free = self.place.parts.free_bytes()
        if free is not None and free < num_bytes + _SPARE_BYTES:
            raise BuildError(
                self.place.work,
                f"about {num_bytes / 1e6:,.0f} MB are needed, "
                f"the disk has {free / 1e6:,.0f} MB left",
                "free some space, give another --out, or a smaller --size",
            )

    def _check_source(self, mine: Sequence[ShardTask]) -> None:
        """See that what was read is what was planned; of a source that changed nothing is kept."""
        with contextlib.suppress(SourceError):
            if make_fingerprint(self.recipe).inputs == self.fingerprint.inputs:
                return
        drop(self.place, (shard.name for shard in mine))
        raise BuildError(
            self.recipe.source,
            "has changed or gone while it was read",
            "nothing is kept of this build: run it again when the source is at rest",
        )
