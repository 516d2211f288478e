"""How the places of an epoch are cut into global batches, and a global batch into parts of hosts.

A *place* numbers the records of an epoch from 0, in training order, for all hosts together. A
*global batch* is `size` successive places, and the last one of an epoch may be shorter. A batch of
`m` places is cut into `R` parts at ⌈r·m / R⌉ for r = 0 … R: parts differ by one place at most, the
first is the longest, and the cuts for 2R hosts include those for R hosts. So the batches of any
number of hosts put together are the same batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardprep.reader.array_types import Ints


def cut(number: int, size: int, parts: int) -> int:
    """Return where part `number` of `parts` begins in `size` places."""
    return -(-number * size // parts)


@dataclass(frozen=True, slots=True)
class GlobalBatches:
    """The global batches of an epoch, and the part of each that one host takes.

    The host's own places are numbered from 0, too, in the order in which it reads them.
    """

    num_places: int
    """Places of an epoch of all hosts together."""
    size: int
    """Places of a global batch: a multiple of `num_hosts`."""
    host: int = 0
    num_hosts: int = 1

    @property
    def num_full(self) -> int:
        return self.num_places // self.size

    @property
    def num_left(self) -> int:
        """Number of places of the last global batch, 0 if all are full."""
        return self.num_places % self.size

    @property
    def host_size(self) -> int:
        """Number of places of this host in a full global batch."""
        return self.size // self.num_hosts

    def part(self, size: int) -> range:
        """Return the places that this host takes of a global batch of `size`, from its start."""
        return range(*(cut(host, size, self.num_hosts) for host in (self.host, self.host + 1)))

    def __len__(self) -> int:
        """Return the number of the host's own places."""
        return self.num_full * self.host_size + len(self.part(self.num_left))

    def places(self, start: int, stop: int) -> Ints:
        """Return the places of the host's own places from `start` to before `stop`."""
        own = np.arange(start, stop, dtype=np.int64)
        if self.num_hosts == 1:
            return own
        batch = np.minimum(own // self.host_size, self.num_full)
        first = np.where(
            batch < self.num_full, self.part(self.size).start, self.part(self.num_left).start
        )
        places: Ints = own + batch * (self.size - self.host_size) + first
        return places
