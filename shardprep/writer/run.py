"""Make a dataset: begin, plan, write the shards, publish.

An interrupted run keeps its finished shards. The next run of the same build checks and uses them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from shardprep.catalog.items import Item
from shardprep.dataset.manifest import Fingerprint, Manifest
from shardprep.errors import BuildError, OptionName, counted
from shardprep.progress import Watch
from shardprep.source.byte_range import MemberError
from shardprep.storage.store import ChangedError
from shardprep.writer.chunk import UNREADABLE
from shardprep.writer.engine.job import ItemCounts, OnProgress
from shardprep.writer.finalize import BuildResult, complete, finished_before, publish
from shardprep.writer.plan.build_plan import BuildPlan, Outline, check_outline, write_outline
from shardprep.writer.plan.shard_plan import WHOLE, Part, ShardPlan
from shardprep.writer.shard import done_receipt, read_receipt, write_skipped
from shardprep.writer.workspace import states
from shardprep.writer.workspace.files import Folders
from shardprep.writer.workspace.states import DamagedDataset, Workspace, find_damage

_NUM_THREADS = 16
_MOST_RETRIES = 3
"""Maximum number of times that shards with unreadable images are written again."""


class BuildImages(Protocol):
    """The images of a new dataset, from a source or from finished datasets."""

    @property
    def work(self) -> str:
        """Word for this work in progress messages, such as "encoding"."""

    @property
    def fingerprint(self) -> Fingerprint:
        """Inputs, options and versions that determine the bytes of the dataset."""

    def plan(self, scratch: Path, watcher: Watch) -> BuildPlan:
        """Return the plan. Files of its items may be unpacked in `scratch`."""

    def outline(self, plan: BuildPlan, num_parts: int) -> Outline:
        """Return the outline of a plan for a build in `num_parts` parts."""

    def write(
        self,
        folders: Folders,
        plan: BuildPlan,
        shards: Sequence[ShardPlan],
        on_progress: OnProgress,
        watcher: Watch,
    ) -> None:
        """Write `shards`, which may be a part of the plan, and their receipts."""

    def check(self) -> None:
        """Raise BuildError if the source has changed, or ChangedError if a parent dataset has."""


@dataclass(frozen=True, slots=True)
class MadeShards:
    """The written shards of a build or part, and the counts of this run."""

    folders: Folders
    outline: Outline
    counts: ItemCounts


def make_dataset(
    workspace: Workspace,
    images: BuildImages,
    watcher: Watch,
    *,
    overwrite: bool = False,
    damaged: DamagedDataset | None = None,
) -> BuildResult:
    """Make a dataset of `images`, or continue a build; arguments, errors as in `build_dataset`."""
    start, fingerprint = time.monotonic(), images.fingerprint

    def attempt(replaced: bytes | None) -> BuildResult:
        damage = damaged
        if damage is None and not overwrite and (finished := workspace.finished()) is not None:
            states.refuse_other_dataset(workspace, finished, fingerprint)
            states.end_publishing(workspace, finished)
            damage = find_damage(workspace, finished, fingerprint)
            if damage is None:
                return finished_before(workspace, finished)
            watcher.notice(str(damage))
        shards: MadeShards | None = None
        with workspace.held(alone=True):
            with states.begun(workspace, fingerprint, replaced, overwrite=overwrite):
                manifest = workspace.sealed()
                if manifest is None:
                    if damage is not None:
                        with states.writing(workspace):
                            damage.take_into(workspace)
                    shards = make_shards(workspace, images, WHOLE, replaced, watcher)
                    expected = None if damage is None else damage.manifest
                    manifest = complete(workspace, shards.folders, shards.outline, expected)
            if shards is None:
                return publish(workspace, manifest, replaced, start)
            notes = shards.outline.findings
            return publish(workspace, manifest, replaced, start, shards.counts, notes)

    result = states.shared(workspace, attempt, fingerprint)
    return finished_before(workspace, result) if isinstance(result, Manifest) else result


def make_shards(
    workspace: Workspace, images: BuildImages, part: Part, replaced: bytes | None, watcher: Watch
) -> MadeShards:
    """Plan the dataset, and write the missing shards of a part. `replaced` is the old manifest.

    If the images changed during the run, remove the receipts and raise BuildError or ChangedError.
    """
    with workspace.scratch() as scratch:
        plan = images.plan(scratch, watcher)
        outline = images.outline(plan, part.count)
        plan = plan.without_others(part)
        mine = part.of(plan.shards)
        if part is not WHOLE:
            states.join(workspace, images.fingerprint, replaced)
        folders = states.folders_of(workspace, images.fingerprint, replaced)
        with states.writing(workspace):
            write_outline(folders.state, outline)
            write_skipped(folders.state, plan.skipped)
            with ThreadPoolExecutor(_NUM_THREADS) as pool:
                receipts = pool.map(lambda shard: done_receipt(folders, shard.name), mine)
                todo = [shard for shard, done in zip(mine, receipts, strict=True) if done is None]
            num_todo, num_mine = (sum(len(shard.items) for shard in some) for some in (todo, mine))
            for line in _notices(plan, len(mine), num_mine, num_mine - num_todo):
                watcher.notice(line)
            watcher.start(images.work, num_mine, "images", num_mine - num_todo)
            counts = ItemCounts()

            def on_progress(step: ItemCounts) -> None:
                nonlocal counts
                counts = counts.plus(step)
                watcher.advance(step.num_items, step.num_rejected)

            if todo:
                needed = plan.estimated_bytes * num_todo // plan.num_items
                if lacking := workspace.state.shortage(needed):
                    hint = (
                        f"free some space, or make the dataset with another {OptionName('out')} or "
                        f"a smaller {OptionName('size')}"
                    )
                    raise BuildError(str(workspace.state), f"about {lacking}", hint)
                images.write(folders, plan, todo, on_progress, watcher)
            if counts.num_unreadable:
                _retry_unreadable(folders, plan, todo, images, watcher)
            check_outline(folders.state, outline)  # another part may have begun at the same time
            folders.check_build()
    try:
        images.check()
    except (BuildError, ChangedError):
        states.forget(workspace, (shard.name for shard in mine))
        raise
    return MadeShards(folders, outline, counts)


def _notices(plan: BuildPlan, num_shards: int, num_items: int, num_done: int) -> list[str]:
    num_all = len(plan.shards)
    labels = f"labels{' by' if plan.schema.target else ':'} {plan.labels_from}"
    lines = [f"{counted(plan.num_items, 'image')} to {counted(num_all, 'shard')}, {labels}"]
    if num_shards < num_all:
        lines.append(f"this part: {counted(num_items, 'image')}, {num_shards:,} of the shards")
    lines += plan.findings
    if num_done:
        lines.append(f"going on with an unfinished build: {counted(num_done, 'image')} done")
    return lines


def _retry_unreadable(
    folders: Folders,
    plan: BuildPlan,
    shards: Sequence[ShardPlan],
    images: BuildImages,
    watcher: Watch,
) -> None:
    """Write shards with unreadable images again while some of the images become readable."""
    for _ in range(_MOST_RETRIES):
        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            unread = list(pool.map(partial(_unreadable_items, folders), shards))
        pairs = zip(shards, unread, strict=True)
        shards = [shard for shard, items in pairs if any(map(_is_readable, items))]
        if not shards:
            return
        what = counted(len(shards), "shard", "is", "are")
        watcher.notice(f"{what} written again: images that could not be read are readable now")
        images.write(folders, plan, shards, lambda _: None, watcher)  # already counted


def _unreadable_items(folders: Folders, shard: ShardPlan) -> list[Item]:
    receipt = read_receipt(folders, shard.name)
    if receipt is None:
        return []
    kinds = receipt.table["kind"].cast("string").to_pylist()
    return [item for item, kind in zip(shard.items, kinds, strict=True) if kind == UNREADABLE]


def _is_readable(item: Item) -> bool:
    try:
        for extent in (item.extent, *(mask.extent for mask in item.companions)):
            extent.read()
    except (MemberError, MemoryError):
        return False
    return True
