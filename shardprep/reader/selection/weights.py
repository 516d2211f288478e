"""Weights of classes and records: `reader.class_weights`, and the option `weights` of readers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from shardprep.dataset.open_dataset import OpenDataset, open_dataset
from shardprep.dataset.schema import LABEL
from shardprep.errors import DatasetError
from shardprep.reader.array_types import Floats, Ints
from shardprep.reader.order.epoch import WeightedDraws
from shardprep.reader.selection.query import ClassColumn, class_pairs, rows_of
from shardprep.reader.selection.split_argument import AnySplit
from shardprep.reader.validators import Count, Location, short_repr, validated, validated_fields


@validated_fields("reader.Weights")
@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """How to draw the records of an epoch by weight, for the option `weights` of the readers.

    `weights=values` is short for `weights=Weights(values)`.
    """

    values: Any
    """"balanced" draws each class equally often, as in `reader.load`. Or float[records]: the weight
    of each record, in the order of the split without shuffling. With replacement, a record with 2.0
    is drawn twice as often as a record with 1.0. A record with 0 is never drawn."""
    _: KW_ONLY
    replacement: bool = True
    """Whether a record may be drawn several times in an epoch."""
    num_samples: Count | None = None
    """Number of draws of an epoch, for all hosts together. None: the number of records of the
    split, or without replacement the number of its records with a weight above 0."""


def weighted_draws(where: str, weights: Any, numbers: Ints, dataset: OpenDataset) -> WeightedDraws:
    """Return the draws of an epoch from the records with these numbers, by their weights.

    `numbers` and an array of weights are in the order of the split. `where` names the call in
    errors. DatasetError if weights are not allowed, or too few are above 0.
    """
    asked = weights if isinstance(weights, Weights) else Weights(weights)
    if isinstance(asked.values, str):
        if asked.values != "balanced":
            raise DatasetError(where, f"weights={asked.values!r}", "use 'balanced' or an array")
        values = _balanced(dataset, numbers)
    else:
        values = _checked(where, asked.values, len(numbers))
    num_positive = int(np.count_nonzero(values))
    num_all = asked.num_samples or (len(numbers) if asked.replacement else num_positive)
    if not asked.replacement and num_all > num_positive:
        what = f"num_samples={num_all:,}, but {num_positive:,} records have a weight above 0"
        raise DatasetError(where, what, "use fewer, or replacement=True")
    return WeightedDraws(values, np.cumsum(values), asked.replacement, num_all)


@validated("reader.class_weights")
def class_weights(path: Location, split: AnySplit = "train") -> dict[int, float]:
    """Return the weight of each class number, for `class_weight` of `keras.Model.fit`.

    The weight is records / (classes × records of the class), so its mean over the records is 1.0.
    Records without a class, and classes without records, are not counted. A class without records
    has weight 0.0. Records are not read, only their rows in the item table.

    Raises:
        DatasetError: the dataset or split does not exist, or its records have no classes.
    """
    dataset = open_dataset(path)
    labels = rows_of(dataset, split).labels
    labels = labels[labels >= 0]
    if dataset.schema.target != LABEL or not len(labels):
        hint = 'draw by weights="balanced", or weight the losses yourself'
        raise DatasetError(str(dataset), "its images do not have one class each", hint)
    counts = np.bincount(labels, minlength=len(dataset.schema.labels))
    used = np.count_nonzero(counts)
    weights = np.divide(counts.sum(), used * counts, out=np.zeros(len(counts)), where=counts > 0)
    return dict(enumerate(weights.tolist()))


def _balanced(dataset: OpenDataset, numbers: Ints) -> Floats:
    # Proportional to the probability of a record if a class is drawn first, then one of its
    # records. 0 for a record without a class.
    column = ClassColumn.of(dataset.schema)
    table = dataset.record_rows((LABEL if column is None else column.name,))
    rows, labels = class_pairs(table.column(0)).T
    times = np.bincount(numbers, minlength=len(table))
    counts = np.bincount(labels, times[rows])
    if column is None or not counts.any():
        hint = "give an array of a weight for each record"
        raise DatasetError(str(dataset), "its images and objects have no classes", hint)
    share = np.divide(1.0, counts, out=np.zeros(len(counts)), where=counts > 0)
    weights: Floats = np.bincount(rows, share[labels], minlength=len(table)).astype(np.float64)
    return weights[numbers]


def _checked(where: str, values: Sequence[float], num_records: int) -> Floats:
    try:
        weights = np.array(values, np.float64)
    except (TypeError, ValueError):
        what = f"weights={short_repr(values)}"
        raise DatasetError(where, what, "use 'balanced' or an array of numbers") from None
    if weights.shape != (num_records,):
        what = f"weights have the shape {weights.shape}, not ({num_records},)"
        raise DatasetError(where, what, "give one weight for each record of the split")
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        what = "weights are below 0, infinite, NaN or all 0"
        raise DatasetError(where, what, "use numbers from 0 on")
    return weights
