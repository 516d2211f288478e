"""The plan of a build, and its outline: the facts that `finalize` needs, without the items."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from shardprep.dataset import documents
from shardprep.dataset.documents import Count, Document, Name, Version
from shardprep.dataset.leak_check import LeakCheck
from shardprep.dataset.manifest import Fingerprint, Manifest, Unmatched
from shardprep.dataset.schema import MAX_SIDE, Schema
from shardprep.errors import BuildError, DatasetError, OptionName, RecipeError, printable
from shardprep.image.spec import ImageSpec
from shardprep.recipe.options import BUILD_OPTIONS
from shardprep.recipe.recipe import Recipe, stored_recipe
from shardprep.source.listing import Skipped
from shardprep.storage.cache import with_cache
from shardprep.storage.folder import Folder
from shardprep.writer.plan.shard_plan import Part, ShardPlan
from shardprep.writer.workspace.files import OUTLINE_FILE

if TYPE_CHECKING:
    from shardprep.catalog.objects.combine import AnnotationFacts


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """All items of a dataset in the order of its shards, and how they are encoded."""

    name: str
    shards: tuple[ShardPlan, ...]
    skipped: list[Skipped]
    spec: ImageSpec
    schema: Schema
    labels_from: str
    rows_without_image: tuple[str, ...]
    columns: tuple[str, ...]
    findings: list[str]
    annotations: AnnotationFacts | None
    estimated_bytes: int
    near_copies: str = ""
    leaks: LeakCheck | None = None
    target: ImageSpec | None = None
    """Specification of the stored target images; None without target images."""

    @property
    def num_items(self) -> int:
        return sum(len(shard.items) for shard in self.shards)

    def of_part(self, part: Part) -> BuildPlan:
        """Return the plan with the shards of one part; `findings` still cover the whole source."""
        shards = tuple(part.of(self.shards))
        num_items = sum(len(shard.items) for shard in shards)
        estimate = self.estimated_bytes * num_items // self.num_items
        return replace(self, shards=shards, estimated_bytes=estimate)

    def without_others(self, part: Part) -> BuildPlan:
        """Return the plan without items of other parts; their shards keep only an item count."""
        if part.count == 1:
            return self
        mine = {shard.name for shard in part.of(self.shards)}
        shards = (
            shard._replace(
                items=shard.items.alone() if shard.name in mine else shard.items.counted()
            )
            for shard in self.shards
        )
        return replace(self, shards=tuple(shards))


_SHOWN_ROWS = 10


class PlannedShard(Document):
    """Name and split of a shard."""

    name: str
    split: Name


class Outline(Document):
    """The facts about the future dataset that are known before the first shard is written."""

    name: Name
    version: Version
    fingerprint: Fingerprint
    spec: ImageSpec
    dataset_schema: Schema
    labels_from: str
    num_rows_without_image: Count
    rows_without_image: tuple[str, ...]
    unmatched: Unmatched | None = None
    """Annotations and images that do not match; None without annotations or if all match."""
    num_rescaled: Count = 0
    """In a repack, number of images whose annotations were scaled when the parents were built."""
    num_own_levels: Count = 0
    """In a repack, number of the parents' stacks whose own values decided black and white."""
    num_encodings: Count = 0
    """In a repack, number of times that stored images were encoded anew, this time included."""
    shards: tuple[PlannedShard, ...]
    skipped: dict[str, Count]
    max_rejected: float = Field(ge=0, le=1)
    max_dropped: float = Field(default=1, ge=0, le=1)
    near_copies: str = ""
    leaks: LeakCheck | None = None
    findings: tuple[str, ...] = ()
    num_parts: int = Field(ge=1)

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        counts = Counter(shard.split for shard in self.shards)
        names = [
            documents.shard_name(self.name, split, i, count)
            for split, count in counts.items()
            for i in range(count)
        ]
        for shard, wanted in zip(self.shards, names, strict=True):
            if shard.name != wanted:
                raise ValueError(f"a shard is called {shard.name!r}, not {wanted}")
        if self.spec.size is not None and not all(1 <= side <= MAX_SIDE for side in self.spec.size):
            raise ValueError(f"spec.size is {self.spec.size}")
        if type(self.fingerprint.options.get("seed")) is not int:
            raise ValueError("fingerprint.options has no seed")
        return self


def make_outline(
    plan: BuildPlan, recipe: Recipe, fingerprint: Fingerprint, num_parts: int
) -> Outline:
    """Return the outline of a plan for a build in `num_parts` parts."""
    return Outline(
        name=plan.name,
        version=recipe.version,
        fingerprint=fingerprint,
        spec=plan.spec,
        dataset_schema=plan.schema,
        labels_from=printable(plan.labels_from),
        num_rows_without_image=len(plan.rows_without_image),
        rows_without_image=tuple(map(printable, plan.rows_without_image[:_SHOWN_ROWS])),
        unmatched=None if plan.annotations is None else plan.annotations.unmatched,
        shards=tuple(PlannedShard(name=entry.name, split=entry.split) for entry in plan.shards),
        skipped=dict(sorted(Counter(entry.reason for entry in plan.skipped).items())),
        max_rejected=recipe.max_rejected,
        max_dropped=recipe.max_dropped,
        near_copies=plan.near_copies,
        leaks=plan.leaks,
        findings=tuple(plan.findings),
        num_parts=num_parts,
    )


def write_outline(state: Folder, outline: Outline) -> None:
    """Write the outline of a build; BuildError as in `check_outline`."""
    check_outline(state, outline)
    state.write(OUTLINE_FILE, outline.model_dump_json(indent=2).encode())


def check_outline(state: Folder, outline: Outline) -> None:
    """Raise BuildError if the unfinished build has found other near copies than `outline`.

    The fingerprint does not cover near copies, and an unreadable image may change them.
    """
    there = None
    if outline.near_copies:
        with contextlib.suppress(BuildError):  # a damaged outline is written again
            there = read_outline(state)
    if there is not None and there.near_copies != outline.near_copies:
        raise BuildError(
            str(state),
            "this run found other near copies than the run that began the build, perhaps because "
            "some images could not be read",
            f"list these images in {OptionName('exclude_list')}, remove {state}, and run again",
        )


def read_outline(state: Folder) -> Outline | None:
    """Return the outline of the unfinished build, or None without one; BuildError if damaged."""
    data = state.read(OUTLINE_FILE)
    try:
        return None if data is None else documents.parse_document(Outline, data)
    except documents.DocumentError as error:
        where = state.located(OUTLINE_FILE)
        what, hint = f"is damaged ({error})", "run `shardprep build`, or one of its parts, again"
        raise BuildError(where, what, hint) from error


_LIMITS = {
    "timeout": 0,
    "max_rejected": 1.0,
    **{key: BUILD_OPTIONS[key].most for key in ("max_members", "max_unpacked", "max_depth")},
}
"""Limits, each as wide as it can be: those of a build are not recorded."""


def recorded_recipe(manifest: Manifest, source: str, out: str) -> Recipe:
    """Return the recipe of a dataset; DatasetError if this version does not know all its keys."""
    options = {key: with_cache(value) for key, value in manifest.fingerprint.options.items()}
    keys = {"source": source, "out": out, "name": manifest.name, "version": manifest.version}
    counts = manifest.annotations.values()
    shares = {
        "max_dropped": manifest.unmatched or any(one.dropped for one in counts),
        "max_clipped": any(one.num_clipped for one in counts),
    }
    needed = {key: 1.0 for key, is_needed in shares.items() if is_needed}
    try:
        return stored_recipe({**options, **keys, **_LIMITS, **needed})
    except RecipeError as error:
        what = "was built by another version of shardprep, which has other options"
        hint = "install that version, or build the dataset again"
        raise DatasetError(f"{manifest.name} {manifest.version}", what, hint) from error
