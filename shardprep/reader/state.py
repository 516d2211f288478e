"""The state of an iterator of either reader: a few numbers, and what they are of.

Both readers have one order, so a state of one is taken by the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shardprep.errors import DatasetError
from shardprep.reader.arguments import checked_state

if TYPE_CHECKING:
    from shardprep.reader.order import Order
    from shardprep.reader.records import Records

_PARTS = ("records", "batch_size", "drop_remainder", "num_batches", "shuffle", "reshuffle")
"""Names of the values in an `identity`, for errors."""
_HINT = "load it with the dataset, the split and the options it was saved with"


class Batching(NamedTuple):
    """How an epoch is cut into batches."""

    batch_size: int
    """Records of a batch."""
    drop_remainder: bool
    window: int | None
    """Records of the window of `shuffle=N`, None where `Order` says it all."""
    num_batches: int
    """Batches of an epoch."""


class State(NamedTuple):
    """A place between two batches."""

    seed: int
    epoch: int
    batch: int
    """Batches of the epoch before the place."""


def identity(records: Records, order: Order, batching: Batching) -> str:
    """Return the values that the batches follow from, but for the seed, in the order of `_PARTS`.

    `shuffle` is False, the records of a window, or blocks of a group x records of a block.
    """
    shuffle: Any = False
    if order.shuffle:
        shuffle = batching.window or f"{order.group_width}x{order.block_length}"
    values = (
        records.digest, batching.batch_size, batching.drop_remainder, batching.num_batches,
        shuffle, order.reshuffle,
    )  # fmt: skip
    return " ".join(map(str, values))


def checked(where: str, state: object, of: str, batching: Batching) -> State:
    """Return the place that a state says.

    Args:
        where: the call, for errors.
        state: what `load_state_dict` is given.
        of: the iterator's own `identity`.
        batching: the iterator's own.

    Raises:
        DatasetError: it is no state, or one of other records, order or batches.

    """
    given: dict[str, Any] = checked_state(where, state)
    if given["of"] != of:
        pairs = zip(_PARTS, given["of"].split(" "), of.split(" "), strict=False)
        other = [f"{name}={value}" for name, value, own in pairs if value != own]
        what = f"the state is of other batches: {', '.join(other)}"
        raise DatasetError(where, what, _HINT)
    if given["batch"] > batching.num_batches:
        what = f"batch={given['batch']} of an epoch of {batching.num_batches}"
        raise DatasetError(where, what, _HINT)
    return State(given["seed"], given["epoch"], given["batch"])
