"""`reader.folds`: a split in equal parts for cross-validation; classes shared out, groups whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset.schema import LABEL
from shardprep.errors import DatasetError
from shardprep.reader.argument_kinds import Kind, Location, Seed, whole
from shardprep.reader.arguments import checking, shown
from shardprep.reader.item_rows import Items
from shardprep.reader.order import key_of, random_numbers
from shardprep.reader.selection import numbers_of, rising
from shardprep.reader.splits import AnySplit  # noqa: TC001 - checked by it

if TYPE_CHECKING:
    from shardprep.reader.item_rows import ItemRows
    from shardprep.reader.order import Ints
    from shardprep.reader.selection import Selection

_WHERE = "reader.folds"
_GROUP, _ORIGINAL = "group", "original_sha256"


def _group(value: Any) -> Any:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, np.ndarray)):
        raise TypeError
    return value


Folds = Annotated[int, whole(2)]
Groups = Annotated[Any, Kind(_group, ("True", "False", "a list with the group of each record"))]


@checking(_WHERE)
def folds(
    path: Location,
    k: Folds,
    *,
    split: AnySplit = "train",
    seed: Seed = 0,
    by: str | None = LABEL,
    group: Groups = True,
) -> list[tuple[Selection, Selection]]:
    """Return `k` pairs (train, validation): each record is in the validation of one of them.

    The records of each class are shared out evenly, to the record where no group prevents it; so
    is the number of records. The same arguments give the same folds on any machine. Nothing but
    the item table is read. A train part is shuffled by default, a validation part is not.

    Args:
        path: as of `reader.load`.
        k: number of folds, from 2 on.
        split: as of `reader.load`; "train+validation" folds both.
        seed: any whole number.
        by: column of `items.parquet` whose values are shared out evenly; of "labels", the
            combinations of classes. None: at random.
        group: True keeps the images of one group of the build (`--group`) in one fold, and those
            made of equal files. False parts them as well. A list keeps records with equal values
            together, one for each item of `reader.Dataset(path, split)`, in its order. None is a
            group of its own. A record that the split has twice joins its two groups.

    Raises:
        DatasetError: there is no such dataset, split or column, or fewer groups than folds.

    """
    items = Items.at(path)
    asked = [] if by is None else [by]
    if by == LABEL and items.schema.target != LABEL:
        kinds = f"its images have {items.schema.target or 'no target'}"
        raise DatasetError(items.where, f"by='label', and {kinds}", "use by=None or a column")
    rows = items.rows(split, [*asked, *((_GROUP, _ORIGINAL) if group is True else ())])
    num_records = len(rows.numbers)
    classes = np.zeros(num_records, np.int64) if by is None else _codes(rows.table, by)
    groups = _groups(rows, split, group)
    num_groups = len(rising(groups))
    if num_groups < k:
        what = f"k={k} of {num_groups:,} groups, {num_records:,} records"
        raise DatasetError(_WHERE, what, "use fewer folds")
    fold_of = shared_out(classes, groups, k, key_of(seed))
    return [
        (
            rows.selection(fold_of != fold, f"training {fold + 1} of {k}: {rows.split}"),
            rows.selection(fold_of == fold, f"validation {fold + 1} of {k}: {rows.split}"),
        )
        for fold in range(k)
    ]


def shared_out(classes: Ints, groups: Ints, k: int, key: int) -> Ints:
    """Return the fold of each record, int64[records], 0 to k − 1.

    The largest groups come first, each to the fold in which its classes are rarest so far; single
    records then fill what lacks, class by class.

    Args:
        classes: int64[records], number of the class of each, from 0.
        groups: likewise of its group.
        k: number of folds.
        key: decides between what is otherwise equal.

    """
    random = random_numbers(key, 0, len(classes))
    number_of = np.bincount(classes)
    counts = np.zeros((k, len(number_of)))
    group_of, size_of = np.unique(groups, return_inverse=True, return_counts=True)[1:]
    fold_of_group = np.full(len(size_of), -1)
    pairs, pair_counts = np.unique(group_of * len(number_of) + classes, return_counts=True)
    bounds = np.searchsorted(pairs, np.arange(len(size_of) + 1) * len(number_of))
    pair_classes = pairs % len(number_of)
    first = np.unique(group_of, return_index=True)[1]
    several = np.flatnonzero(size_of > 1)
    several = several[np.lexsort((random[first[several]], -size_of[several]))]
    cost = pair_counts / number_of[pair_classes] ** 2.0
    sizes = np.zeros(k)
    tie = np.argsort(random_numbers(key, len(classes), len(classes) + k)) * 1e-9
    for group in several.tolist():
        found = slice(bounds[group], bounds[group + 1])
        own, size = pair_classes[found], size_of[group]
        filled = counts[:, own] @ cost[found] + sizes * (size / len(classes) ** 2)
        fold = int(np.argmin(filled + tie / len(classes)))
        fold_of_group[group] = fold
        counts[fold, own] += pair_counts[found]
        sizes[fold] += size
    singles = np.flatnonzero(size_of[group_of] == 1)
    singles = singles[np.lexsort((random[singles], classes[singles]))]
    fold_of = fold_of_group[group_of]
    begin = 0
    for number, count in enumerate(np.bincount(classes[singles], minlength=len(number_of))):
        if not count:
            continue
        added = _levelled(counts[:, number], int(count), sizes + tie)
        fold_of[singles[begin : begin + count]] = np.repeat(np.arange(k), added)
        sizes += added
        begin += count
    return fold_of


def _levelled(filled: Any, number: int, sizes: Any) -> Any:
    """Return how many of a number of records each fold gets, so that the lowest rise to one level.

    What is left over goes to those with the smallest sizes.
    """
    order = np.argsort(filled, kind="stable")
    low = filled[order]
    needed = low * np.arange(1, len(low) + 1) - np.cumsum(low)
    width = int(np.searchsorted(needed, number, side="right"))  # folds that rise
    level, left = divmod(number + int(low[:width].sum()), width)
    added = np.zeros(len(low), np.int64)
    rising = order[:width]
    added[rising] = level - filled[rising].astype(np.int64)
    at_level = np.flatnonzero(filled + added == level)
    added[at_level[np.argsort(sizes[at_level], kind="stable")[:left]]] += 1
    return added


def _codes(table: pa.Table, name: str) -> Ints:
    """Return numbers from 1 that tell the values of a column apart, 0 for null."""
    column = table[name]
    if pa.types.is_list(column.type):
        column = pc.binary_join(column.cast(pa.list_(pa.string())), ",")
    try:
        return _numbered(column)
    except pa.ArrowException:
        what = f"by={name!r} has values of type {column.type}"
        raise DatasetError(_WHERE, what, "use a column of numbers or texts") from None


def _numbered(values: pa.ChunkedArray) -> Ints:
    codes = values.dictionary_encode().unify_dictionaries().combine_chunks()
    found: Ints = codes.indices.fill_null(-1).to_numpy().astype(np.int64) + 1
    return found


def _groups(rows: ItemRows, split: AnySplit, group: Any) -> Ints:
    """Return a number for each row, equal for those that are to stay together."""
    if group is False:
        return np.arange(len(rows.numbers))
    if group is True:
        return _joined(_codes(rows.table, _GROUP), _codes(rows.table, _ORIGINAL))
    numbers = numbers_of(rows.dataset.manifest, split)  # in the order of the split, rows are not
    if len(group) != len(numbers):
        what = f"group has {len(group):,} values of {len(numbers):,} records"
        raise DatasetError(_WHERE, what, "give one for each record of the split")
    try:
        codes = _numbered(pa.chunked_array([pa.array(group)]))
    except (pa.ArrowException, TypeError, ValueError):
        what = f"group={shown(group)} is not a list of numbers or of texts"
        raise DatasetError(_WHERE, what, "give one of them, or None, for each record") from None
    first = np.unique(numbers, return_index=True)[1]
    return _joined(codes, numbers + 1)[first]


def _joined(*columns: Ints) -> Ints:
    """Return a number for each row, equal where a column has the same number; 0 joins nothing.

    A value of one column that occurs with two values of another joins those, and so on.
    """
    alone = np.arange(len(columns[0]))
    codes = [
        np.unique(np.where(one > 0, one, one.max(initial=0) + 1 + alone), return_inverse=True)[1]
        for one in columns
    ]
    groups: Ints = alone
    while True:
        before = groups
        for one in (*codes, before):
            lowest = np.full(len(alone), len(alone))
            np.minimum.at(lowest, one, groups)
            groups = lowest[one]
        if np.array_equal(groups, before):
            return groups
