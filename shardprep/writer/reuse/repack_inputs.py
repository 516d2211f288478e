"""Parents: finished datasets whose records become a new one, with one class map for all."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset.diff import feature_differences
from shardprep.dataset.item_check import check_items
from shardprep.dataset.item_table import REJECTED, SKIPPED, WRITTEN, with_status
from shardprep.dataset.manifest import Manifest
from shardprep.dataset.open_dataset import ManifestMark, OpenDataset
from shardprep.dataset.schema import BOX_LABEL, MASK, Schema
from shardprep.errors import RecipeError, SchemaError, some_of
from shardprep.image.spec import ImageSpec
from shardprep.writer.plan.fingerprint import recorded_recipe
from shardprep.writer.reuse.stored_records import with_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Numbers = np.ndarray[Any, np.dtype[np.int64]]


class Parent(NamedTuple):
    """A dataset that records are taken of."""

    where: str
    """Its path or address."""
    mark: ManifestMark
    """Used to detect that the dataset was replaced."""
    manifest: Manifest
    schema: Schema
    spec: ImageSpec
    rows: pa.Table
    """Rows of the items that are taken, with the `file` of each record."""
    skipped: pa.Table
    """Rows of the inputs that were skipped; none where only some records are taken."""
    numbers: Numbers | None
    """Numbers of the records that are taken, through all shards, rising; None: all."""


def open_parent(dataset: OpenDataset, numbers: Numbers | None = None) -> Parent:
    """Return a dataset with the records of some numbers, else with all of its items.

    Raises:
        ChangedError: another dataset has taken its place meanwhile.
        DatasetError: a document or a shard is missing, or not what the manifest says.
        StorageError: object storage does not answer, or refuses.

    """
    manifest, schema = dataset.manifest, dataset.schema
    table = dataset.item_rows(intact=True)
    check_items(dataset, table)
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


def check_alike(parents: Sequence[Parent]) -> None:
    """Check that records of all parents may stand in one dataset.

    Raises:
        SchemaError: their features, or the meaning of mask pixels, differ.
        RecipeError: their images were fitted in other ways, or one is named twice.

    """
    first = parents[0]
    for place, other in enumerate(parents[1:], 1):
        if any(other.mark == one.mark for one in parents[:place]):
            raise RecipeError(other.where, "is named twice", "name each dataset once")
        differences = feature_differences(_unnamed(first.schema), _unnamed(other.schema))
        if differences:
            what = f"its features are others than those of {first.where}: {some_of(differences)}"
            raise SchemaError(other.where, what, "build both with the same options")
        if other.spec.fit != first.spec.fit:
            what = f"its images are fitted by {other.spec.fit}, those of {first.where} by "
            raise RecipeError(other.where, what + first.spec.fit, "build both with the same --fit")
        masks = [one.schema.features.get(MASK) for one in (first, other)]
        if masks[0] and masks[1] and masks[0].labels != masks[1].labels:
            what = f"its masks hold the numbers of other classes than those of {first.where}"
            raise SchemaError(other.where, what, "build both with the same --classes")


def _unnamed(schema: Schema) -> Schema:
    """Return a schema without the names of classes."""
    features = {
        name: one.model_copy(update={"labels": ()}) for name, one in schema.features.items()
    }
    return schema.model_copy(update={"features": features, "labels": ()})


def united(parents: Sequence[Parent]) -> Schema:
    """Return the schema of all: classes are those of the first, then new ones of the others."""
    schema = parents[0].schema
    features = dict(schema.features)
    for name, feature in features.items():
        names = tuple(dict.fromkeys(chain(*(one.schema.features[name].labels for one in parents))))
        features[name] = feature.model_copy(update={"labels": names})
    labels = tuple(dict.fromkeys(chain(*(one.schema.labels for one in parents))))
    return schema.model_copy(update={"features": features, "labels": labels})


def relabelled(parent: Parent, schema: Schema) -> tuple[pa.Table, bool]:
    """Return the rows of a parent with the class numbers of a schema, and whether any is new."""
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
    """Return class numbers, or lists of them, as the numbers at their places; nulls stay."""
    table = pa.array(places, pa.int64())
    if not pa.types.is_list(column.type):
        return table.take(column)
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    offsets = pa.array(np.append(0, np.cumsum(np.asarray(lengths))), pa.int32())
    values = table.take(pc.list_flatten(column))
    return pa.ListArray.from_arrays(offsets, values, mask=column.is_null())


def unique_keys(parents: Sequence[Parent]) -> list[tuple[Any, Any]]:
    """Return the keys of the items and of the skipped inputs of each parent, as Arrow arrays.

    A key that several have gets the name of its dataset before it, with the version or a number
    where names are the same.

    Raises:
        RecipeError: a key with such a name is there already.

    """
    keys = [
        [some["key"].cast(pa.large_string()).combine_chunks() for some in (one.rows, one.skipped)]
        for one in parents
    ]
    counts = pa.concat_arrays([pa.concat_arrays(own).unique() for own in keys]).value_counts()
    several = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    titles = _titles([one.manifest for one in parents])
    found = []
    for own, title in zip(keys, titles, strict=True):
        before, nothing = (pa.scalar(text, pa.large_string()) for text in (f"{title}/", ""))
        items, skipped = (
            pc.if_else(
                pc.is_in(some, several), pc.binary_join_element_wise(before, some, nothing), some
            )
            for some in own
        )
        found.append((items, skipped))
    counts = pa.concat_arrays([items for items, _ in found]).value_counts()
    doubled = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if len(doubled):
        raise RecipeError("shardprep repack", f"{doubled[0].as_py()!r} is a key of two images")
    return found


def _titles(manifests: Sequence[Manifest]) -> list[str]:
    """Return a name for each dataset that no other has."""
    names = [one.name for one in manifests]
    if len({*names}) < len(names):
        names = [f"{one.name}-{one.version}" for one in manifests]
    if len({*names}) < len(names):
        names = [f"{name}-{number}" for number, name in enumerate(names, 1)]
    return names


def skipped_reasons(parent: Parent) -> list[tuple[str, str]]:
    """Return the reason of each skipped input, one of those that are counted, and its detail."""
    known = sorted(parent.manifest.totals.skipped, key=len, reverse=True)
    return [_parted(text or "", known) for text in parent.skipped["reason"].to_pylist()]


def _parted(text: str, known: Sequence[str]) -> tuple[str, str]:
    reason = next((one for one in known if text == one or text.startswith(f"{one}: ")), text)
    return reason, text[len(reason) + 2 :]


def same_values(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what all mappings have alike."""
    first = values[0]
    return {
        name: value
        for name, value in first.items()
        if all(name in one and one[name] == value for one in values)
    }
