"""Random numbers and permutations as pure functions of a key.

The order of an epoch must be the same on every host, and training must be able to resume at any
place of an epoch. So generators with a state are not used. Everything is a function of a *key*, a
number from 0 to 2³¹ − 2:

* `mix` derives a key from a key and numbers: seed → epoch → group. It uses integer operators only,
  so the same lines work on Python integers, int64 arrays and int64 tensors, and no product exceeds
  2⁴⁸. (64-bit multiplicative hashes rely on overflow, where Python and int64 differ.)
* `permute_table` returns elements of a permutation without computing the rest. With cycle walking
  it is the generalized Feistel network of Black and Rogaway, "Ciphers with Arbitrary Finite
  Domains", CT-RSA 2002. It orders the blocks of an epoch.
* `shuffled_ranges` is a Fisher-Yates shuffle by the numbers of Philox4x32-10 (Salmon and others,
  "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011), in the order of TensorFlow's
  `ShuffleDataset` op with a full window.
* `random_numbers` returns floats of NumPy's Philox4x64-10, whose counter gives random access.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from shardprep.reader.array_types import Floats, Ints

_PRIME = (1 << 31) - 1
_PHILOX_NUMBERS = 4
"""Numbers that Philox computes from one counter."""
_UINT32 = (1 << 32) - 1
_ROUNDS = 6
_ROUND_KEYS_APART = 0x5BD1E995
"""Difference between the keys of two rounds of the Feistel network."""
_T = TypeVar("_T")


def key_of(seed: int) -> int:
    """Return the key of a seed, which may be any integer."""
    digest = hashlib.blake2b(str(seed).encode(), digest_size=8).digest()
    return int.from_bytes(digest) % _PRIME


def mix(key: _T, *numbers: Any) -> _T:
    """Return a new key, 0 to 2³¹ − 2, that is a hash of a key and numbers.

    `key` and `numbers` may be Python integers, int64 arrays or int64 tensors.
    """
    # Two rounds of multiply and xor-shift per number. 48271 and 69621 are multipliers of Lehmer
    # generators modulo this prime: primitive roots, so each step is a bijection of 1 … p − 1. The
    # constant is added because multiplication keeps 0. Factors are below 2³¹ and 2¹⁷.
    mixed: Any = key
    for number in numbers:
        mixed = ((mixed ^ (number % _PRIME)) * 48271 + 0x2545F491) % _PRIME
        mixed = ((mixed ^ (mixed // (1 << 15))) * 69621) % _PRIME
        mixed = mixed ^ (mixed // (1 << 13))
    return mixed % _PRIME  # type: ignore[no-any-return]


def random_numbers(key: int, start: int, stop: int) -> Floats:
    """Return random numbers `start` to before `stop` of a key's series, float64 in [0, 1)."""
    skip = start % _PHILOX_NUMBERS
    bits = np.random.Philox(key=key, counter=start // _PHILOX_NUMBERS)
    raw = bits.random_raw(stop - start + skip)[skip:]
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53  # 53 bits: a float64's precision


def shuffle_seeds(key: Any) -> tuple[Any, Any]:
    """Return the two seeds of TensorFlow's shuffle op for a key."""
    return key + 1, mix(key, 1)  # TensorFlow draws seeds if both are zero


def shuffled_ranges(lengths: Sequence[int], keys: Sequence[int]) -> list[list[int]]:
    """Return for each length and key the numbers 0 to length − 1, shuffled as by TensorFlow."""
    seeds = shuffle_seeds(np.array(keys, np.int64)[:, np.newaxis])
    ranges = [[*range(length)] for length in lengths]
    for numbers, drawn in zip(ranges, _philox4x32(*seeds, max(lengths)), strict=True):
        places = np.arange(len(numbers))
        steps = drawn[: len(numbers)].astype(np.int64) % (len(numbers) - places)
        for i, j in enumerate((steps + places).tolist()):
            numbers[i], numbers[j] = numbers[j], numbers[i]
    return ranges


def _philox4x32(seeds: Ints, seeds2: Ints, number: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return uint64[n, number]: the 32-bit numbers that TensorFlow draws for seeds [n, 1]."""
    # A counter is four 32-bit words: the first counts, the third is the second seed. Each of the
    # ten rounds multiplies two words to 64 bits. The high half crosses over to the other pair,
    # xored with a key word. The two key words advance by 2³² times the golden ratio and √3 − 1.
    blocks = np.arange(-(-number // _PHILOX_NUMBERS), dtype=np.uint64)
    zero, half = np.zeros((len(seeds), len(blocks)), np.uint64), np.uint64(32)
    counters = [zero + blocks, zero, zero + seeds2.astype(np.uint64), zero]
    keys = [seeds.astype(np.uint64), zero[:, :1]]
    for _ in range(10):
        low = counters[0] * np.uint64(0xD2511F53)
        high = counters[2] * np.uint64(0xCD9E8D57)
        counters = [
            (high >> half) ^ counters[1] ^ keys[0],
            high & np.uint64(_UINT32),
            (low >> half) ^ counters[3] ^ keys[1],
            low & np.uint64(_UINT32),
        ]
        steps = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
        keys = [(key + step) & np.uint64(_UINT32) for key, step in zip(keys, steps, strict=True)]
    return np.stack(counters, axis=2).reshape(len(seeds), -1)[:, :number]


def table_shape(size: int) -> tuple[int, int]:
    """Return the numbers of rows and columns of a nearly square table of at least `size` fields."""
    columns = max(1, math.isqrt(size - 1) + 1)
    return -(-size // columns), columns


def permute_table(places: _T, rows: Any, columns: Any, key: Any) -> _T:
    """Return the elements at `places` of a permutation of 0 to `rows` × `columns` − 1."""
    # A Feistel network on (row, column): each round adds to the row a value that depends on the
    # column alone, then to the column a value that depends on the row alone. Each step can be
    # undone, so different fields stay different.
    row, column = places // columns, places % columns
    for turn in range(_ROUNDS):
        row = (row + mix(key + 2 * turn * _ROUND_KEYS_APART, column)) % rows
        column = (column + mix(key + (2 * turn + 1) * _ROUND_KEYS_APART, row)) % columns
    return row * columns + column  # type: ignore[no-any-return]


def permutations(sizes: Sequence[int], keys: Sequence[int]) -> list[Ints]:
    """Return for each size and key a permutation of 0 to size − 1."""
    # A table has up to √size fields too many. Cycle walking: an element that is not below its size
    # is permuted again until it is. The result stays a permutation.
    tables = [(*table_shape(size), key, size) for size, key in zip(sizes, keys, strict=True)]
    table = np.repeat(np.array(tables, np.int64).T, sizes, axis=1)
    elements = permute_table(np.concatenate([*map(np.arange, sizes)]), *table[:3])
    while (outside := elements >= table[3]).any():
        elements[outside] = permute_table(elements[outside], *table[:3, outside])
    return np.split(elements, np.cumsum(sizes)[:-1])
