"""Near hashes are found by bands: the same pairs and groups as by comparing all with all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardprep.reporter.near import NEAR_BITS, joined, near_copies, near_groups, near_pairs

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


def copies(*made: tuple[int, Any]) -> list[list[int]]:
    """Return the groups of near copies of some hashes and colours, the same in every cell."""
    hashes = np.array([one for one, _ in made], np.uint64)
    cells = np.array([np.broadcast_to(colour, (16, 3)) for _, colour in made], np.uint8)
    return [one.tolist() for one in near_copies(hashes, cells)]


def test_none_and_all_alike_are_groups_too() -> None:
    assert copies((1, (9, 9, 9)), (1 << 40 | 0xFFFF, (9, 9, 9))) == []
    assert copies(*[(1, (9, 9, 9))] * 5) == [[0, 1, 2, 3, 4]]


def test_drawings_of_one_shape_in_other_colours_are_no_copies() -> None:
    assert copies((7, (200, 40, 40)), (7, (40, 200, 40)), (6, (202, 41, 40))) == [[0, 2]]


def test_a_lighter_and_a_grey_copy_are_copies() -> None:
    assert copies((7, (150, 90, 60)), (7, (180, 108, 72))) == [[0, 1]]
    assert copies((7, (150, 90, 60)), (7, (100, 100, 100))) == [[0, 1]]
    assert copies((7, (50, 30, 20)), (7, (150, 90, 60))) == []


def test_what_only_another_colour_joins_falls_apart() -> None:
    """The second is near both others, which are not near each other."""
    red, green = (200, 40, 40), (40, 200, 40)
    assert copies((0, red), (0b1111, green), (0b1111_1111, red)) == []
    assert copies((0, red), (0b1111, red), (0b1111_1111, red)) == [[0, 1, 2]]
