"""A run: plan, write what is not done, commit shard by shard, publish.

A run that ends early, however it ends, keeps what is done in its workspace; the next run of the
same finds it, checks it and goes on.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shardprep.dataset.manifest import Fingerprint, Manifest
from shardprep.errors import BuildError, ShardprepError, counted
from shardprep.progress import Watcher
from shardprep.storage.store_error import ChangedError
from shardprep.writer.engine.job import Progress
from shardprep.writer.finalize import BuildResult, complete, finished_before, publish
from shardprep.writer.plan.plan import BuildPlan
from shardprep.writer.plan.plan_summary import Outline, check_outline, write_outline
from shardprep.writer.plan.shard_plan import WHOLE, Part, ShardPlan
from shardprep.writer.retry_unreadable import readable_again
from shardprep.writer.shard import done_receipt, write_skipped
from shardprep.writer.workspace import states
from shardprep.writer.workspace.files import Folders
from shardprep.writer.workspace.repair_input import DamagedDataset, find_damage
from shardprep.writer.workspace.states import Workspace

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

_NUM_THREADS = 8
"""Number of threads that hash shards, or wait for object storage."""
_MOST_LOOKS = 3
"""Times that shards are written again, where a source goes away again and again."""


class Images(Protocol):
    """The images that a run makes a dataset of: those of a source, or of other datasets."""

    @property
    def work(self) -> str:
        """The phase that writes the shards, such as "encoding"."""

    @property
    def fingerprint(self) -> Fingerprint:
        """All that the bytes of the dataset follow from."""

    def plan(self, scratch: Path, watcher: Watcher) -> BuildPlan:
        """Return the plan; `scratch` is a folder for its items, which must live as long."""

    def outline(self, plan: BuildPlan, num_parts: int) -> Outline:
        """Return the outline of the plan."""

    def written(
        self, folders: Folders, plan: BuildPlan, shards: Sequence[ShardPlan]
    ) -> Generator[Progress]:
        """Write shards of the plan and their receipts; yield what is done."""

    def check(self) -> None:
        """Check that what was read is still what was planned.

        Raises BuildError where a source is not, ChangedError where a dataset is not.
        """


@dataclass(frozen=True, slots=True)
class Run:
    """The making of a dataset: of which images, and where."""

    workspace: Workspace
    images: Images

    def to_dataset(
        self, watcher: Watcher, *, overwrite: bool, damaged: DamagedDataset | None = None
    ) -> BuildResult:
        """Make the dataset, or finish it; arguments and errors are those of `build_dataset`."""
        workspace, start = self.workspace, time.monotonic()

        def attempt(old: bytes | None) -> BuildResult:
            return self._attempt(watcher, old, start, overwrite=overwrite, damaged=damaged)

        result = states.shared(workspace, attempt, self.images.fingerprint)
        return finished_before(workspace, result) if isinstance(result, Manifest) else result

    def _attempt(
        self,
        watcher: Watcher,
        old: bytes | None,
        start: float,
        *,
        overwrite: bool,
        damaged: DamagedDataset | None,
    ) -> BuildResult:
        workspace, fingerprint = self.workspace, self.images.fingerprint
        stands = workspace.stands()
        finished = workspace.finished() if stands and not overwrite and damaged is None else None
        if finished is not None:
            states.refuse_other_dataset(workspace, finished, fingerprint)
            states.end_publishing(workspace, finished)
            damaged = find_damage(workspace, finished, fingerprint)
            if damaged is None:
                return finished_before(workspace, finished)
            watcher.notice(str(damaged))
        done = Progress(0, 0)
        notes: tuple[str, ...] = ()
        with workspace.held(alone=True):
            is_new = states.begin(workspace, fingerprint, overwrite=overwrite)
            try:
                states.check_begun(workspace, old)
                manifest = workspace.sealed()
                if manifest is None:
                    if damaged is not None:
                        with states.writing(workspace):
                            damaged.take_into(workspace)
                    folders, outline, done = self.write(WHOLE, old, watcher)
                    notes = outline.findings
                    expected = None if damaged is None else damaged.manifest
                    manifest = complete(workspace, folders, outline, expected)
            except BaseException:
                # The user is told what went wrong first, not what goes wrong here.
                with contextlib.suppress(ShardprepError, OSError):
                    states.take_back(workspace, fingerprint, is_new=is_new)
                raise
            return publish(workspace, manifest, old, start, done, notes)

    def write(
        self, part: Part, old: bytes | None, watcher: Watcher
    ) -> tuple[Folders, Outline, Progress]:
        """Write the shards of a part that are not done.

        `old` is the manifest of the dataset that is to be replaced. Return the folders and the
        outline of the build, and the items that were done now.
        """
        workspace, images = self.workspace, self.images
        with workspace.scratch() as scratch:
            plan = images.plan(scratch, watcher)
            outline = images.outline(plan, part.count)
            plan = plan.without_others(part)
            mine = part.of(plan.shards)
            if part is not WHOLE:  # that has begun before
                states.join(workspace, images.fingerprint, old)
            folders = states.folders_of(workspace, images.fingerprint, old)
            with states.writing(workspace):
                write_outline(folders.state, outline)
                write_skipped(folders.state, plan.skipped)
                now = self._write_shards(folders, plan, mine, watcher)
                check_outline(folders.state, outline)  # another part may have begun beside it
                folders.check_build()
        try:
            images.check()
        except (BuildError, ChangedError):
            states.forget(workspace, (shard.name for shard in mine))
            raise
        return folders, outline, now

    def _write_shards(
        self, folders: Folders, plan: BuildPlan, mine: Sequence[ShardPlan], watcher: Watcher
    ) -> Progress:
        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            done = pool.map(lambda shard: done_receipt(folders, shard.name) is not None, mine)
            todo = [shard for shard, is_done in zip(mine, done, strict=True) if not is_done]
        num_todo = sum(len(shard.items) for shard in todo)
        num_mine = sum(len(shard.items) for shard in mine)
        for line in _notices(plan, len(mine), num_mine, num_mine - num_todo):
            watcher.notice(line)
        watcher.start(self.images.work, num_mine, "images", num_mine - num_todo)
        now = Progress(0, 0)
        if not todo:
            return now
        self._check_space(plan.estimated_bytes * num_todo // plan.num_items)
        with contextlib.closing(self.images.written(folders, plan, todo)) as progress:
            for step in progress:
                watcher.advance(step.num_items, step.num_rejected)
                now = now.plus(step)
        if now.num_unreadable:
            self._look_again(folders, plan, todo, watcher)
        return now

    def _look_again(
        self, folders: Folders, plan: BuildPlan, shards: Sequence[ShardPlan], watcher: Watcher
    ) -> None:
        """Write shards again whose images could not be read, and can be now."""
        for _ in range(_MOST_LOOKS):
            shards = readable_again(folders, shards)
            if not shards:
                return
            what = "1 shard is" if len(shards) == 1 else f"{len(shards):,} shards are"
            watcher.notice(f"{what} written again: images that could not be read are back")
            with contextlib.closing(self.images.written(folders, plan, shards)) as progress:
                deque(progress, maxlen=0)  # their items are counted already

    def _check_space(self, num_bytes: int) -> None:
        lacking = self.workspace.state.shortage(num_bytes)
        if lacking:
            hint = "free some space, give another --out, or a smaller --size"
            raise BuildError(str(self.workspace.state), f"about {lacking}", hint)


def _notices(plan: BuildPlan, num_shards: int, num_items: int, num_done: int) -> list[str]:
    """Return what a user should know of a plan, of which this run writes `num_shards`."""
    num_all = len(plan.shards)
    labels = f"labels{' by' if plan.schema.target else ':'} {plan.labels_from}"
    lines = [f"{plan.num_items:,} images to {counted(num_all, 'shard')}, {labels}"]
    if num_shards < num_all:
        lines.append(f"this part: {num_items:,} images, {num_shards:,} of the shards")
    lines += plan.findings
    if num_done:
        lines.append(f"going on with an unfinished build: {num_done:,} images are done")
    return lines
