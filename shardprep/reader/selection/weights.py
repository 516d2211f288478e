"""Weights of classes and records: `reader.class_weights`, and epochs that are drawn by weight."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shardprep.dataset.open_dataset import OpenDataset, open_dataset
from shardprep.dataset.schema import LABEL
from shardprep.errors import DatasetError
from shardprep.reader.array_types import Floats, Ints
from shardprep.reader.order.epoch import WeightedDraws
from shardprep.reader.selection.classes import ClassColumn, class_pairs
from shardprep.reader.selection.item_rows import rows_of
from shardprep.reader.selection.split_argument import AnySplit
from shardprep.reader.selection.splits import part_range
from shardprep.reader.validators import Count, Location, short_repr, validated, validated_fields

if TYPE_CHECKING:
    from collections.abc import Sequence


@validated_fields("reader.Weights")
@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Weights by which the records of an epoch are drawn, and how; for `weights` of the readers.

    `weights="balanced"` is short for `Weights("balanced")`, and so is an array.
    """

    values: Any
    """"balanced", each class as often as another, as of `reader.load`; or float[records], in the
    order of the split without shuffling: a record of 2.0 comes twice as often as one of 1.0, one of
    0 never."""
    _: KW_ONLY
    replacement: bool = True
    """Whether a record may come again in an epoch. If not, each draw is among those left."""
    num_samples: Count | None = None
    """Records of an epoch, of all readers together. None: as many as the split has; without
    replacement, as many as have a weight above 0."""


def weighted_draws(
    where: str, weights: Any, numbers: Ints, dataset: OpenDataset, host: tuple[int, int]
) -> WeightedDraws:
    """Return the draws of one host.

    Args:
        where: name of the call, for errors.
        weights: the argument `weights` of the call.
        numbers: numbers of the records that all hosts draw from, in the order of the split.
        dataset: their dataset.
        host: number of this host, from 0, and number of hosts.

    Raises:
        DatasetError: the weights are not one for each record, or draw none or too few.

    """
    asked = weights if isinstance(weights, Weights) else Weights(weights)
    if isinstance(asked.values, str):
        if asked.values != "balanced":
            raise DatasetError(where, f"weights={asked.values!r}", "use 'balanced' or an array")
        values = _balanced(dataset, numbers)
    else:
        values = _checked(where, asked.values, len(numbers))
    can = int(np.count_nonzero(values))
    num_all = asked.num_samples or (len(numbers) if asked.replacement else can)
    if not asked.replacement and num_all > can:
        what = f"num_samples={num_all:,} of {can:,} records with a weight above 0"
        raise DatasetError(where, what, "use fewer, or replacement=True")
    if num_all < host[1]:
        what = f"{num_all} draws cannot be shared by {host[1]} readers"
        raise DatasetError(where, what, "use fewer readers")
    part = part_range(num_all, *host)
    return WeightedDraws(values, np.cumsum(values), asked.replacement, num_all, part)


@validated("reader.class_weights")
def class_weights(path: Location, split: AnySplit = "train") -> dict[int, float]:
    """Return the weight of each class by its number, for `class_weight` of `keras.Model.fit`.

    That is records / (classes × records of the class), 1.0 in the mean of the records; of records
    and classes without each other none counts, and such a class has 0.0. The item table alone is
    read.

    Raises:
        DatasetError: there is no such dataset or split, or its records have no classes.

    """
    dataset = open_dataset(path)
    labels = rows_of(dataset, split).labels
    labels = labels[labels >= 0]
    if dataset.schema.target != LABEL or not len(labels):
        hint = 'draw by weights="balanced", or weight the losses yourself'
        raise DatasetError(str(dataset), "its images have no class each", hint)
    counts = np.bincount(labels, minlength=len(dataset.schema.labels))
    used = np.count_nonzero(counts)
    found = np.divide(counts.sum(), used * counts, out=np.zeros(len(counts)), where=counts > 0)
    return dict(enumerate(found.tolist()))


def _balanced(dataset: OpenDataset, numbers: Ints) -> Floats:
    """Return weights by which each class is drawn as often as another; 0 of records without one.

    They are those of two draws: of a class, and of one of the records that have it.
    """
    column = ClassColumn.of(dataset.schema)
    table = dataset.record_rows((LABEL if column is None else column.name,))
    places, labels = class_pairs(table.column(0)).T
    times = np.bincount(numbers, minlength=len(table))
    counts = np.bincount(labels, times[places])
    if column is None or not counts.any():
        hint = "give an array of a weight for each record"
        raise DatasetError(str(dataset), "its images and objects have no classes", hint)
    share = np.divide(1.0, counts, out=np.zeros(len(counts)), where=counts > 0)
    weights: Floats = np.bincount(places, share[labels], minlength=len(table)).astype(np.float64)
    return weights[numbers]


def _checked(where: str, values: Sequence[float], num_records: int) -> Floats:
    """Return weights as an array; DatasetError where they are not one for each record."""
    try:
        found = np.array(values, np.float64)
    except (TypeError, ValueError):
        what = f"weights={short_repr(values)}"
        raise DatasetError(where, what, "use 'balanced' or an array of numbers") from None
    if found.shape != (num_records,):
        what = f"weights of shape {found.shape} for {num_records:,} records"
        raise DatasetError(where, what, "give one for each record of the split")
    if not np.isfinite(found).all() or (found < 0).any() or not found.any():
        what = "weights are below 0, infinite, NaN or all 0"
        raise DatasetError(where, what, "use numbers from 0 on")
    return found
