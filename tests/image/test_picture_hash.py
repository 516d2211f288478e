"""Hashes of 16 bytes: mirrored and turned pictures have hashes that follow from one another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardprep.image.thumbnail import MOST_BITS, near_hashes, orientations, picture_hashes
from tests.support.planted import photo

_TURNS = (None, *Image.Transpose)


def thumbnails(number: int) -> list[Image.Image]:
    images = (Image.fromarray(photo(i, 80, 100)).convert("L") for i in range(number))
    return [one.resize((32, 32), Image.Resampling.BOX) for one in images]


def hashes(images: list[Image.Image]) -> np.ndarray[tuple[int, int], np.dtype[np.uint64]]:
    return picture_hashes(np.stack([np.asarray(one) for one in images]))


@pytest.mark.parametrize("turn", _TURNS)
def test_a_turned_or_mirrored_picture_is_found_by_pillow_s_own_turn(
    turn: Image.Transpose | None,
) -> None:
    images = thumbnails(12)
    turned = images if turn is None else [one.transpose(turn) for one in images]
    pairs = near_hashes(hashes(turned), hashes(images))
    assert {(i, i) for i in range(12)} <= {*map(tuple, pairs.tolist())}


def test_the_eight_forms_of_a_picture_have_the_hashes_of_pillow_s_turned_pictures() -> None:
    image = thumbnails(1)[0]
    ours = {bytes(one[0]) for one in orientations(hashes([image]))}
    turned = [image if turn is None else image.transpose(turn) for turn in _TURNS]
    distances = [
        min(
            int.bit_count(int.from_bytes(form) ^ int.from_bytes(bytes(hashes([one])[0])))
            for form in ours
        )
        for one in turned
    ]
    assert len(ours) == 8
    assert max(distances) == 0


@given(st.integers(0, 2**32 - 1), st.floats(0.75, 1.25), st.integers(-30, 30))
def test_contrast_and_brightness_change_few_bits(seed: int, gain: float, offset: int) -> None:
    draw = np.random.default_rng(seed)
    coarse = draw.integers(60, 180, (1, 8, 8)).repeat(4, axis=1).repeat(4, axis=2)
    levels = coarse + draw.integers(-8, 8, (1, 32, 32))
    changed = np.clip(levels * gain + offset, 0, 255).astype(np.uint8)
    one, two = picture_hashes(levels.astype(np.uint8)), picture_hashes(changed)
    assert int(np.bitwise_count(one ^ two).sum()) <= MOST_BITS


def test_other_pictures_are_far_apart_and_blank_ones_have_no_hash() -> None:
    images = thumbnails(24)
    assert near_hashes(hashes(images), hashes(images)).tolist() == [[i, i] for i in range(24)]
    blank = picture_hashes(np.full((2, 32, 32), 90, np.uint8))
    assert not blank.any()
    assert not len(near_hashes(blank, blank))
