"""Apply the options of a repack that correct, select or split the items of finished datasets.

Each option has the same meaning as in a build. Tables and lists are local files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.catalog.items import Items
from shardprep.catalog.labels import Labelling, classes_in
from shardprep.catalog.relabel import relabelled
from shardprep.catalog.selection import select
from shardprep.catalog.splits import (
    GivenSplits,
    divided_groups,
    given_splits,
    group_findings,
    group_keys,
)
from shardprep.catalog.tables.columns import column_notes, make_columns
from shardprep.catalog.tables.key_index import KeyIndex
from shardprep.catalog.tables.metadata_files import Documents
from shardprep.catalog.tables.row_matching import NoIdsError, TableMatch, match_table
from shardprep.catalog.tables.table import Rows, Table
from shardprep.catalog.targets import Cell, Naming, Target, class_names
from shardprep.dataset.item_table import given_cells, given_columns
from shardprep.dataset.leak_check import LeakCheck
from shardprep.dataset.schema import LABEL, LABELS, PRESENT, Schema
from shardprep.errors import OptionName, RecipeError, SchemaError, SourceError, counted, some_of
from shardprep.recipe.recipe import Recipe
from shardprep.source.listing import Skipped
from shardprep.source.string_column import Coded, Texts, integers

if TYPE_CHECKING:
    from shardprep.image.near_pairs import Thumbnails
    from shardprep.writer.plan.near_copies import NearCopies
    from shardprep.writer.plan.source_plan import Cut

CHANGES = ("exclude_list", "class_map", "relabel", "classes", "split", "group", "join", "columns")
"""Options that change items but not images. `class_map` is already applied to the parents."""
_NO_SPLIT = "in no split"


@dataclass(frozen=True, slots=True)
class ChangedItems:
    """Items of a repack, with the changes of the options applied so far."""

    items: Items
    rows: pa.Table
    """Row of each item in the item tables. Column `is_new`: whether the record needs new values."""
    schema: Schema
    labels_from: str
    columns: tuple[str, ...] = ()
    """Names of added features; `Items.columns` has the values."""
    skipped: tuple[Skipped, ...] = ()
    without_image: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    near_copies: str = ""
    """Digest of the near copies; "" if they were not searched."""
    leaks: LeakCheck | None = None

    def with_rows(self, **columns: pa.Array) -> ChangedItems:
        """Return a copy in which `columns` replace the columns of `rows` with the same names."""
        rows = self.rows
        for name, values in columns.items():
            at = rows.schema.get_field_index(name)
            rows = rows.set_column(at, name, values.cast(rows.schema.field(at).type))
        return replace(self, rows=rows)

    def without(self, reasons: Mapping[int, str]) -> ChangedItems:
        """Return a copy without the items at these positions; SourceError if none is left."""
        keys, sizes = self.items.members.keys, self.rows["original_bytes"].to_pylist()
        lost = [Skipped(keys[at], why, sizes[at] or 0) for at, why in sorted(reasons.items())]
        stay = np.delete(np.arange(len(self.items)), sorted(reasons))
        if not len(stay):
            what = f"every image is left out ({lost[0].reason})"
            hint = f"correct the list or table, so that images such as {keys[0]} stay"
            raise SourceError("shardprep repack", what, hint)
        return replace(
            self,
            items=self.items.take(stay),
            rows=self.rows.take(pa.array(stay)),
            skipped=(*self.skipped, *lost),
        )

    def noted(self, notes: Sequence[str], without_image: Sequence[str] = ()) -> ChangedItems:
        """Return a copy with further notes, and further ids that match no image."""
        notes, without = (*self.notes, *notes), (*self.without_image, *without_image)
        return replace(self, notes=notes, without_image=without)


def changed_items(
    given: ChangedItems, recipe: Recipe, thumbnails: Callable[[ChangedItems], Thumbnails]
) -> ChangedItems:
    """Return the items, changed by the options of `recipe` that are in `CHANGES`.

    `thumbnails` returns the `THUMBNAIL` of each item; it is called for `--group near`.
    """
    _check_join(recipe)
    documents, made = Documents((), recipe), given
    if recipe.exclude_list:
        made = _without_listed(made, recipe, documents)
    if recipe.relabel or recipe.classes:
        made = _with_labels(made, recipe, documents)
    index = KeyIndex(made.items.members.keys)
    match = _match(index, made, recipe)
    if recipe.columns:
        made = _with_columns(made, recipe, match)
    if recipe.rules.group.kind != "none":
        made = _with_groups(made, group_keys(index.keys, recipe.rules.group, match))
    ratios = recipe.rules.split.ratios
    if recipe.split and recipe.rules.split.kind != "ratio":
        made = _with_splits(made, given_splits(index, recipe.rules.split, match, documents))
    near = None
    if recipe.rules.group.is_near:
        from shardprep.writer.plan.source_plan import without_spoilers

        made = _without_spoilers(made, without_spoilers(made.items, ratios))
        near, made = _with_near(made, thumbnails(made))
    if recipe.split:
        made = _cut(made, ratios, recipe.seed)
    if near is not None:
        made = replace(
            made.noted(near.remarks(made.items, are_left_out=False)),
            near_copies=near.digest,
            leaks=near.leak_check(made.items, recipe),
        )
    return made.noted([*index.remarks, *_remarks(made.items, recipe)])


def _remarks(items: Items, recipe: Recipe) -> list[str]:
    ratios = recipe.rules.split.ratios
    if recipe.rules.group.kind != "none":
        return group_findings(items, recipe.rules.group.text, ratios)
    return divided_groups(items, ratios) if recipe.split else []


def _check_join(recipe: Recipe) -> None:
    if recipe.join and not (recipe.columns or recipe.group or recipe.rules.split.column):
        hint = f"add {OptionName('columns', 'A,B')}, or name a column to group or split by"
        raise RecipeError(OptionName("join"), "changes nothing by itself", hint)


def _match(index: KeyIndex, given: ChangedItems, recipe: Recipe) -> TableMatch | None:
    """Match the joined tables, or without tables the stored columns, to the items; None if unused.

    If the first table of `--join` does not name images, it is joined to the stored columns.
    """
    if not (recipe.columns or recipe.group or recipe.rules.split.column):
        return None
    stored, table = _stored_table(given), Documents((), recipe).joined_table()
    try:
        own = table or stored
        return None if own is None else match_table(index, own)
    except NoIdsError:
        if stored is None:
            raise
        both = Documents((), recipe, stored).joined_table()
        return None if both is None else match_table(index, both)


def _stored_table(given: ChangedItems) -> Table | None:
    """Return the features that came from columns of a table, or None without such features."""
    columns = {name: one.name for name, one in given_columns(given.schema).items()}
    cells = [
        Texts(pc.fill_null(given.rows[title].cast(pa.large_string()), "").combine_chunks())
        for title in columns.values()
    ]
    keys = given.items.members.keys
    rows = Rows([keys, *cells], len(keys))
    return Table("the dataset", ("image", *columns), rows, is_own=True) if columns else None


def _without_listed(given: ChangedItems, recipe: Recipe, documents: Documents) -> ChangedItems:
    members = given.items.members
    ids = documents.ids(recipe.exclude_list, KeyIndex(members.keys))
    found = select(members, recipe, ids, ())
    reasons = {one.key: one.reason for one in found.left_out}
    out = {at: reasons[key] for at, key in enumerate(members.keys) if key in reasons}
    return given.without(out).noted(found.notes)


def _with_labels(given: ChangedItems, recipe: Recipe, documents: Documents) -> ChangedItems:
    """Return the items with the labels of `--relabel` and the class numbers of `--classes`."""
    schema, labels, rule = given.schema, given.schema.labels, recipe.rules.relabel
    if schema.target not in (LABEL, LABELS):
        option = OptionName("relabel" if recipe.relabel else "classes")
        there = f"the target {schema.target}" if schema.target else "no labels"
        what = f"needs a dataset whose images have classes, but this one has {there}"
        raise SchemaError(option, what, "leave this option out")
    classes = recipe.classes or labels
    added = [name for name in classes if name not in labels]
    if recipe.relabel and len(added) == len(classes):  # only new classes
        classes = (*labels, *added)
    separator = "" if schema.target == LABELS else None

    def mapped(one: Any, values: Any) -> Any:
        return tuple(values[each] for each in one) if isinstance(one, tuple) else values[one]

    names: Coded[Cell | None] = given.items.target.map(lambda codes: mapped(codes, labels))
    found = Labelling(names, given.labels_from, table_names=frozenset(labels))
    if recipe.relabel:
        table = documents.table(rule.files, (rule.id_column, *rule.label_columns))
        naming = Naming({}, tuple(classes), is_of_labels=True, separator=separator)
        keys, out = given.items.members.keys, [one.key for one in given.skipped]
        found = relabelled(found, keys, (table, rule), naming, out, adds=True)
    place, used = {name: at for at, name in enumerate(classes)}, classes_in(found.names.values)
    whole = class_names({*classes, *used})
    cells: Coded[Cell | None] = found.names.map(lambda one: mapped(one, whole))
    if lost := [name for name in labels if name not in place]:
        cells = _without_classes(given, cells, lost, classes, adds=bool(recipe.relabel))
    target: Coded[Target] = cells.map(lambda one: mapped(one, place))
    if separator is not None:
        target = target.map(lambda one: tuple(sorted({*cast("tuple[int, ...]", one)})))
    old = given.rows[schema.target]
    codes = [[*one] if isinstance(one, tuple) else one for one in target]
    are_other = (one != other for one, other in zip(codes, old.to_pylist(), strict=True))
    is_new = pc.or_(given.rows["is_new"], pa.array(are_other, pa.bool_()))
    made = replace(
        given,
        items=replace(given.items, target=target),
        schema=schema.model_copy(update={"labels": tuple(classes)}),
        labels_from=found.how,
    )
    made = made.noted(found.remarks, found.rows_without_image)
    return made.with_rows(**{schema.target: pa.array(codes, old.type)}, is_new=is_new)


def _without_classes(
    given: ChangedItems,
    cells: Coded[Cell | None],
    lost: Sequence[str],
    classes: Sequence[str],
    *,
    adds: bool,
) -> Coded[Cell | None]:
    """Return the cells without the classes of `lost`; RecipeError if a record has one of them.

    Only rejected images lose a class. `adds` says whether `classes` may name only new ones.
    """
    is_written = given.rows["kind"].is_null().to_pylist()
    counts = Counter(
        name
        for cell, is_there in zip(cells, is_written, strict=True)
        if is_there
        for name in classes_in((cell,))
    )
    if used := [name for name in lost if counts[name]]:
        shown = some_of([f"{name} ({counted(counts[name], 'image')})" for name in used])
        added = [name for name in classes if name not in given.schema.labels]
        all_used = [one for one in given.schema.labels if one in classes or one in used]
        hint = f"name all classes of images: {OptionName('classes', ','.join(all_used + added))}"
        if adds and added:
            hint = f"name only new classes: {OptionName('classes', ','.join(added))}"
        raise RecipeError(OptionName("classes"), f"lacks {shown} of the dataset", hint)
    gone = {*lost}

    def left(cell: Cell | None) -> Cell | None:
        if isinstance(cell, tuple):
            return tuple(name for name in cell if name not in gone)
        return None if cell in gone else cell

    return cells.map(left)


def _with_groups(given: ChangedItems, groups: Coded[str]) -> ChangedItems:
    cells = pa.array([group or None for group in groups], pa.string())
    return replace(given, items=replace(given.items, group=groups)).with_rows(group=cells)


def _with_near(given: ChangedItems, thumbnails: Thumbnails) -> tuple[NearCopies, ChangedItems]:
    """Return the near copies (in key order, as in a build), and the items grouped by them."""
    from shardprep.image.near_pairs import near_pairs
    from shardprep.writer.plan.near_copies import NearCopies

    order = integers(pc.sort_indices(given.items.members.keys.array))
    near = NearCopies.among(given.items.take(order), near_pairs(thumbnails[order]), has_scenes=True)
    return near, _with_groups(given, near.together().group.take(np.argsort(order)))


def _with_splits(given: ChangedItems, stated: GivenSplits) -> ChangedItems:
    out = np.flatnonzero(~stated.splits.are_there).tolist()
    items = replace(given.items, split=cast("Coded[str]", stated.splits))
    made = replace(given, items=items).without(dict.fromkeys(out, _NO_SPLIT))
    return made.noted(stated.notes)


def _cut(given: ChangedItems, ratios: Mapping[str, float], seed: int) -> ChangedItems:
    from shardprep.writer.plan.source_plan import cut_items

    cut = cut_items(given.items, ratios, seed, given.schema.labels)
    splits = pa.array(list(cut.items.split), pa.string()).dictionary_encode()
    return _without_spoilers(given, cut).noted(cut.notes).with_rows(split=splits)


def _without_spoilers(given: ChangedItems, cut: Cut) -> ChangedItems:
    """Return the items with the splits of `cut`; the items that it leaves out become skipped."""
    from shardprep.writer.plan.source_plan import NO_LABEL

    left = {*cut.left_out.members.keys}
    out = [at for at, key in enumerate(given.items.members.keys) if key in left]
    return replace(given.without(dict.fromkeys(out, NO_LABEL)), items=cut.items)


def _with_columns(given: ChangedItems, recipe: Recipe, match: TableMatch | None) -> ChangedItems:
    number = len(given.items)
    columns, values = make_columns(recipe.columns, match, np.ones(number, np.bool_))
    if known := [one.name for one in columns if one.name in given.schema.features]:
        what = f"{known[0]!r} is a feature of the dataset already"
        raise RecipeError(OptionName("columns"), what, "rename the column in its table")
    schema = given.schema.with_columns({one.name: one.dtype for one in columns})
    if hidden := {*given.schema.columns, *recipe.columns}.difference(schema.columns):
        other = repr(min(hidden).removesuffix(PRESENT))
        what = f"{min(hidden)!r} is the name of the feature that says whether {other} is empty"
        raise RecipeError(OptionName("columns"), what, "rename the column in its table")
    named = dict(zip((one.name for one in columns), values, strict=True))
    rows = given.rows
    for name, column in given_columns(schema).items():
        if name in named:
            cells = given_cells(named[name], named.get(f"{name}{PRESENT}", repeat(1)))
            rows = rows.append_column(column, pa.array(cells, column.type))
    made = replace(
        given,
        items=replace(given.items, columns=(*given.items.columns, *values)),
        rows=rows,
        schema=schema,
        columns=(*given.columns, *named),
    )
    made = made.noted(column_notes(recipe.columns, match, np.ones(number, np.bool_)))
    return made.with_rows(is_new=pa.array(np.ones(number, np.bool_)))
