"""The datasets whose records a repack copies or encodes, and their joint classes and keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
from shardprep.dataset.manifest import Manifest
from shardprep.dataset.open_dataset import ManifestMark, OpenDataset
from shardprep.dataset.schema import BOX_LABEL, MASK, PRESENT, TARGETS, TEXTS, Schema
from shardprep.errors import OptionName, RecipeError, SchemaError, some_of, use_one_of
from shardprep.image.spec import ImageSpec
from shardprep.writer.plan.build_plan import recorded_recipe
from shardprep.writer.record_copier import with_files

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class Parent(NamedTuple):
    """A dataset whose records a repack copies or encodes."""

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
    """Check a dataset, and return a parent with the records of `numbers`, or all items if None.

    DatasetError or RecordError if the dataset is damaged.
    """
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
    """Return the item rows with columns that earlier versions stored only in the records."""
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
    """Raise SchemaError or RecipeError if parents cannot be merged or are given twice."""
    first = parents[0]
    for place, other in enumerate(parents[1:], 1):
        if any(other.mark == known.mark for known in parents[:place]):
            raise RecipeError(other.where, "is named twice", "name each dataset once")
        differences = feature_differences(first.schema.unnamed(), other.schema.unnamed())
        if differences:
            what = f"its features differ from the features of {first.where}: {some_of(differences)}"
            raise SchemaError(other.where, what, "build both with the same options")
        if other.spec.fit != first.spec.fit:
            what = f"its fit is {other.spec.fit}, but {first.where} has "
            raise RecipeError(
                other.where, what + first.spec.fit, f"build both with the same {OptionName('fit')}"
            )
        for name in (MASK, TARGETS, *first.schema.class_features):
            pair = [known.schema.features.get(name) for known in (first, other)]
            if not pair[0] or not pair[1] or pair[0].labels == pair[1].labels:
                continue
            noun = "classes of masks" if name == MASK else f"names of {name!r}"
            what = f"its {noun} or their order differ from {first.where}"
            hint = (
                f"build both with the same {OptionName('labels' if name == TARGETS else 'classes')}"
            )
            if name not in (MASK, TARGETS):
                hint = "build both with tables that have the same values"
                hint += f", or rename classes with {OptionName('class_map')}"
            raise SchemaError(other.where, what, hint)


def renamed(parents: Sequence[Parent], class_map: Mapping[str, str]) -> list[Parent]:
    """Return the parents with new names of classes. `united` joins classes of the same name.

    RecipeError for a name that no class has, and if two classes of masks or of a class target would
    get the same name: their stored values do not change.
    """
    option = OptionName("class_map")
    known = dict.fromkeys(chain(*(names for one in parents for names in _class_names(one.schema))))
    if lost := [name for name in class_map if name not in known]:
        what, hint = f"no class is called {some_of(lost)}", use_one_of(lost[0], known)
        raise RecipeError(option, what, hint)
    made = []
    for parent in parents:
        schema, features = parent.schema, dict(parent.schema.features)
        for name in _named_features(schema):
            labels = tuple(class_map.get(one, one) for one in features[name].labels)
            features[name] = features[name].model_copy(update={"labels": labels})
            if name != BOX_LABEL and len({*labels}) < len(labels):
                twice = next(one for one in labels if labels.count(one) > 1)
                what = (
                    f"{twice!r} would join two classes of {name}, whose stored values do not change"
                )
                raise RecipeError(option, what, "build again from the source with this map")
        labels = tuple(class_map.get(one, one) for one in schema.labels)
        update = {"features": features, "labels": labels}
        made.append(parent._replace(schema=schema.model_copy(update=update)))
    return made


def _named_features(schema: Schema) -> list[str]:
    names = (MASK, BOX_LABEL, *schema.class_features)
    return [name for name in names if name in schema.features]


def _class_names(schema: Schema) -> Iterator[tuple[str, ...]]:
    yield schema.labels
    yield from (schema.features[name].labels for name in _named_features(schema))


def united(parents: Sequence[Parent]) -> Schema:
    """Return the joint schema: classes of the first parent, then new classes of other parents."""
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
    """Return a parent's rows with class indexes of `schema`, and whether any index may differ."""
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
            column = _mapped(rows[name].combine_chunks(), places)
            if name == "labels" and len({*places}) < len(places):  # two classes are one now
                sets = [one and sorted({*one}) for one in column.to_pylist()]
                column = pa.array(sets, column.type)
            rows = rows.set_column(at, name, column)
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
    """Return the keys of items and of skipped inputs of each parent, as Arrow arrays.

    A key that several parents have gets a prefix: the name of its dataset, with version or number
    if names are equal. RecipeError if two items still have the same key.
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
        what = f"{doubled[0].as_py()!r} is a key of two images"
        raise RecipeError("shardprep repack", what, "leave one of the datasets out")
    return result


def _titles(manifests: Sequence[Manifest]) -> list[str]:
    names = [manifest.name for manifest in manifests]
    if len({*names}) < len(names):
        names = [f"{manifest.name}-{manifest.version}" for manifest in manifests]
    if len({*names}) < len(names):
        names = [f"{name}-{number}" for number, name in enumerate(names, 1)]
    return names


def skipped_reasons(parent: Parent) -> list[tuple[str, str]]:
    """Return (reason, detail) of each skipped input; `totals` of the manifest lists the reasons."""
    texts = [text or "" for text in parent.skipped["reason"].to_pylist()]
    reasons = map(parent.manifest.totals.reason_of, texts)
    return [(one, text[len(one) + 2 :]) for one, text in zip(reasons, texts, strict=True)]
