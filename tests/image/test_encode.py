"""Grey has one channel until it is encoded, and is stored as the RGB that it means."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardprep.image.process import ProcessedImage, encode, process_image
from shardprep.image.spec import Format, ImageSpec
from tests.support.builders import encoded, pixels
from tests.support.examples import examples

GREY = Image.fromarray(pixels(47, 64)).convert("L")
GREYS = {
    "JPEG": encoded(GREY),
    "PNG": encoded(GREY, "PNG"),
    "TIFF": encoded(GREY, "TIFF"),
    "BMP": encoded(GREY, "BMP"),
    "of 1 bit": encoded(GREY.convert("1"), "PNG"),
    "of 16 bits": encoded(Image.fromarray(np.asarray(GREY, np.uint16) * 257), "PNG"),
}
FITS: dict[str, dict[str, Any]] = {
    "crop": {},
    "pad": {"size": (31, 33), "fit": "pad", "background": (9, 99, 199)},
    "none": {"size": None, "fit": "none"},
}


@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    quality=st.integers(1, 100),
    form=st.sampled_from(["jpeg", "png", "raw", "keep"]),
    seed=st.integers(0, 2**32 - 1),
)
@examples(200)
def test_one_channel_is_stored_as_three_that_are_equal(
    size: tuple[int, int], quality: int, form: Format, seed: int
) -> None:
    spec = ImageSpec(size=None, fit="none", format=form, quality=quality)
    one = np.random.default_rng(seed).integers(0, 256, (*size, 1), np.uint8)
    three = np.repeat(one, 3, axis=2)
    for original in ("jpeg", "png"):
        assert encode(one, original, spec) == encode(three, original, spec)


@pytest.mark.parametrize("name", GREYS)
@pytest.mark.parametrize("options", FITS.values(), ids=FITS)
def test_a_grey_file_is_stored_as_an_rgb_file_of_its_pixels(
    name: str, options: dict[str, Any]
) -> None:
    picture = GREY if name == "of 16 bits" else Image.open(io.BytesIO(GREYS[name]))
    colours = encoded(picture.convert("RGB"), "PNG")
    for form in ("jpeg", "raw", "png"):
        spec = ImageSpec(format=form, **options)
        grey, rgb = process_image(GREYS[name], spec), process_image(colours, spec)
        assert isinstance(grey, ProcessedImage)
        assert isinstance(rgb, ProcessedImage)
        assert (grey.data, grey.is_dark) == (rgb.data, rgb.is_dark)
