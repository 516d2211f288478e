"""The order of records in all epochs: the one function that both readers ask.

`Order.batch` and `Order.positions` follow from the records, the order within an epoch (blocks,
weights or buckets, with the host's share), the seed and the epoch alone. Neither threads, caches
nor the framework have a say, so a state saved by one reader can be resumed by the other. A state is
a few numbers, and an identity of the batches that they count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from shardprep.errors import DatasetError
from shardprep.reader.array_types import Ints
from shardprep.reader.order.epoch import BlockShuffle, EpochOrder, Size
from shardprep.reader.order.permutation import key_of, mix
from shardprep.reader.validators import Arguments, Number, Seed, short_repr, whole

_PARTS = ("records", "batch_size", "drop_remainder", "num_batches", "shuffle", "reshuffle")
"""Names of the parts of an `identity`, for errors."""
_HINT = "load it with the dataset, the split and the options it was saved with"
_NO_STATE = "use the result of state_dict()"


@dataclass(frozen=True, slots=True)
class Order:
    """The order of one host's records in every epoch."""

    within_epoch: EpochOrder
    seed: int
    reshuffle: bool = True

    def __len__(self) -> int:
        return len(self.within_epoch)

    @property
    def key(self) -> int:
        return key_of(self.seed)

    @property
    def blocks(self) -> BlockShuffle | None:
        """The blocks that are read together, None for draws and buckets."""
        within = self.within_epoch
        return within if isinstance(within, BlockShuffle) else None

    def epoch_key(self, epoch: Any) -> Any:
        return mix(self.key, epoch if self.reshuffle else 0)

    def positions(self, epoch: int, start: int, stop: int) -> Ints:
        return self.within_epoch.positions(self.epoch_key(epoch), start, stop)

    def batch(self, epoch: int, number: int, size: int) -> tuple[Ints, Size | None]:
        """Return the positions of a batch, and the size its images are resized to, or None."""
        return self.within_epoch.batch(self.epoch_key(epoch), number, size)

    def tags(self, epoch: int, start: int, positions: Ints) -> Ints:
        """Return int64 numbers that name records of an epoch, given those at places from `start`.

        A tag is epoch × records + position, or draw × records + position if a record may be drawn
        more than once. Tag modulo records is the position. Random crops and augmentations depend
        on tags.
        """
        return self.within_epoch.tags(epoch, start, positions)


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
    """Return the values that decide the batches of an epoch, except the seed, as `_PARTS`."""
    values = (
        records_digest, batching.batch_size, batching.drop_remainder, batching.num_batches,
        batching.window or order.within_epoch.description, order.reshuffle,
    )  # fmt: skip
    return " ".join(map(str, values))


def check_state(where: str, state: object, of: str, batching: Batching) -> State:
    """Return the argument of `load_state_dict`, checked against the iterator's identity `of`.

    DatasetError if the state is malformed, or is of other batches; `where` is the call.
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
