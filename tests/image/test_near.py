"""The search by bands finds the pairs and groups that comparing all hashes finds."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.image.phash import NEAR_BITS, PHASH, joined, near_groups

Hashes = np.ndarray[Any, np.dtype[np.uint64]]

_bits = st.sets(st.integers(0, 63), max_size=7)


def compared(hashes: Hashes) -> list[tuple[int, int]]:
    pairs = itertools.combinations(range(len(hashes)), 2)
    return [(i, j) for i, j in pairs if int(hashes[i] ^ hashes[j]).bit_count() <= NEAR_BITS]


def images(hashes: Any, cells: Any = 100, contrast: float = 50) -> np.ndarray[Any, Any]:
    found = np.zeros(len(hashes), PHASH)
    found["hash"], found["cells"], found["contrast"], found["decoded"] = hashes, cells, contrast, 1
    return found


def walked(number: int, pairs: list[tuple[int, int]]) -> list[int]:
    """Return the first member of the group of each element."""
    found = list(range(number))
    for _ in range(number):
        for one, two in pairs:
            found[one] = found[two] = min(found[one], found[two])
    return found


@given(st.lists(st.tuples(st.integers(0, 3), _bits), max_size=40))
def test_groups_are_equal_to_those_of_brute_force(made: list[tuple[int, set[int]]]) -> None:
    """Hashes a few bits from one of four, so that many differ in 3, 4, 5 and 6 bits."""
    centres = np.random.default_rng(7).integers(0, 2**64, 4, np.uint64).tolist()
    hashes = np.array([centres[i] ^ sum(1 << bit for bit in bits) for i, bits in made], np.uint64)
    assert near_groups(images(hashes)).tolist() == walked(len(hashes), compared(hashes))


def test_hashes_are_near_wherever_their_bits_differ() -> None:
    """One bit in each band but the last, four in one band, and across its edges."""
    rng = np.random.default_rng(0)
    first = rng.integers(0, 2**64, 1, np.uint64)[0]
    for bits in ([0, 13, 26, 39], [51, 52, 63, 0], [12, 13, 25, 26], [60, 61, 62, 63]):
        other = first ^ np.uint64(sum(1 << bit for bit in bits))
        assert near_groups(images([first, other])).tolist() == [0, 0]
        too_far = other ^ np.uint64(1 << 30)
        assert near_groups(images([first, too_far])).tolist() == [0, 1]


def test_a_hundred_thousand_copies_of_one_hash_are_one_group() -> None:
    assert near_groups(images(np.full(100_000, 12345, np.uint64))).max() == 0
    assert near_groups(images([])).tolist() == []


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=40))
def test_pairs_join_to_groups(pairs: list[tuple[int, int]]) -> None:
    found = joined(np.arange(31), np.array(pairs, np.int64).reshape(-1, 2))
    assert found.tolist() == walked(31, pairs)


def copies(*made: tuple[int, Any]) -> list[list[int]]:
    """Return the groups of near copies of some hashes and colours, the same in every cell."""
    cells = np.array([np.broadcast_to(colour, (16, 3)) for _, colour in made], np.uint8)
    groups = near_groups(images([one for one, _ in made], cells))
    several = [np.flatnonzero(groups == one).tolist() for one in np.unique(groups)]
    return [one for one in several if len(one) > 1]


RED, GREEN, GREY = (200, 40, 40), (40, 200, 40), (9, 9, 9)


@pytest.mark.parametrize(
    ("made", "groups"),
    [
        ([(1, GREY), (1 << 40 | 0xFFFF, GREY)], []),
        ([(1, GREY)] * 5, [[0, 1, 2, 3, 4]]),
        # one shape in other colours
        ([(7, RED), (7, GREEN), (6, (202, 41, 40))], [[0, 2]]),
        # a lighter copy, a grey one, and one that is too light
        ([(7, (150, 90, 60)), (7, (180, 108, 72))], [[0, 1]]),
        ([(7, (150, 90, 60)), (7, (100, 100, 100))], [[0, 1]]),
        ([(7, (50, 30, 20)), (7, (150, 90, 60))], []),
        # The second is near both others, which are not near each other.
        ([(0, RED), (0b1111, GREEN), (0b1111_1111, RED)], []),
        ([(0, RED), (0b1111, RED), (0b1111_1111, RED)], [[0, 1, 2]]),
    ],
)
def test_near_copies_have_near_hashes_and_like_colours(
    made: list[tuple[int, Any]], groups: list[list[int]]
) -> None:
    assert copies(*made) == groups


def test_groups_do_not_depend_on_the_order_of_the_images() -> None:
    """Colours drift along the chain, so that its ends do not agree."""
    rng = np.random.default_rng(3)
    cells = [np.full((16, 3), 100 + 8 * (i // 4), np.uint8) for i in range(40)]
    found = images(rng.integers(0, 4, 40), np.stack(cells))
    groups = near_groups(found)
    assert len(np.unique(groups)) == 1
    order = rng.permutation(40)
    again = near_groups(found[order])
    together = groups[:, None] == groups
    assert ((again[:, None] == again) == together[order][:, order]).all()


def test_undecoded_images_and_images_without_contrast_have_no_copies() -> None:
    assert near_groups(images([5, 5, 5], contrast=1.9)).tolist() == [0, 1, 2]
    found = images([5, 5, 5, 5])
    found["decoded"][1] = False
    assert near_groups(found).tolist() == [0, 1, 0, 0]
