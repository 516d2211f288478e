"""The plan of a build: everything that is decided before the first image is decoded.

Its outline, all of it but the items, is kept beside the receipts, so that `finalize` can end a
build without its source.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from shardprep.catalog.objects.combine import AnnotationFacts
from shardprep.dataset import documents
from shardprep.dataset.annotation_counts import Unmatched
from shardprep.dataset.documents import Count, Document, Name, Version
from shardprep.dataset.manifest import Fingerprint
from shardprep.dataset.schema import MAX_SIDE, Schema
from shardprep.errors import BuildError, printable
from shardprep.image.spec import ImageSpec
from shardprep.recipe.recipe import Recipe
from shardprep.source.listing import Skipped
from shardprep.storage.folder import Folder
from shardprep.writer.plan.shard_plan import Part, ShardItems, ShardPlan
from shardprep.writer.workspace.files import OUTLINE_FILE

if TYPE_CHECKING:
    from collections.abc import Collection


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
    """Names of the features that `Item.columns` holds."""
    findings: list[str]
    annotations: AnnotationFacts | None
    """Boxes and masks, None where none are stored."""
    estimated_bytes: int
    """Estimated size of all shards together."""
    near_copies: str = ""
    """Hash of the near copies that it is made by, hex; "" where none are looked for."""

    @property
    def num_items(self) -> int:
        """Number of items in all shards."""
        return sum(len(shard.items) for shard in self.shards)

    def of_part(self, part: Part) -> BuildPlan:
        """Return the plan of one part, with the source's findings as they are."""
        shards = tuple(part.of(self.shards))
        num_items = sum(len(shard.items) for shard in shards)
        estimate = self.estimated_bytes * num_items // self.num_items
        return replace(self, shards=shards, estimated_bytes=estimate)

    def without_others(self, part: Part) -> BuildPlan:
        """Return the plan with the items of one part; of the others their number alone is kept."""
        if part.count == 1:
            return self
        mine = {shard.name for shard in part.of(self.shards)}
        return replace(self, shards=tuple(_kept(shard, mine) for shard in self.shards))


def _kept(shard: ShardPlan, wanted: Collection[str]) -> ShardPlan:
    if not isinstance(shard.items, ShardItems):
        return shard
    is_wanted = shard.name in wanted
    return shard._replace(items=shard.items.alone() if is_wanted else shard.items.counted())


_SHOWN_ROWS = 10
"""Number of rows without an image that are named."""


class PlannedShard(Document):
    """One shard, without its items."""

    name: str
    """File name of the shard."""
    split: Name


class Outline(Document):
    """The dataset that a build will make, as far as it is known before the first image is read."""

    name: Name
    version: Version
    fingerprint: Fingerprint
    spec: ImageSpec
    dataset_schema: Schema
    labels_from: str
    num_rows_without_image: Count
    rows_without_image: tuple[str, ...]
    """Ids of some of these rows."""
    unmatched: Unmatched | None = None
    """Annotations without an image, and images without an annotation; None without any."""
    num_rescaled: Count = 0
    """Images of other datasets whose annotations were scaled when they were built."""
    shards: tuple[PlannedShard, ...]
    """In the order of the dataset."""
    skipped: dict[str, Count]
    """Inputs that never became items, by reason."""
    max_rejected: float = Field(ge=0, le=1)
    """The share of rejected images up to which the dataset may be published."""
    max_dropped: float = Field(default=1, ge=0, le=1)
    """The share of bad objects up to which it may be."""
    near_copies: str = ""
    """Hash of the near copies that the plan is made by, hex; "" where none are looked for."""
    mask_padding: int | None = None
    """Value of masks of classes beside padded images, where it is not that of the background; None
    in builds without such padding, and in those begun when it was that of the background."""
    findings: tuple[str, ...] = ()
    """Remarks on the plan for the user, a line each."""
    num_parts: int = Field(ge=1)
    """Number of parts that the build was cut into, by the run that wrote this; 1: not cut."""

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
                message = f"a shard is called {shard.name!r}, not {wanted}"
                raise ValueError(message)
        if self.spec.size is not None and not all(1 <= side <= MAX_SIDE for side in self.spec.size):
            message = f"spec.size is {self.spec.size}"
            raise ValueError(message)
        if type(self.fingerprint.options.get("seed")) is not int:
            message = "fingerprint.options has no seed"
            raise ValueError(message)
        return self


def make_outline(
    plan: BuildPlan, recipe: Recipe, fingerprint: Fingerprint, num_parts: int
) -> Outline:
    """Return the outline of a plan."""
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
        shards=tuple(PlannedShard(name=one.name, split=one.split) for one in plan.shards),
        skipped=dict(sorted(Counter(one.reason for one in plan.skipped).items())),
        max_rejected=recipe.max_rejected,
        max_dropped=recipe.max_dropped,
        near_copies=plan.near_copies,
        mask_padding=_mask_padding(plan),
        findings=tuple(plan.findings),
        num_parts=num_parts,
    )


def _mask_padding(plan: BuildPlan) -> int | None:
    form = None if plan.annotations is None else plan.annotations.spec
    if form is None or form.masks != "classes" or plan.spec.fit != "pad":
        return None
    return None if form.background == form.ignore else form.ignore


def write_outline(state: Folder, outline: Outline) -> None:
    """Write the outline of a build beside its receipts; BuildError where another plan is there."""
    check_outline(state, outline)
    state.write(OUTLINE_FILE, outline.model_dump_json(indent=2).encode())


def check_outline(state: Folder, outline: Outline) -> None:
    """Check that the shards of a build that was begun here are those of the same plan.

    The fingerprint has all that a plan is made of but near copies, which an unread image may
    change, and the value of padding in masks, which is known once these are recognised.
    """
    there = None
    if outline.near_copies or outline.mask_padding is not None:
        with contextlib.suppress(BuildError):  # a damaged one is written anew
            there = read_outline(state)
    if there is not None and there.near_copies != outline.near_copies:
        raise BuildError(
            str(state),
            "was begun with other near copies: some image could be read by one run alone",
            f"remove {state} and start again, with an image that fails on an --exclude-list",
        )
    if there is not None and there.mask_padding != outline.mask_padding:
        raise BuildError(
            str(state),
            "was begun by a version that wrote the background class into masks beside padded "
            f"images, and this one writes {outline.mask_padding}",
            f"remove {state} to start again, or end the build with that version",
        )


def read_outline(state: Folder) -> Outline | None:
    """Return the outline of the build that was begun here, None where there is none."""
    data = state.read(OUTLINE_FILE)
    try:
        return None if data is None else documents.parse_document(Outline, data)
    except documents.DocumentError as error:
        where = state.located(OUTLINE_FILE)
        raise BuildError(
            where, f"is damaged ({error})", "run the build, or its parts, again"
        ) from error
