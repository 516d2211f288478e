"""`reader.folds`: cross-validation with evenly distributed classes and undivided groups.

`distribute` and `distribute_pairs` are greedy. They first put each group, the largest first, in the
fold with the fewest records of the group's classes. Then single records even out the folds. Random
numbers from the seed decide ties, so the result is the same on any machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset.open_dataset import open_dataset
from shardprep.dataset.schema import LABEL
from shardprep.errors import DatasetError, counted
from shardprep.image.near_pairs import joined
from shardprep.reader.array_types import Ints
from shardprep.reader.order.permutation import key_of, random_numbers
from shardprep.reader.selection.query import (
    OBJECT_CLASSES,
    ClassColumn,
    ItemRows,
    class_pairs,
    rows_of,
)
from shardprep.reader.selection.selection import Selection, sorted_unique
from shardprep.reader.selection.split_argument import AnySplit, numbers_of
from shardprep.reader.validators import Kind, Location, Seed, short_repr, validated, whole

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


@validated(_WHERE)
def folds(
    path: Location,
    k: Folds,
    *,
    split: AnySplit = "train",
    seed: Seed = 0,
    by: str | None = LABEL,
    group: Groups = True,
) -> list[tuple[Selection, Selection]]:
    """Return `k` pairs (train, validation); each record is in exactly one validation part.

    As far as groups allow, folds have equal numbers of records of each class, and of all records.
    A record with several classes, or with objects of several classes, counts for each of them;
    classes are then distributed from the rarest to the most frequent one. The same arguments give
    the same folds on any machine. Records are not read, only their rows in the item table. By
    default, readers shuffle the train parts, but not the validation parts.

    Args:
        path: as in `reader.load`.
        k: number of folds, from 2.
        split: as in `reader.load`; "train+validation" divides both splits together.
        seed: any whole number.
        by: "label" distributes the classes of images evenly, or classes of objects if images have
            no classes. A column of `items.parquet` distributes its values: "labels" combinations of
            classes, "object_labels" each class of the objects. None divides records at random.
        group: True keeps images together in one fold if they are in one group of the build
            (`--group`) or were made from equal files. False divides records singly. A list with a
            value for each item of `reader.Dataset(path, split)`, in this order, keeps records with
            equal values together; None is a group of its own. A record that is in the split twice
            joins both of its groups.

    Raises:
        DatasetError: the dataset, split or column does not exist, `group` does not fit the split,
            or there are fewer groups than folds.
    """
    dataset = open_dataset(path)
    columns = [] if by is None else [by]
    column = ClassColumn.of(dataset.schema)
    if by == LABEL and column is None:
        what = "by='label', but its images and objects have no classes"
        raise DatasetError(str(dataset), what, "use by=None or a column")
    rows = rows_of(dataset, split, [*columns, *((_GROUP, _ORIGINAL) if group is True else ())])
    num_records = len(rows.numbers)
    groups = _groups(rows, split, group)
    num_groups = len(sorted_unique(groups))
    if num_groups < k:
        what = f"k={k}, but only {counted(num_groups, 'group')} ({counted(num_records, 'record')})"
        hint = "use fewer folds, or group=False" if k <= num_records else "use fewer folds"
        raise DatasetError(_WHERE, what, hint)
    key = key_of(seed)
    several = column.name if by == LABEL and column is not None and column.is_list else None
    if several or by == OBJECT_CLASSES:
        pairs = class_pairs(rows.table[several or OBJECT_CLASSES])
        fold_of = distribute_pairs(pairs, groups, k, key)
    else:
        classes = np.zeros(num_records, np.int64) if by is None else _codes(rows.table, by)
        fold_of = distribute(classes, groups, k, key)
    every = rows.selection()
    return [
        (
            every.at(fold_of != fold, f"training {fold + 1} of {k}: {rows.split}"),
            every.at(fold_of == fold, f"validation {fold + 1} of {k}: {rows.split}"),
        )
        for fold in range(k)
    ]


def distribute(classes: Ints, groups: Ints, k: int, key: int) -> Ints:
    """Return the fold of each record, int64[records] from 0 to k − 1; `key` decides ties."""
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
        span = slice(bounds[group], bounds[group + 1])
        own, size = pair_classes[span], size_of[group]
        filled = counts[:, own] @ cost[span] + sizes * (size / len(classes) ** 2)
        fold = int(np.argmin(filled + tie / len(classes)))
        fold_of_group[group] = fold
        counts[fold, own] += pair_counts[span]
        sizes[fold] += size
    singles = np.flatnonzero(size_of[group_of] == 1)
    singles = singles[np.lexsort((random[singles], classes[singles]))]
    fold_of = fold_of_group[group_of]
    begin = 0
    for number, count in enumerate(np.bincount(classes[singles], minlength=len(number_of))):
        if not count:
            continue
        added = _level(counts[:, number], int(count), sizes + tie)
        fold_of[singles[begin : begin + count]] = np.repeat(np.arange(k), added)
        sizes += added
        begin += count
    return fold_of


def distribute_pairs(pairs: Ints, groups: Ints, k: int, key: int) -> Ints:
    """Return the fold of each record, like `distribute`, for records with any number of classes.

    `pairs` are int64[pairs, 2]: index of a record in `groups`, and one of its classes.
    """
    # Single records are placed class by class, starting with the class that has the fewest of them
    # left: each in the fold with the fewest records of that class, then with the fewest of its
    # other classes (after Sechidis, Tsoumakas and Vlahavas, "On the Stratification of Multi-label
    # Data", 2011).
    group_of, size_of = np.unique(groups, return_inverse=True, return_counts=True)[1:]
    num_groups, num_classes = len(size_of), int(pairs[:, 1].max(initial=-1)) + 2
    # Groups without a class get an additional class, the last one.
    alone = np.setdiff1d(np.arange(num_groups), group_of[pairs[:, 0]])
    members = np.append(
        group_of[pairs[:, 0]] * num_classes + pairs[:, 1], alone * num_classes + num_classes - 1
    )
    codes, number = np.unique(members, return_counts=True)
    group, label = np.divmod(codes, num_classes)
    bounds = np.searchsorted(group, np.arange(num_groups + 1))
    total = np.bincount(label, number, minlength=num_classes)
    cost = number / total[label] ** 2
    counts, sizes = np.zeros((k, num_classes)), np.zeros(k)
    random = random_numbers(key, 0, num_groups)
    tie = random_numbers(key, num_groups, num_groups + k)
    fold_of_group = np.full(num_groups, -1)

    def place(index: int, first: Any) -> None:
        own = slice(bounds[index], bounds[index + 1])
        filled = counts[:, label[own]] @ cost[own] + sizes * (size_of[index] / len(groups) ** 2)
        fold = fold_of_group[index] = np.lexsort((tie, filled, first))[0]
        counts[fold, label[own]] += number[own]
        sizes[fold] += size_of[index]

    several = np.flatnonzero(size_of > 1)
    for one in several[np.lexsort((random[several], -size_of[several]))].tolist():
        place(one, np.zeros(k))
    single = size_of[group] == 1
    in_turn = np.flatnonzero(single)[np.lexsort((random[group[single]], label[single]))]
    starts = np.searchsorted(label[in_turn], np.arange(num_classes + 1))
    left = np.bincount(label[single], minlength=num_classes)
    while left.any():
        # Records without a class come last, and fill the smallest folds.
        of_classes = np.where(left > 0, left, np.inf)[:-1]
        rarest = int(np.argmin(of_classes)) if left[:-1].any() else num_classes - 1
        for one in group[in_turn[starts[rarest] : starts[rarest + 1]]].tolist():
            if fold_of_group[one] < 0:
                place(one, sizes if rarest == num_classes - 1 else counts[:, rarest])
                left[label[bounds[one] : bounds[one + 1]]] -= 1
    return fold_of_group[group_of]


def _level(filled: Any, number: int, sizes: Any) -> Any:
    """Return how many of `number` new records each fold gets, to level the emptiest folds.

    `filled` has the number of records of each fold so far. If the new records do not divide evenly,
    the folds with the smallest `sizes` get one more.
    """
    order = np.argsort(filled, kind="stable")
    low = filled[order]
    needed = low * np.arange(1, len(low) + 1) - np.cumsum(low)
    width = int(np.searchsorted(needed, number, side="right"))  # number of folds that rise
    level, left = divmod(number + int(low[:width].sum()), width)
    added = np.zeros(len(low), np.int64)
    rising = order[:width]
    added[rising] = level - filled[rising].astype(np.int64)
    at_level = np.flatnonzero(filled + added == level)
    added[at_level[np.argsort(sizes[at_level], kind="stable")[:left]]] += 1
    return added


def _codes(table: pa.Table, name: str) -> Ints:
    """Return int64[rows]: a number from 1 for each distinct value of a column, 0 for null."""
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
    numbers: Ints = codes.indices.fill_null(-1).to_numpy().astype(np.int64) + 1
    return numbers


def _groups(rows: ItemRows, split: AnySplit, group: Any) -> Ints:
    if group is False:
        return np.arange(len(rows.numbers))
    if group is True:
        return _joined(_codes(rows.table, _GROUP), _codes(rows.table, _ORIGINAL))
    numbers = numbers_of(rows.dataset.manifest, split)  # in the order of the split, unlike `rows`
    if len(group) != len(numbers):
        what = f"group has {counted(len(group), 'value')} for {counted(len(numbers), 'record')}"
        raise DatasetError(_WHERE, what, "give one value for each record of the split")
    try:
        codes = _numbered(pa.chunked_array([pa.array(group)]))
    except (pa.ArrowException, TypeError, ValueError):
        what = f"group={short_repr(group)} is not a list of numbers or of texts"
        raise DatasetError(_WHERE, what, "give a number, a text or None for each record") from None
    first = np.unique(numbers, return_index=True)[1]
    return _joined(codes, numbers + 1)[first]


def _joined(*columns: Ints) -> Ints:
    """Return the group of each row, int64[rows]. Rows with equal numbers in a column share a group.

    Groups that share a row are joined. Zeros do not count as equal.
    """
    pairs = []
    for one in columns:
        rows, first = np.flatnonzero(one), np.zeros(one.max(initial=0) + 1, np.int64)
        first[one[rows[::-1]]] = rows[::-1]  # the last assignment counts
        pairs.append(np.stack([first[one[rows]], rows], axis=1))
    return joined(np.arange(len(columns[0])), np.concatenate(pairs))
