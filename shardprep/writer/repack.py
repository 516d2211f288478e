"""Repack: the records of finished datasets as a new one, in other shards.

Pixels are never touched: a record is copied as it is framed, or with another key and other class
numbers around its image. Shards are shuffled and cut as those of a build, so that one whole dataset
comes out as the build with this number of shards would have written it.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.catalog.items import Items
from shardprep.dataset.annotation_counts import united_unmatched
from shardprep.dataset.manifest import REPACKED, Fingerprint
from shardprep.errors import BuildError, DatasetError, RecordError
from shardprep.progress import Watcher
from shardprep.recipe.recipe import Recipe
from shardprep.source.dictionary_column import Coded
from shardprep.source.listing import Skipped
from shardprep.source.members import PLACE, Members
from shardprep.source.string_column import Texts, integers, release
from shardprep.writer.engine.job import OnProgress
from shardprep.writer.finalize import BuildResult
from shardprep.writer.plan.plan import BuildPlan, Outline, make_outline
from shardprep.writer.plan.shard_plan import ShardPlan, plan_shards
from shardprep.writer.reuse.record_copier import RecordCopier
from shardprep.writer.reuse.repack_inputs import (
    Parent,
    check_alike,
    relabelled,
    same_values,
    skipped_reasons,
    unique_keys,
    united,
)
from shardprep.writer.run import make_dataset
from shardprep.writer.workspace.files import Folders
from shardprep.writer.workspace.find import workspace_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def repack_dataset(
    parents: Sequence[Parent], recipe: Recipe, watcher: Watcher, *, overwrite: bool = False
) -> BuildResult:
    """Make one dataset of the records of others, or finish one that was begun.

    Args:
        parents: at least one; classes are numbered as in the first.
        recipe: place, name, version, number of shards and seed of the new dataset.
        watcher: receives the progress.
        overwrite: replace a finished dataset, once the new one is complete.

    Raises:
        SchemaError: the features of the parents differ.
        RecipeError: more shards are asked for than there are images, or images differ in their fit.
        DatasetError: a shard of a parent has gone, or is not what its item table says.
        RecordError: a record of a parent is damaged.
        BuildError: another dataset or build is there, or the disk is full.
        StorageError: a parent was replaced, or object storage does not answer, or refuses.

    """
    check_alike(parents)
    workspace, images = workspace_of(recipe), ParentImages(tuple(parents), recipe)
    if workspace.stands() and not overwrite:
        finished = workspace.finished()
        if finished is not None and finished.fingerprint.inputs != images.fingerprint.inputs:
            hint = "add --overwrite to replace it, or give another --version or --name"
            raise BuildError(workspace.location, "is there already", hint)
    result = make_dataset(workspace, images, watcher, overwrite=overwrite)
    return replace(result, num_copied=0)  # all of them are


@dataclass(frozen=True, slots=True)
class ParentImages:
    """The images of finished datasets, of which a run makes another."""

    parents: tuple[Parent, ...]
    recipe: Recipe

    work = "copying"

    @property
    def fingerprint(self) -> Fingerprint:
        """The manifests of the parents, and what their images were made by."""
        inputs = {
            f"{number}: {one.manifest.name} {one.manifest.version}": _signature(one)
            for number, one in enumerate(self.parents, 1)
        }
        specs = [
            {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in asdict(one.spec).items()
                if name in one.manifest.fingerprint.options
            }
            for one in self.parents
        ]
        own = {"shards": self.recipe.shards, "seed": self.recipe.seed}
        made = [one.manifest.fingerprint.versions for one in self.parents]
        return Fingerprint(
            inputs=inputs, options={**same_values(specs), **own}, versions=_versions(made)
        )

    def plan(self, scratch: Path, watcher: Watcher) -> BuildPlan:
        """Return the plan: all items of the parents, under keys that no other has."""
        del scratch, watcher
        plan = self._plan()
        release()
        return plan

    def _plan(self) -> BuildPlan:
        schema = united([*self.parents])
        keys = []
        skipped: list[Skipped] = []
        tables = []
        for parent, (own, others) in zip(self.parents, unique_keys(self.parents), strict=True):
            tables.append(relabelled(parent, schema)[0])
            keys.append(Texts(own))
            sizes = parent.skipped["original_bytes"].to_pylist()
            for key, size, why in zip(Texts(others), sizes, skipped_reasons(parent), strict=True):
                skipped.append(Skipped(key, why[0], size or 0, why[1]))
        if not any(map(len, keys)):
            raise DatasetError(self.parents[0].where, "no record is taken of it")
        rows = pa.concat_tables(tables)
        items = _items(rows, Texts.joined(keys))
        estimate = int(items.members.num_bytes.sum())
        name, recipe = self.recipe.dataset_name, self.recipe
        planned = plan_shards(name, items, recipe.shards, estimate, recipe.seed)
        shards = tuple(shard._replace(old=rows) for shard in planned)
        manifests = [one.manifest for one in self.parents]
        return BuildPlan(
            name=name,
            shards=shards,
            skipped=skipped,
            spec=self.parents[0].spec,
            schema=schema,
            labels_from="; ".join(dict.fromkeys(one.labels.found_by for one in manifests)),
            rows_without_image=tuple(
                row for one in manifests for row in one.labels.rows_without_image
            ),
            columns=(),
            findings=[],
            annotations=None,
            estimated_bytes=estimate,
        )

    def outline(self, plan: BuildPlan, num_parts: int) -> Outline:
        """Return the outline of the plan."""
        outline = make_outline(plan, self.recipe, self.fingerprint, num_parts)
        num_rows = sum(one.manifest.labels.num_rows_without_image for one in self.parents)
        unmatched = united_unmatched(one.manifest.unmatched for one in self.parents)
        num_rescaled = sum(one.manifest.num_rescaled for one in self.parents)
        more = {
            "num_rows_without_image": num_rows,
            "unmatched": unmatched,
            "num_rescaled": num_rescaled,
        }
        return outline.model_copy(update=more)

    def write(
        self,
        folders: Folders,
        plan: BuildPlan,
        shards: Sequence[ShardPlan],
        on_progress: OnProgress,
        watcher: Watcher,
    ) -> None:
        """Copy the records of shards."""
        del watcher
        changed = [one for one in self.parents if relabelled(one, plan.schema)[1]]
        files = {file for one in changed for file in one.rows["file"].unique().to_pylist()}
        try:
            copier = RecordCopier(plan.schema, frozenset(files), self.check)
            copier.copy(folders, shards, on_progress)
        except (DatasetError, RecordError):
            self.check()  # of a parent that was replaced, no record is damaged
            raise

    def check(self) -> None:
        """Check that no parent was replaced while it was read."""
        for parent in self.parents:
            parent.mark.check()


def _signature(parent: Parent) -> str:
    """Return the hash of a parent's manifest, and that of the numbers of the records taken."""
    if parent.numbers is None:
        return parent.manifest.sha256
    taken = hashlib.sha256(parent.numbers.astype("<i8").tobytes()).hexdigest()
    return f"{parent.manifest.sha256}, records {taken}"


def _versions(made: Sequence[dict[str, str]]) -> dict[str, str]:
    """Return the versions that made the images, all of them, and of this program."""
    names = sorted({name for one in made for name in one})
    of_images = {
        name: ", ".join(dict.fromkeys(one.get(name, "none") for one in made)) for name in names
    }
    return of_images | {REPACKED: version("shardprep")}


def _items(rows: pa.Table, keys: Texts) -> Items:
    """Return the items of rows under other keys, with as much of them as a plan needs."""
    number = len(rows)
    places = np.zeros(number, PLACE)
    for name, column in (("offset", "offset"), ("num_bytes", "length")):
        places[name] = pc.fill_null(rows[column], 0).to_numpy()
    splits = rows["split"].cast("string").combine_chunks().dictionary_encode()
    return Items(
        members=Members(keys, places, ("",)),
        split=Coded(integers(splits.indices), splits.dictionary.to_pylist()),
        target=Coded.constant(None, number),
        strata=Coded.constant((), number),
        group=Coded.constant("", number),
        annotation=Coded.constant(None, number),
        masks=Coded.constant((), number),
    )
