"""The state of an iterator of either reader: a few numbers, and what they are of.

Both readers have one order, so a state of one is taken by the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from shardprep.errors import DatasetError
from shardprep.reader.order.order import Order
from shardprep.reader.validators import Arguments, Number, Seed, short_repr, whole

_PARTS = ("records", "batch_size", "drop_remainder", "num_batches", "shuffle", "reshuffle")
"""Names of the values in an `identity`, for errors."""
_HINT = "load it with the dataset, the split and the options it was saved with"
_NO_STATE = "use what state_dict() has returned"


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
    """A place between two batches, and the batches that it is a place of."""

    seed: Seed
    epoch: Annotated[int, whole(0, bits=31)]
    batch: Number
    """Batches of the epoch before the place."""
    of: str
    """The `identity` of the batches."""


def identity(records_digest: str, order: Order, batching: Batching) -> str:
    """Return the values that the batches follow from, except the seed, in the order of `_PARTS`.

    `records_digest` is `Records.digest`. `shuffle` is False, the records of a window, blocks of a
    group x records of a block, or a hash of the weights or the buckets.
    """
    values = (
        records_digest, batching.batch_size, batching.drop_remainder, batching.num_batches,
        batching.window or order.within_epoch.description, order.reshuffle,
    )  # fmt: skip
    return " ".join(map(str, values))


def checked(where: str, state: object, of: str, batching: Batching) -> State:
    """Return the place that a state says, where it is one of these batches.

    Args:
        where: the call, for errors.
        state: the argument of `load_state_dict`.
        of: the `identity` of the iterator.
        batching: the batches of the iterator.

    """
    if not isinstance(state, Mapping):
        raise DatasetError(where, f"state={short_repr(state)}", _NO_STATE)
    missing = [name for name in State._fields if name not in state]
    if missing:
        raise DatasetError(where, f"the state has no {', '.join(map(repr, missing))}", _NO_STATE)
    given = Arguments(where, State).checked({name: state[name] for name in State._fields})
    place = State(**given)
    if place.of != of:
        pairs = zip(_PARTS, place.of.split(" "), of.split(" "), strict=False)
        other = [f"{name}={value}" for name, value, own in pairs if value != own]
        what = f"the state is of other batches: {', '.join(other)}"
        raise DatasetError(where, what, _HINT)
    if place.batch > batching.num_batches:
        what = f"batch={place.batch} of an epoch of {batching.num_batches}"
        raise DatasetError(where, what, _HINT)
    return place
