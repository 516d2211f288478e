"""Advice on a call of the reader: it works, but slower or worse than it need be."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from shardprep.dataset.schema import LABEL, LABELS, TARGET, TEXT
from shardprep.reader.config import Request, warn
from shardprep.reader.selection.selection import Selection

if TYPE_CHECKING:
    from shardprep.reader.records.open import Subset


# Keras's `fit` has shuffle=True by default, and warns of each tf.data.Dataset that this is ignored,
# whoever has shuffled it already.
warnings.filterwarnings("ignore", "`shuffle=True` was passed.* as a tf.data.Dataset")

_TOO_LARGE = 4
"""Ratio of stored pixels to pixels asked for, from which another set is advised."""
_MISSING = {LABEL: "−1", LABELS: "all 0", TARGET: "NaN", TEXT: "''"}
"""Value of a target that is missing."""


def advise(subset: Subset, request: Request, *, is_cached: bool) -> None:
    """Warn of each thing that a request would do better without."""
    for line in _lines(subset, request, is_cached=is_cached):
        warn(line)


def _lines(subset: Subset, request: Request, *, is_cached: bool) -> Iterator[str]:
    schema = subset.schema
    stored, asked = schema.image_size, request.config.image_size
    if stored and asked and not is_cached and math.prod(stored) >= _TOO_LARGE * math.prod(asked):
        size = f"{asked[1]}x{asked[0]}"
        yield (
            f"images of {stored[1]}x{stored[0]} are decoded to be shrunk to {size}; build the set "
            f"with --size {size}, or cache it"
        )
    if request.config.service and request.is_shuffled and not request.repeat:
        yield "a service gives every epoch the same order; use repeat=True and steps_per_epoch"
    if not request.as_supervised or schema.target is None:
        return
    for name, num_unlabelled, num_records in _unlabelled(subset, request):
        if num_unlabelled:
            yield (
                f"{num_unlabelled:,} of {num_records:,} records of {name} have no "
                f"{schema.target} ({_MISSING[schema.target]}), which fit and evaluate count all "
                "the same; to predict, pass as_supervised=False, which yields their names as well"
            )


def _unlabelled(subset: Subset, request: Request) -> Iterator[tuple[str, int, int]]:
    """Yield each split that is read, its records without a target, and its records.

    A Selection knows its classes; "balanced" draws no record without one.
    """
    if isinstance(request.weights, str):
        return
    if isinstance(request.split, Selection) and subset.schema.target == LABEL:
        yield request.split.name, int((request.split.labels < 0).sum()), len(request.split)
        return
    names = {shard.name for shard in subset.records.shards}
    for name, split in subset.manifest.splits.items():
        if any(one.name in names for one in split.shards):
            yield name, split.num_unlabelled, split.num_records
