"""Near hashes are found by bands: the same pairs and groups as by comparing all with all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardprep.reporter.near import NEAR_BITS, joined, near_groups, near_pairs

if TYPE_CHECKING:
    Hashes = np.ndarray[Any, np.dtype[np.uint64]]

_bits = st.sets(st.integers(0, 63), max_size=7)


def compared(hashes: Hashes) -> list[tuple[int, int]]:
    """Return the near pairs, every two compared."""
    texts = [int(one) for one in hashes]
    return [
        (i, j)
        for i in range(len(texts))
        for j in range(i + 1, len(texts))
        if (texts[i] ^ texts[j]).bit_count() <= NEAR_BITS
    ]


def walked(number: int, pairs: list[tuple[int, int]]) -> list[int]:
    """Return the least member of each one's group, by a walk through the pairs."""
    beside: dict[int, set[int]] = {i: set() for i in range(number)}
    for one, two in pairs:
        beside[one].add(two)
        beside[two].add(one)
    found = [-1] * number
    for first in range(number):
        waiting = [first] if found[first] < 0 else []
        while waiting:
            at = waiting.pop()
            if found[at] < 0:
                found[at] = first
                waiting += beside[at]
    return found


@given(st.lists(st.tuples(st.integers(0, 3), _bits), max_size=40))
def test_pairs_are_those_that_brute_force_finds(made: list[tuple[int, set[int]]]) -> None:
    """Hashes a few bits from one of four, so that many lie at 3, 4, 5 and 6 bits."""
    centres = np.random.default_rng(7).integers(0, 2**64, 4, np.uint64).tolist()
    hashes = np.array([centres[i] ^ sum(1 << bit for bit in bits) for i, bits in made], np.uint64)
    unique = np.unique(hashes)
    assert near_pairs(unique).tolist() == [list(pair) for pair in compared(unique)]
    assert near_groups(hashes).tolist() == walked(len(hashes), compared(hashes))


def test_every_place_of_the_differing_bits_is_found() -> None:
    """One bit in each band but the last, four in one band, and across its edges."""
    rng = np.random.default_rng(0)
    first = rng.integers(0, 2**64, 1, np.uint64)[0]
    for bits in ([0, 13, 26, 39], [51, 52, 63, 0], [12, 13, 25, 26], [60, 61, 62, 63]):
        other = first ^ np.uint64(sum(1 << bit for bit in bits))
        assert near_pairs(np.array([first, other])).tolist() == [[0, 1]]
        too_far = other ^ np.uint64(1 << 30)
        assert near_pairs(np.array([first, too_far])).tolist() == []


def test_a_hundred_thousand_copies_of_one_hash_are_one_group() -> None:
    hashes = np.full(100_000, 12345, np.uint64)
    assert near_groups(hashes).max() == 0


def test_no_hashes_have_no_groups() -> None:
    assert near_groups(np.empty(0, np.uint64)).tolist() == []


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=40))
def test_pairs_join_to_groups(pairs: list[tuple[int, int]]) -> None:
    found = joined(31, np.array(pairs, np.int64).reshape(-1, 2))
    assert found.tolist() == walked(31, pairs)
