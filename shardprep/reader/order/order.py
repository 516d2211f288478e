"""The order of records in all epochs: the one function that both readers ask.

`Order.batch` and `Order.positions` follow from the records, the order within an epoch (blocks,
weights or buckets, with the host's share), the seed and the epoch alone. Neither threads, caches
nor the framework have a say, so a state saved by one reader can be resumed by the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardprep.reader.array_types import Ints
from shardprep.reader.order.epoch import BlockShuffle, EpochOrder, Size
from shardprep.reader.order.permutation import key_of, mix


@dataclass(frozen=True, slots=True)
class Order:
    """The order of one host's records in every epoch."""

    within_epoch: EpochOrder
    seed: int
    reshuffle: bool = True
    """Whether epochs differ in their order."""

    def __len__(self) -> int:
        """Return the number of records that an epoch reads."""
        return len(self.within_epoch)

    @property
    def key(self) -> int:
        """The key of the seed."""
        return key_of(self.seed)

    @property
    def blocks(self) -> BlockShuffle | None:
        """The blocks that are read together, None for draws and buckets."""
        within = self.within_epoch
        return within if isinstance(within, BlockShuffle) else None

    def epoch_key(self, epoch: Any) -> Any:
        """Return the key of an epoch."""
        return mix(self.key, epoch if self.reshuffle else 0)

    def positions(self, epoch: int, start: int, stop: int) -> Ints:
        """Return the positions at the places from `start` to before `stop` of an epoch."""
        return self.within_epoch.positions(self.epoch_key(epoch), start, stop)

    def batch(self, epoch: int, number: int, size: int) -> tuple[Ints, Size | None]:
        """Return the positions of a batch of an epoch, and the size its images are resized to.

        The size is None if images are not resized.
        """
        return self.within_epoch.batch(self.epoch_key(epoch), number, size)

    def tags(self, epoch: int, start: int, positions: Ints) -> Ints:
        """Return int64 numbers that name records of an epoch, given those at places from `start`.

        A tag is epoch × records + position, or draw × records + position if a record may be drawn
        more than once. Tag modulo records is the position. Random crops and augmentations depend
        on tags.
        """
        return self.within_epoch.tags(epoch, start, positions)
