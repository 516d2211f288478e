"""The shuffle of a plan: an order by a hash of each key, so that no other key has an influence."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from shardprep.source.string_column import Texts

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HASH_BYTES = 16
_AT_ONCE = 1 << 16
"""Number of keys that are objects while they are hashed."""


def shuffled(keys: Texts, seed: int, purpose: bytes) -> NDArray[np.int64]:
    """Return the places of keys in the order of a shuffle, int64[keys].

    Shuffles of one seed that are for another purpose have nothing to do with each other.
    """
    begun = hashlib.blake2b(digest_size=_HASH_BYTES, key=b"%s %d" % (purpose, seed))
    hashes = np.empty((len(keys), 2), ">u8")
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        digests = []
        for key in some.encoded():
            own = begun.copy()
            own.update(key)
            digests.append(own.digest())
        found = np.frombuffer(b"".join(digests), ">u8").reshape(-1, 2)
        hashes[start : start + len(some)] = found
    high = hashes[:, 0].astype(np.uint64)
    order = np.argsort(high)
    if (high[order[1:]] == high[order[:-1]]).any():
        order = np.lexsort((hashes[:, 1].astype(np.uint64), high))
    return order
