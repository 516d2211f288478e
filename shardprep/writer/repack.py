"""Make one dataset from the records of finished datasets (the parents), in other shards.

A framed record is copied unchanged, or with another key, other class numbers or added features.
With another size or format of images, all records are encoded anew. Shards are shuffled and cut as
in a build: a repack of one whole dataset with its seed and number of shards gives its shards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.catalog.items import Items
from shardprep.catalog.tables.metadata_files import Documents
from shardprep.catalog.target_values import Targets
from shardprep.catalog.targets import Target, class_map_of
from shardprep.dataset.item_table import given_columns
from shardprep.dataset.manifest import REPACKED, Fingerprint, united_unmatched
from shardprep.dataset.schema import (
    MISSING,
    PRESENT,
    TARGET_FEATURES,
    TARGET_IMAGE,
    TARGETS,
    Schema,
    TargetKind,
)
from shardprep.dataset.schema import Encoding as Form
from shardprep.errors import BuildError, DatasetError, OptionName, RecipeError, RecordError
from shardprep.image.spec import ImageSpec, estimated_bytes
from shardprep.processes import WorkerLimits
from shardprep.progress import Watch
from shardprep.recipe.options import BUILD_DEFAULTS
from shardprep.recipe.recipe import Recipe
from shardprep.source.byte_range import RefusedExtent
from shardprep.source.listing import Skipped
from shardprep.source.members import ODD, PLACE, Member, Members
from shardprep.source.string_column import Coded, Texts, integers, release
from shardprep.writer.engine.job import OnProgress, ShardJob, Workers
from shardprep.writer.finalize import BuildResult
from shardprep.writer.parents import (
    Parent,
    check_alike,
    relabelled,
    renamed,
    skipped_reasons,
    unique_keys,
    united,
)
from shardprep.writer.plan.build_plan import BuildPlan, Outline, make_outline
from shardprep.writer.plan.changed_items import CHANGES, ChangedItems, changed_items
from shardprep.writer.plan.shard_plan import ShardPlan, plan_shards
from shardprep.writer.record_copier import RecordCopier, own_rows
from shardprep.writer.run import make_dataset
from shardprep.writer.workspace.files import Folders, replace_hint
from shardprep.writer.workspace.states import workspace_of

if TYPE_CHECKING:
    from shardprep.image.near_pairs import Thumbnails
    from shardprep.writer.record_encoder import RecordEncoder

_NOT_SEARCHED = "not searched for copies across splits; `shardprep verify --leaks` finds them"


def repack_dataset(
    parents: Sequence[Parent],
    recipe: Recipe,
    watcher: Watch,
    *,
    overwrite: bool = False,
    encoding: Encoding | None = None,
    num_workers: int = 1,
) -> BuildResult:
    """Make one dataset from the records of the parents, or continue an unfinished one.

    Classes are numbered as in the first parent; new classes of the others follow. `recipe` gives
    folder, name, version, number of shards and seed, and the options in `CHANGES`. Records are
    copied, or encoded anew with `encoding`. A finished dataset with the same parents and options is
    kept. Other ones, or an output that is a parent, raise BuildError without `overwrite`; with it,
    the finished dataset is replaced when the new one is complete.
    """
    if recipe.class_map:
        names = {*chain(*(one.schema.labels for one in parents))}
        class_map = class_map_of(recipe.class_map, lambda: names, Documents((), recipe).read)
        parents = renamed(parents, class_map)
    check_alike(parents)
    workspace = workspace_of(recipe)
    images = ParentImages(tuple(parents), recipe, encoding, num_workers)
    if workspace.stands() and not overwrite:
        finished = workspace.finished()
        if finished is not None and finished.sha256 in {one.manifest.sha256 for one in parents}:
            what = "is one of the datasets to repack"
            raise BuildError(workspace.location, what, replace_hint())
        if finished is not None and finished.fingerprint.inputs != images.fingerprint.inputs:
            what = "already exists, and is not made of the same datasets"
            raise BuildError(workspace.location, what, replace_hint())
    result = make_dataset(workspace, images, watcher, overwrite=overwrite)
    return replace(result, num_copied=0)  # every image is copied, or none


def recorded_options(parent: Parent) -> dict[str, Any]:
    """Return the options that a repack takes over from the manifest of its first parent."""
    quality = () if parent.spec.format in ("png", "raw") else ("quality",)
    names = ("shards", "size", "format", *quality, "background", "min_visible")
    stored = parent.manifest.fingerprint.options
    known = {name: stored[name] for name in names if name in stored}
    return {**known, "fit": parent.spec.fit, "max_rejected": 1.0, "max_dropped": 1.0}


class Encoding(NamedTuple):
    """How to encode records anew: the specification of images, and the workers."""

    spec: ImageSpec
    workers: Workers


def encoding_of(
    parents: Sequence[Parent], recipe: Recipe, workers: Workers, *, has_size: bool
) -> Encoding | None:
    """Return how `recipe` encodes stored images anew, or None if no image changes.

    RecipeError for a format or size that stored images cannot get; it names the fit unless the
    user gave a size (`has_size`).
    """
    wanted = recipe.settled(annotated=bool(parents[0].schema.annotations)).image_spec
    for parent in parents:
        known = parent.spec
        if wanted.format == "keep" != known.format:
            what = "keep is only for `shardprep build`: it stores the files of a source"
            raise RecipeError(OptionName("format"), what, "give jpeg, png or raw")
        if wanted.size is None and known.size is not None:
            what = "none is not possible: the stored images are already resized"
            name, values = ("size", "WIDTHxHEIGHT") if has_size else ("fit", "crop, pad or stretch")
            raise RecipeError(OptionName(name), what, f"give {values}, or leave this out")
        if wanted.format != "png" and parent.schema.image.is_deep:
            what = f"{wanted.format} is not possible: images of 16 bits are stored as png"
            raise RecipeError(OptionName("format"), what, "leave this option out")
        is_fixed = wanted.fixed_size is not None and wanted.size == known.fixed_size
        fits = is_fixed or (wanted.size, wanted.fit) == (known.size, known.fit)
        has_quality = wanted.format not in ("png", "raw")
        if (
            not fits
            or wanted.format != known.format
            or (has_quality and wanted.quality != known.quality)
        ):
            depth = 16 if parent.schema.image.is_deep else 8
            return Encoding(replace(wanted, depth=depth), workers)
    return None


@dataclass(frozen=True, slots=True)
class ParentImages:
    """The images of finished datasets; implements `BuildImages`."""

    parents: tuple[Parent, ...]
    recipe: Recipe
    encoding: Encoding | None = None
    num_workers: int = 1
    """Number of processes that search for near copies."""

    @property
    def work(self) -> str:
        return "copying" if self.encoding is None else "encoding"

    @property
    def _changes(self) -> list[str]:
        return [name for name in CHANGES if getattr(self.recipe, name) != BUILD_DEFAULTS[name]]

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
        stated = [one.manifest.fingerprint.options.get("min_visible") for one in self.parents]
        if stated[0] is not None and stated.count(stated[0]) == len(stated):
            options["min_visible"] = stated[0]
        used = [parent.manifest.fingerprint.versions for parent in self.parents]
        given = self.recipe.fingerprint_options()
        if self.encoding is not None:
            from shardprep.writer.plan.fingerprint import fit_version, versions

            options |= {name: given[name] for name in ("format", "quality", "min_visible")}
            spec = self.encoding.spec
            options |= {"size": spec.size and list(spec.size), "fit": spec.fit}
            used = [versions() | fit_version(spec.fit)]
        options |= {name: given[name] for name in ("shards", "seed", *self._changes)}
        if self._changes:
            from shardprep.writer.plan.fingerprint import named_files

            inputs |= named_files(self.recipe)
        return Fingerprint(inputs=inputs, options=options, versions=_versions(used))

    def plan(self, scratch: Path, watcher: Watch) -> BuildPlan:
        del scratch
        with self._checked():
            plan = self._plan(watcher)
        release()
        return plan

    def _thumbnails(self, watcher: Watch, given: ChangedItems) -> Thumbnails:
        from shardprep.writer.plan.near_copies import ThumbnailSource, make_thumbnails

        mark = " ".join(map(_signature, self.parents))
        records = ThumbnailSource.records(mark, self.parents[0].schema, given.rows)
        return make_thumbnails(given.items, records, self.recipe, self.num_workers, watcher)

    def _plan(self, watcher: Watch) -> BuildPlan:
        schema = united([*self.parents])
        keys = []
        skipped: list[Skipped] = []
        tables: list[pa.Table] = []
        for parent, (own, others) in zip(self.parents, unique_keys(self.parents), strict=True):
            rows, is_new = relabelled(parent, schema)
            rows = rows.append_column("is_new", pa.array([is_new] * len(rows), pa.bool_()))
            tables.append(rows.select(tables[0].column_names) if tables else rows)
            keys.append(Texts(own))
            sizes = parent.skipped["original_bytes"].to_pylist()
            for key, size, why in zip(Texts(others), sizes, skipped_reasons(parent), strict=True):
                skipped.append(Skipped(key, why[0], size or 0, why[1]))
        if not any(map(len, keys)):
            what, hint = "no record is selected", "select other records"
            raise DatasetError(self.parents[0].where, what, hint)
        every, manifests = pa.concat_tables(tables), [one.manifest for one in self.parents]
        labels_from = "; ".join(dict.fromkeys(one.labels.found_by for one in manifests))
        items, is_changed = _items(every, Texts.joined(keys)), bool(self._changes)
        if is_changed or self.encoding is not None:
            items = _with_facts(items, every, schema)
        stored = {} if self.encoding is None else _stored_columns(every, schema)
        items = replace(items, columns=tuple(stored.values()))
        given = ChangedItems(items, every, schema, labels_from, tuple(stored))
        thumbnails = partial(self._thumbnails, watcher)
        made = changed_items(given, self.recipe, thumbnails) if is_changed else given
        spec, schema = self.parents[0].spec, made.schema
        estimate = int(made.items.members.num_bytes.sum())
        notes = [*self.recipe.rules.split.notes, *made.notes]
        if self.encoding is not None:
            from shardprep.writer.plan.source_plan import RECORD_OVERHEAD_BYTES

            spec = self.encoding.spec
            form: Form = "any" if spec.format == "keep" else spec.format
            schema = schema.with_images(spec.fixed_size, form)
            number = len(made.items)
            estimate = estimated_bytes(spec, estimate, number) + RECORD_OVERHEAD_BYTES * number
            notes += self._losses(spec)
        name, recipe = self.recipe.dataset_name, self.recipe
        planned = plan_shards(name, made.items, recipe.shards, estimate, recipe.seed)
        shards = tuple(shard._replace(old=made.rows) for shard in planned)
        is_merged = len(manifests) > 1 or self.parents[0].numbers is not None
        is_same = not (is_merged or is_changed or self.encoding)
        leaks = manifests[0].leaks if is_same else made.leaks
        if leaks is None and (len(manifests) > 1 or manifests[0].leaks is not None):
            notes.append(_NOT_SEARCHED)
        without = (row for one in manifests for row in one.labels.rows_without_image)
        return BuildPlan(
            name=name,
            shards=shards,
            skipped=[*skipped, *sorted(made.skipped, key=lambda one: one.key)],
            spec=spec,
            schema=schema,
            labels_from=made.labels_from,
            rows_without_image=(*without, *made.without_image),
            columns=made.columns,
            findings=notes,
            annotations=None,
            estimated_bytes=estimate,
            near_copies=made.near_copies,
            leaks=leaks,
        )

    def _losses(self, spec: ImageSpec) -> list[str]:
        known, notes = self.parents[0].spec, []
        stored = {parent.schema.image.encoding for parent in self.parents}
        if spec.format in ("jpeg", "keep") and stored & {"jpeg", "any"}:
            notes.append("stored JPEGs are decoded and encoded as JPEG once more, with loss")
        if known.size and spec.size and any(np.array(spec.size) > known.size):
            sizes = (f"{width}x{height}" for height, width in (known.size, spec.size))
            notes.append(f"stored images are enlarged from {' to '.join(sizes)}")
        return [f"{note}; a build from the source avoids this" for note in notes]

    def outline(self, plan: BuildPlan, num_parts: int) -> Outline:
        outline = make_outline(plan, self.recipe, self.fingerprint, num_parts)
        manifests = [parent.manifest for parent in self.parents]
        known = [one.labels for one in manifests]
        unlisted = sum(one.num_rows_without_image - len(one.rows_without_image) for one in known)
        more = {
            "num_rows_without_image": outline.num_rows_without_image + unlisted,
            "unmatched": united_unmatched(one.unmatched for one in manifests),
            "num_rescaled": sum(one.num_rescaled for one in manifests),
            "num_own_levels": sum(one.num_own_levels for one in manifests),
            "num_encodings": max(one.num_encodings for one in manifests)
            + (self.encoding is not None),
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
        with self._checked():
            if self.encoding is None:
                copier = RecordCopier(folders, plan.schema, plan.columns, self.check)
                copier.copy(shards, on_progress)
                return
            limits = WorkerLimits.of(self.recipe.timeout, self.recipe.max_pixels)
            job = ShardJob.of(folders, self._encoder(plan), limits, plan)
            rows = [shard._replace(old=own_rows(shard)) for shard in shards]
            self.encoding.workers.engine(job, rows, self.encoding.workers.num, on_progress)

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except (DatasetError, RecordError):
            self.check()  # if a parent was replaced, this raises ChangedError instead
            raise

    def _encoder(self, plan: BuildPlan) -> RecordEncoder:
        from shardprep.writer.chunk_encoder import ChunkEncoder
        from shardprep.writer.record_encoder import RecordEncoder, annotation_spec, further_features

        target, image = None, plan.schema.features.get(TARGET_IMAGE)
        if image is not None:
            target = replace(plan.spec, format="png", depth=16 if image.is_deep else 8)
        form = annotation_spec(plan.schema, self.recipe.min_visible)
        encoder = ChunkEncoder(plan.spec, plan.schema, further_features(plan.schema), form, target)
        return RecordEncoder(encoder, self.parents[0].schema, plan.columns)

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


def _with_facts(items: Items, rows: pa.Table, schema: Schema) -> Items:
    """Return the items with the targets, groups and mask names of their rows."""
    from shardprep.writer.reuse import targets_of

    texts = (rows[name].cast("string").to_pylist() for name in ("kind", "reason"))
    facts = enumerate(zip(*texts, rows["original_bytes"].to_pylist(), strict=True))
    refused = {
        row: RefusedExtent(size or 0, why or "", kind) for row, (kind, why, size) in facts if kind
    }
    places, lost = items.members.places.copy(), np.array([*refused], np.int64)
    places["kind"][lost], places["file"][lost] = ODD, np.arange(len(lost))
    targets = Coded.of(targets_of(rows))
    files = rows["mask_key"].to_pylist() if "mask_key" in rows.column_names else [None] * len(rows)
    unread = RefusedExtent(0, "is in its record")
    return replace(
        items,
        members=Members(items.members.keys, places, ("",), [*refused.values()]),
        target=targets,
        strata=_strata(targets, rows, schema),
        group=Coded.of(rows["group"].to_pylist()).filled(""),
        companions=Coded.apart((Member(key, unread),) if key else () for key in files),
    )


def _stored_columns(rows: pa.Table, schema: Schema) -> dict[str, Coded[Any]]:
    """Return feature → values, for the features that are columns of the item table."""
    found = dict[str, Coded[Any]]()
    for name, column in given_columns(schema).items():
        cells, nothing = rows[column.name].to_pylist(), MISSING[schema.features[name].dtype]
        found[name] = Coded.of(nothing if one is None else one for one in cells)
        if f"{name}{PRESENT}" in schema.features:
            found[f"{name}{PRESENT}"] = Coded.of(int(one is not None) for one in cells)
    return found


def _strata(targets: Coded[Target], rows: pa.Table, schema: Schema) -> Coded[tuple[int, ...]]:
    if schema.has_target:
        kinds = {name: kind for kind, name in TARGET_FEATURES.items() if name != TARGETS}
        is_soft = TARGETS in schema.features and schema.features[TARGETS].soft
        kind = kinds.get(schema.target or "", "soft" if is_soft else "classes")
        features = {name: schema.features[name] for name in schema.class_features}
        return Targets(cast("TargetKind", kind), targets, schema.labels, features=features).strata()
    if "object_labels" not in rows.column_names:
        return Coded.constant((), len(rows))
    several = zip(
        *(rows[name].to_pylist() for name in ("object_labels", "mask_pixels")), strict=True
    )
    most = len(schema.annotation_labels)
    return Coded.of(
        tuple(sorted({*(labels or ()), *(one for one, _ in pixels or () if one < most)}))
        for labels, pixels in several
    )
