"""Make one dataset of the records of finished datasets (the parents), in other shards.

Images are never changed: a framed record is copied unchanged, or with another key or other class
numbers. Shards are shuffled and cut as in a build, so repacking one whole dataset gives the shards
that a build with this seed and number of shards would have written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.catalog.items import Items
from shardprep.dataset.diff import feature_differences
from shardprep.dataset.example import ExampleDecoder
from shardprep.dataset.item_check import check_items
from shardprep.dataset.item_table import (
    REJECTED,
    SKIPPED,
    WRITTEN,
    given_cells,
    given_columns,
    with_status,
)
from shardprep.dataset.manifest import REPACKED, Fingerprint, Manifest, united_unmatched
from shardprep.dataset.open_dataset import ManifestMark, OpenDataset
from shardprep.dataset.schema import BOX_LABEL, MASK, PRESENT, TARGETS, TEXTS, Schema
from shardprep.errors import (
    BuildError,
    DatasetError,
    OptionName,
    RecipeError,
    RecordError,
    SchemaError,
    some_of,
)
from shardprep.image.spec import ImageSpec
from shardprep.progress import Watch
from shardprep.recipe.recipe import Recipe
from shardprep.source.listing import Skipped
from shardprep.source.members import PLACE, Members
from shardprep.source.string_column import Coded, Texts, integers, release
from shardprep.writer.engine.job import OnProgress
from shardprep.writer.finalize import BuildResult
from shardprep.writer.plan.build_plan import BuildPlan, Outline, make_outline, recorded_recipe
from shardprep.writer.plan.shard_plan import ShardPlan, plan_shards
from shardprep.writer.record_copier import RecordCopier, with_files
from shardprep.writer.run import make_dataset
from shardprep.writer.workspace.files import Folders, replace_hint
from shardprep.writer.workspace.states import workspace_of

Numbers = np.ndarray[Any, np.dtype[np.int64]]

_NOT_SEARCHED = (
    "not searched for copies in different splits; shardprep verify --leaks searches them"
)


def repack_dataset(
    parents: Sequence[Parent], recipe: Recipe, watcher: Watch, *, overwrite: bool = False
) -> BuildResult:
    """Make one dataset of the parents' records, or continue an unfinished one.

    Classes are numbered as in the first parent; new classes of the others follow. `recipe` gives
    folder, name, version, number of shards and seed. A finished dataset of other parents or options
    is a BuildError without `overwrite`; with `overwrite`, it is replaced when the new one is
    complete.
    """
    check_alike(parents)
    workspace, images = workspace_of(recipe), ParentImages(tuple(parents), recipe)
    if workspace.stands() and not overwrite:
        finished = workspace.finished()
        if finished is not None and finished.fingerprint.inputs != images.fingerprint.inputs:
            raise BuildError(workspace.location, "already exists", replace_hint())
    result = make_dataset(workspace, images, watcher, overwrite=overwrite)
    return replace(result, num_copied=0)  # every image is copied


@dataclass(frozen=True, slots=True)
class ParentImages:
    """The images of finished datasets; implements `BuildImages`."""

    parents: tuple[Parent, ...]
    recipe: Recipe

    work = "copying"

    @property
    def fingerprint(self) -> Fingerprint:
        inputs = {
            f"{number}: {parent.manifest.name} {parent.manifest.version}": _signature(parent)
            for number, parent in enumerate(self.parents, 1)
        }
        specs = [
            {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in asdict(parent.spec).items()
                if name in parent.manifest.fingerprint.options
            }
            for parent in self.parents
        ]
        options = {
            name: value
            for name, value in specs[0].items()
            if all(name in other and other[name] == value for other in specs)
        }
        options |= {"shards": self.recipe.shards, "seed": self.recipe.seed}
        versions = [parent.manifest.fingerprint.versions for parent in self.parents]
        return Fingerprint(inputs=inputs, options=options, versions=_versions(versions))

    def plan(self, scratch: Path, watcher: Watch) -> BuildPlan:
        del scratch, watcher
        plan = self._plan()
        release()
        return plan

    def _plan(self) -> BuildPlan:
        schema = united([*self.parents])
        keys = []
        skipped: list[Skipped] = []
        tables: list[pa.Table] = []
        for parent, (own, others) in zip(self.parents, unique_keys(self.parents), strict=True):
            rows = relabelled(parent, schema)[0]
            tables.append(rows.select(tables[0].column_names) if tables else rows)
            keys.append(Texts(own))
            sizes = parent.skipped["original_bytes"].to_pylist()
            for key, size, why in zip(Texts(others), sizes, skipped_reasons(parent), strict=True):
                skipped.append(Skipped(key, why[0], size or 0, why[1]))
        if not any(map(len, keys)):
            raise DatasetError(self.parents[0].where, "no record is selected")
        rows = pa.concat_tables(tables)
        items = _items(rows, Texts.joined(keys))
        estimate = int(items.members.num_bytes.sum())
        name, recipe = self.recipe.dataset_name, self.recipe
        planned = plan_shards(name, items, recipe.shards, estimate, recipe.seed)
        shards = tuple(shard._replace(old=rows) for shard in planned)
        manifests = [one.manifest for one in self.parents]
        is_merged, had_leaks = len(manifests) > 1, manifests[0].leaks is not None
        is_whole = not is_merged and self.parents[0].numbers is None
        leaks = manifests[0].leaks if is_whole else None
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
            findings=[] if leaks or not (is_merged or had_leaks) else [_NOT_SEARCHED],
            annotations=None,
            estimated_bytes=estimate,
            leaks=leaks,
        )

    def outline(self, plan: BuildPlan, num_parts: int) -> Outline:
        outline = make_outline(plan, self.recipe, self.fingerprint, num_parts)
        manifests = [parent.manifest for parent in self.parents]
        more = {
            "num_rows_without_image": sum(one.labels.num_rows_without_image for one in manifests),
            "unmatched": united_unmatched(one.unmatched for one in manifests),
            "num_rescaled": sum(one.num_rescaled for one in manifests),
            "num_own_levels": sum(one.num_own_levels for one in manifests),
        }
        return outline.model_copy(update=more)

    def write(
        self,
        folders: Folders,
        plan: BuildPlan,
        shards: Sequence[ShardPlan],
        on_progress: OnProgress,
        watcher: Watch,
    ) -> None:
        del watcher
        changed = [parent for parent in self.parents if relabelled(parent, plan.schema)[1]]
        files = {file for parent in changed for file in parent.rows["file"].unique().to_pylist()}
        try:
            RecordCopier(folders, plan.schema, files, self.check).copy(shards, on_progress)
        except (DatasetError, RecordError):
            self.check()  # if a parent was replaced, this raises ChangedError instead
            raise

    def check(self) -> None:
        for parent in self.parents:
            parent.mark.check()


def _signature(parent: Parent) -> str:
    if parent.numbers is None:
        return parent.manifest.sha256
    taken = hashlib.sha256(parent.numbers.astype("<i8").tobytes()).hexdigest()
    return f"{parent.manifest.sha256}, records {taken}"


def _versions(versions: Sequence[dict[str, str]]) -> dict[str, str]:
    names = sorted({name for own in versions for name in own})
    of_images = {
        name: ", ".join(dict.fromkeys(own.get(name, "none") for own in versions)) for name in names
    }
    return of_images | {REPACKED: version("shardprep")}


def _items(rows: pa.Table, keys: Texts) -> Items:
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
        companions=Coded.constant((), number),
    )


class Parent(NamedTuple):
    """A dataset whose records are copied."""

    where: str
    mark: ManifestMark
    manifest: Manifest
    schema: Schema
    spec: ImageSpec
    rows: pa.Table
    """Item rows to copy, with the `file` of each record."""
    skipped: pa.Table
    """Item rows of the skipped inputs; empty if only some records are copied."""
    numbers: Numbers | None
    """Ascending numbers of the records to copy, counted through all shards; None for all items."""


def open_parent(dataset: OpenDataset, numbers: Numbers | None = None) -> Parent:
    """Check a dataset, and return it with the records of these numbers, or all items if None."""
    manifest, schema = dataset.manifest, dataset.schema
    table = dataset.item_rows(intact=True)
    check_items(dataset, table)
    table = _with_given_columns(dataset, table)
    dataset.files.check_shards([*manifest.shards.values()])
    status = table["status"].cast("string")
    if numbers is None:
        rows = table.filter(pc.is_in(status, pa.array([WRITTEN, REJECTED])))
        skipped = with_status(table, SKIPPED)
    else:
        rows, skipped = with_status(table, WRITTEN).take(pa.array(numbers)), table.slice(0, 0)
    del table
    recipe = recorded_recipe(manifest, "-", "-").settled(annotated=bool(schema.annotations))
    files = with_files(rows.unify_dictionaries().combine_chunks(), dataset)
    return Parent(
        str(dataset), dataset.mark, manifest, schema, recipe.image_spec, files, skipped, numbers
    )


def _with_given_columns(dataset: OpenDataset, table: pa.Table) -> pa.Table:
    """Return the item rows with the columns that earlier versions stored only in the records."""
    schema, given = dataset.schema, given_columns(dataset.schema)
    if {one.name for one in given.values()} <= {*table.column_names}:
        return table
    decoder = ExampleDecoder(schema.dtypes, {*given, *(f"{name}{PRESENT}" for name in given)})
    keys = dataset.record_rows(("key",))["key"].to_pylist()
    records = {key: decoder.decode(dataset.read(number)) for number, key in enumerate(keys)}
    rows = [records.get(key, {}) for key in table["key"].to_pylist()]
    for name, column in given.items():
        values = [row.get(name, [None])[0] for row in rows]
        texts = [one.decode() if isinstance(one, bytes) else one for one in values]
        cells = given_cells(texts, (row.get(f"{name}{PRESENT}", [1])[0] for row in rows))
        table = table.append_column(column, pa.array(cells, column.type))
    return table


def check_alike(parents: Sequence[Parent]) -> None:
    """Raise SchemaError or RecipeError if parents cannot be merged or one is given twice."""
    first = parents[0]
    for place, other in enumerate(parents[1:], 1):
        if any(other.mark == known.mark for known in parents[:place]):
            raise RecipeError(other.where, "is named twice", "name each dataset once")
        differences = feature_differences(first.schema.unnamed(), other.schema.unnamed())
        if differences:
            what = f"its features differ from the features of {first.where}: {some_of(differences)}"
            raise SchemaError(other.where, what, "build both with the same options")
        if other.spec.fit != first.spec.fit:
            what = f"its images are fitted by {other.spec.fit}, those of {first.where} by "
            raise RecipeError(
                other.where, what + first.spec.fit, f"build both with the same {OptionName('fit')}"
            )
        for name in (MASK, TARGETS, *first.schema.class_features):
            pair = [known.schema.features.get(name) for known in (first, other)]
            if not pair[0] or not pair[1] or pair[0].labels == pair[1].labels:
                continue
            noun = "masks" if name == MASK else f"values of {name!r}"
            what = f"its {noun} have other names or class numbers than {first.where}"
            raise SchemaError(
                other.where, what, f"build both with the same {OptionName('classes')}"
            )


def united(parents: Sequence[Parent]) -> Schema:
    """Return the joint schema of parents: classes of the first, then new classes of the others."""
    schema = parents[0].schema
    features = dict(schema.features)
    for name, feature in features.items():
        names = tuple(
            dict.fromkeys(chain(*(parent.schema.features[name].labels for parent in parents)))
        )
        features[name] = feature.model_copy(update={"labels": names})
    if TEXTS in features:
        most = max(parent.schema.features[TEXTS].num_values for parent in parents)
        features[TEXTS] = features[TEXTS].model_copy(update={"shape": (most,)})
    labels = tuple(dict.fromkeys(chain(*(parent.schema.labels for parent in parents))))
    return schema.model_copy(update={"features": features, "labels": labels})


def relabelled(parent: Parent, schema: Schema) -> tuple[pa.Table, bool]:
    """Return a parent's rows with class indexes of `schema`, and whether these have changed."""
    images = _places(parent.schema.labels, schema.labels)
    objects: list[int] = []
    if BOX_LABEL in schema.features:
        before = parent.schema.features[BOX_LABEL].labels
        objects = _places(before, schema.features[BOX_LABEL].labels)
    rows, is_new = parent.rows, False
    for places, columns in ((images, ("label", "labels")), (objects, ("object_labels",))):
        if places == list(range(len(places))):
            continue
        is_new = True
        for name in columns:
            at = rows.schema.get_field_index(name)
            rows = rows.set_column(at, name, _mapped(rows[name].combine_chunks(), places))
    return rows, is_new


def _places(names: Sequence[str], among: Sequence[str]) -> list[int]:
    known = {name: place for place, name in enumerate(among)}
    return [known[name] for name in names]


def _mapped(column: Any, places: Sequence[int]) -> Any:
    """Return class indexes, or lists of them, mapped by `places`. Nulls stay null."""
    table = pa.array(places, pa.int64())
    if not pa.types.is_list(column.type):
        return table.take(column)
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    offsets = pa.array(np.append(0, np.cumsum(np.asarray(lengths))), pa.int32())
    values = table.take(pc.list_flatten(column))
    return pa.ListArray.from_arrays(offsets, values, mask=column.is_null())


def unique_keys(parents: Sequence[Parent]) -> list[tuple[Any, Any]]:
    """Return the keys of the items and of the skipped inputs of each parent, as Arrow arrays.

    A key of several parents gets a prefix: the name of its dataset, with version or number if
    names are equal. RecipeError if two items still have the same key.
    """
    keys = [
        [
            some["key"].cast(pa.large_string()).combine_chunks()
            for some in (parent.rows, parent.skipped)
        ]
        for parent in parents
    ]
    counts = pa.concat_arrays([pa.concat_arrays(own).unique() for own in keys]).value_counts()
    several = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    titles = _titles([parent.manifest for parent in parents])
    result = []
    for own, title in zip(keys, titles, strict=True):
        before, nothing = (pa.scalar(text, pa.large_string()) for text in (f"{title}/", ""))
        items, skipped = (
            pc.if_else(
                pc.is_in(some, several), pc.binary_join_element_wise(before, some, nothing), some
            )
            for some in own
        )
        result.append((items, skipped))
    counts = pa.concat_arrays([items for items, _ in result]).value_counts()
    doubled = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if len(doubled):
        raise RecipeError("shardprep repack", f"{doubled[0].as_py()!r} is a key of two images")
    return result


def _titles(manifests: Sequence[Manifest]) -> list[str]:
    names = [manifest.name for manifest in manifests]
    if len({*names}) < len(names):
        names = [f"{manifest.name}-{manifest.version}" for manifest in manifests]
    if len({*names}) < len(names):
        names = [f"{name}-{number}" for number, name in enumerate(names, 1)]
    return names


def skipped_reasons(parent: Parent) -> list[tuple[str, str]]:
    """Return (reason, detail) of each skipped input; `totals` of the manifest has the reasons."""
    texts = [text or "" for text in parent.skipped["reason"].to_pylist()]
    reasons = map(parent.manifest.totals.reason_of, texts)
    return [(one, text[len(one) + 2 :]) for one, text in zip(reasons, texts, strict=True)]
