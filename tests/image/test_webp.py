"""WebP, and all that is transparent, comes to Pillow's pixels without Pillow's copies of them."""

from __future__ import annotations

import io
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, WebPImagePlugin

from shardprep.image import color
from shardprep.image.color import flattened
from shardprep.image.process import ProcessedImage, Rejection, process_image
from shardprep.image.resample import Pixels
from shardprep.image.spec import ImageSpec
from tests.support.builders import encoded, pixels
from tests.support.examples import examples
from tests.support.odd_images import DISPLAY_P3, oriented, rgb_profile, srgb_to_light

PICTURE = Image.fromarray(pixels(47, 64))
CLEAR = PICTURE.convert("RGBA")
CLEAR.putalpha(Image.fromarray(np.arange(47 * 64).astype(np.uint8).reshape(47, 64)))
CORNER = Image.new("RGBA", (64, 47))
CORNER.paste(PICTURE.crop((0, 0, 9, 9)), (3, 5))
WEBPS: dict[str, bytes] = {
    "lossy": encoded(PICTURE, "WEBP"),
    "lossless": encoded(PICTURE, "WEBP", lossless=True),
    "lossy with alpha": encoded(CLEAR, "WEBP"),
    "lossless with alpha": encoded(CLEAR, "WEBP", lossless=True, exact=True),
    "one pixel": encoded(PICTURE.resize((1, 1)), "WEBP"),
    "animated": encoded(PICTURE, "WEBP", save_all=True, append_images=[CLEAR]),
    "animated with a small first frame": encoded(
        CORNER, "WEBP", save_all=True, append_images=[PICTURE], lossless=True
    ),
    "turned": encoded(PICTURE, "WEBP", exif=oriented(6)),
}
RAW = ImageSpec(size=None, fit="none", format="raw", background=(1, 128, 254))


def by_pillow(data: bytes, spec: ImageSpec = RAW) -> ProcessedImage | Rejection:
    with patch("shardprep.image.decode._webp_pixels", return_value=None):
        return process_image(data, spec)


@pytest.mark.parametrize("data", WEBPS.values(), ids=WEBPS)
def test_webp_is_stored_alike_and_pillow_never_loads_it(data: bytes) -> None:
    expected = by_pillow(data)
    with patch.object(WebPImagePlugin.WebPImageFile, "load", side_effect=AssertionError):
        assert process_image(data, RAW) == expected
    assert isinstance(expected, ProcessedImage)


def test_webp_with_a_profile_and_other_webp_is_left_to_pillow() -> None:
    profile = rgb_profile(DISPLAY_P3, srgb_to_light)
    data = encoded(PICTURE, "WEBP", icc_profile=profile, lossless=True)
    with patch.object(WebPImagePlugin.WebPImageFile, "load", side_effect=OSError("load")):
        assert isinstance(process_image(data, RAW), Rejection)


def test_webp_cut_or_garbled_anywhere_has_the_same_outcome() -> None:
    for data in (WEBPS["lossy"], WEBPS["lossless with alpha"], WEBPS["animated"]):
        for at in range(12, len(data), len(data) // 30):
            garbled = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
            for damaged in (data[:at], garbled):
                assert process_image(damaged, RAW) == by_pillow(damaged)


@given(
    size=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    mode=st.sampled_from(["RGBA", "LA"]),
    background=st.tuples(*[st.integers(0, 255)] * 3),
    seed=st.integers(0, 2**32 - 1),
)
@examples(200)
def test_transparency_is_seen_as_pillow_composites_it(
    size: tuple[int, int], mode: str, background: tuple[int, int, int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    given: Pixels = rng.integers(0, 256, (*size, len(mode)), np.uint8)
    given[..., -1] = rng.choice(np.array([0, 1, 127, 254, 255], np.uint8), size)
    image = Image.fromarray(given)
    rgba = image.convert("RGBA")
    behind = Image.new("RGB", image.size, background)
    expected = Image.composite(rgba.convert("RGB"), behind, rgba.getchannel("A"))
    np.testing.assert_array_equal(flattened(given, background), np.asarray(expected))
    with patch.object(color, "_pixels", None):
        np.testing.assert_array_equal(flattened(given, background), np.asarray(expected))


@pytest.mark.parametrize("name", ["LA", "RGBA"])
def test_alpha_that_means_nothing_is_passed_over(name: Any) -> None:
    given: Pixels = np.asarray(CLEAR.convert(name))
    expected = np.asarray(Image.fromarray(given).convert("RGBA"))[..., :3]
    np.testing.assert_array_equal(flattened(given, None), expected)
    with patch.object(color, "_pixels", None):
        np.testing.assert_array_equal(flattened(given, None), expected)


def test_all_pixels_of_every_alpha_and_level_are_pillows() -> None:
    levels, alphas = np.meshgrid(np.arange(256), np.arange(256))
    given: Pixels = np.stack([levels, alphas], axis=2).astype(np.uint8)
    image = Image.open(io.BytesIO(encoded(Image.fromarray(given), "PNG")))
    for behind in (0, 1, 100, 255):
        result = process_image(
            encoded(image, "TIFF"),
            ImageSpec(size=None, fit="none", format="raw", background=(behind,) * 3),
        )
        assert isinstance(result, ProcessedImage)
        expected = Image.composite(
            image.convert("L"), Image.new("L", image.size, behind), image.getchannel("A")
        )
        found = np.frombuffer(result.data, np.uint8).reshape(256, 256, 3)
        np.testing.assert_array_equal(found, np.asarray(expected.convert("RGB")))
