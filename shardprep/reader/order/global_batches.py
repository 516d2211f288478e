"""Cut the places of an epoch into global batches, and each global batch into parts for hosts.

A *place* numbers the records of an epoch from 0, in training order, for all hosts together. A
*global batch* is `size` successive places, and the last one of an epoch may be shorter. A batch of
`m` places is cut into `R` parts at ⌈r·m / R⌉ for r = 0 … R: parts differ by one place at most, the
first is the longest, and the cuts for 2R hosts include those for R hosts. For any number of hosts,
their parts together are the same global batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardprep.reader.array_types import Ints


def cut(number: int, size: int, parts: int) -> int:
    """Return the first place of part `number`, if `size` places are cut into `parts`."""
    return -(-number * size // parts)


@dataclass(frozen=True, slots=True)
class GlobalBatches:
    """The global batches of an epoch, and the part of each that one host takes.

    An *own place* is the number of a record of this host in an epoch, from 0, in reading order.
    """

    num_places: int
    """Number of places of an epoch."""
    size: int
    """Number of places of a full global batch: a multiple of `num_hosts`."""
    host: int = 0
    num_hosts: int = 1

    @property
    def num_full(self) -> int:
        return self.num_places // self.size

    @property
    def num_left(self) -> int:
        """Number of places of the incomplete global batch at the end, or 0 if all are full."""
        return self.num_places % self.size

    @property
    def host_size(self) -> int:
        """Number of places of this host in a full global batch."""
        return self.size // self.num_hosts

    def part(self, size: int) -> range:
        """Return the part of this host in a batch of `size` places, counted from its start."""
        return range(*(cut(host, size, self.num_hosts) for host in (self.host, self.host + 1)))

    def __len__(self) -> int:
        """Return the number of records that this host reads in an epoch."""
        return self.num_full * self.host_size + len(self.part(self.num_left))

    def places(self, start: int, stop: int) -> Ints:
        """Return the own places from `start` to before `stop`, converted to places."""
        own = np.arange(start, stop, dtype=np.int64)
        if self.num_hosts == 1:
            return own
        batch = np.minimum(own // self.host_size, self.num_full)
        first = np.where(
            batch < self.num_full, self.part(self.size).start, self.part(self.num_left).start
        )
        places: Ints = own + batch * (self.size - self.host_size) + first
        return places
