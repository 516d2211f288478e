"""Measures of pixels, compared with Pillow and plain formulas."""

import math

import numpy as np
import pytest
from PIL import Image, ImageFilter

from shardprep.reporter import pixels as measure
from shardprep.reporter.pixels import TILE, tile
from tests.support.planted import photo

TILES = np.stack([photo(seed, TILE, TILE) for seed in range(5)])
FOUND = measure.measured(TILES)


@pytest.mark.parametrize("number", range(len(TILES)))
def test_tone_follows_the_formulas(number: int) -> None:
    levels, found = TILES[number].astype(float), FOUND[number]
    red, green, blue = levels.reshape(-1, 3).T / 255
    perceived = np.sqrt(0.241 * red**2 + 0.691 * green**2 + 0.068 * blue**2)
    assert found["brightness"] == pytest.approx(perceived.mean(), abs=1e-4)
    assert found["darkest"] == pytest.approx(np.percentile(perceived, 5), abs=0.005)
    assert found["lightest"] == pytest.approx(np.percentile(perceived, 99), abs=0.005)
    spread = levels.max(axis=2) - levels.min(axis=2)
    assert found["colour"] == pytest.approx(spread.mean() / 255, abs=1e-4)


@pytest.mark.parametrize("number", range(len(TILES)))
def test_entropy_and_contrast_are_pillow_s(number: int) -> None:
    grey = Image.fromarray(TILES[number]).convert("L")
    assert FOUND[number]["entropy"] == pytest.approx(grey.entropy(), abs=0.02)
    assert FOUND[number]["contrast"] == pytest.approx(np.asarray(grey).std(), abs=0.5)


def test_blur_takes_sharpness_and_mist_does_not() -> None:
    sharp = Image.fromarray(photo(3, 224, 224))
    values = [
        measure.sharpness(np.asarray(sharp.filter(ImageFilter.GaussianBlur(radius))))
        for radius in (0, 1, 2, 4)
    ]
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.3 * values[0]
    misty = (np.asarray(sharp) * 0.3 + 150).astype(np.uint8)
    assert measure.sharpness(misty) == pytest.approx(values[0], rel=0.15)


@pytest.mark.parametrize("size", [(1, 1), (2, 300), (300, 2), (3, 3), (56, 112)])
def test_images_of_any_size_have_numbers(size: tuple[int, int]) -> None:
    image = photo(0, *size)
    assert tile(image).shape == (TILE, TILE, 3)
    assert math.isfinite(measure.sharpness(image))


def test_no_tiles_have_no_numbers() -> None:
    assert len(measure.measured(TILES[:0])) == 0
