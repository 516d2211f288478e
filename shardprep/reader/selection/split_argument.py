"""The `split` argument of the readers: an expression, one of `even_splits`, or a `Selection`.

The options of `load` are checked before NumPy is imported. So NumPy, and `Selection`, which needs
it, are imported where record numbers are computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from shardprep.reader.selection.splits import EvenSplit, split_ranges
from shardprep.reader.validators import Kind, like, text

if TYPE_CHECKING:
    from shardprep.dataset.manifest import Manifest
    from shardprep.reader.array_types import Ints
    from shardprep.reader.selection.selection import Selection

    AnySplit: TypeAlias = str | EvenSplit | Selection
else:
    AnySplit = (
        Annotated[str, Kind(text, ("a text such as 'train[:90%]+validation'",))]
        | EvenSplit
        | Annotated[Any, like("a reader.Selection", "numbers", "fingerprint")]
    )


def is_training(split: AnySplit) -> bool:
    """Return whether a split is for training, which both readers shuffle by default."""
    if isinstance(split, str):
        return split.startswith("train")
    return (split.split if isinstance(split, EvenSplit) else split.name).startswith("train")


def numbers_of(manifest: Manifest, split: AnySplit) -> Ints:
    """Return the numbers of the records of a split, int64, in its order.

    Raises:
        DatasetError: the split does not exist, is of another dataset, or is empty.

    """
    import numpy as np

    if isinstance(split, str | EvenSplit):
        ranges = split_ranges(manifest, split)
        return np.concatenate([np.arange(one.start, one.stop, dtype=np.int64) for one in ranges])
    split.check(manifest)
    return split.numbers


def as_selection(manifest: Manifest, split: AnySplit) -> Selection:
    """Return the records of a split as a selection, each once, without their classes.

    Raises:
        DatasetError: as `numbers_of`.

    """
    import numpy as np

    from shardprep.reader.selection.selection import Selection, sorted_unique

    if not isinstance(split, str | EvenSplit):
        split.check(manifest)
        return split
    numbers = sorted_unique(numbers_of(manifest, split))
    unknown, none = np.full(len(numbers), -1), np.empty((0, 2), np.int64)
    return Selection(str(split), manifest.sha256, numbers, unknown, none)
