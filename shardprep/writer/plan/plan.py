"""The plan of a build: everything that is decided before the first image is decoded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardprep.catalog.objects.combine import AnnotationFacts
from shardprep.dataset.schema import Schema
from shardprep.image.spec import ImageSpec
from shardprep.source.listing import Skipped
from shardprep.writer.plan.shard_plan import Part, ShardItems, ShardPlan

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
