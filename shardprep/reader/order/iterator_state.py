"""State of an iterator: a few numbers, and an identity of the batches that they count.

Both readers have one order, so each can load a state of the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from shardprep.errors import DatasetError
from shardprep.reader.order.order import Order
from shardprep.reader.validators import Arguments, Number, Seed, short_repr, whole

_PARTS = ("records", "batch_size", "drop_remainder", "num_batches", "shuffle", "reshuffle")
"""Names of the parts of an `identity`, for errors."""
_HINT = "load it with the dataset, the split and the options it was saved with"
_NO_STATE = "use the result of state_dict()"


class Batching(NamedTuple):
    """How an epoch is divided into batches."""

    batch_size: int
    drop_remainder: bool
    window: int | None
    """Number of records of the window of `shuffle=N`, None if `Order` is the order."""
    num_batches: int
    """Number of batches of an epoch."""


class State(NamedTuple):
    """A position between two batches."""

    seed: Seed
    epoch: Annotated[int, whole(0, bits=31)]
    batch: Number
    """Number of batches of the epoch before the position."""
    of: str
    """`identity` of the batches."""


def identity(records_digest: str, order: Order, batching: Batching) -> str:
    """Return the values that decide the batches of an epoch, except the seed, as `_PARTS`.

    `records_digest` is `Records.digest`.
    """
    values = (
        records_digest, batching.batch_size, batching.drop_remainder, batching.num_batches,
        batching.window or order.within_epoch.description, order.reshuffle,
    )  # fmt: skip
    return " ".join(map(str, values))


def check_state(where: str, state: object, of: str, batching: Batching) -> State:
    """Return the argument of `load_state_dict`, checked against the iterator's identity `of`.

    Raises:
        DatasetError: the state is malformed, or is of other batches; `where` is the call.

    """
    if not isinstance(state, Mapping):
        raise DatasetError(where, f"state={short_repr(state)}", _NO_STATE)
    missing = [name for name in State._fields if name not in state]
    if missing:
        raise DatasetError(where, f"the state has no {', '.join(map(repr, missing))}", _NO_STATE)
    fields = {name: state[name] for name in State._fields}
    saved = State(**Arguments(where, State).converted(fields))
    if saved.of != of:
        pairs = zip(_PARTS, saved.of.split(" "), of.split(" "), strict=False)
        other = [f"{name}={value}" for name, value, own in pairs if value != own]
        what = f"the state is of other batches: {', '.join(other)}"
        raise DatasetError(where, what, _HINT)
    if saved.batch > batching.num_batches:
        what = f"batch={saved.batch} of an epoch of {batching.num_batches}"
        raise DatasetError(where, what, _HINT)
    return saved
