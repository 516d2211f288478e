"""WebP and transparent images have Pillow's pixels without Pillow's copies of them."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, WebPImagePlugin

from shardprep.image import resample
from shardprep.image.process import ProcessedImage, Rejection, process_image
from shardprep.image.resample import Pixels, flattened
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


def by_pillow(data: bytes) -> ProcessedImage | Rejection:
    with patch("shardprep.image.decode._webp_pixels", return_value=None):
        return process_image(data, RAW)


@pytest.mark.parametrize("data", WEBPS.values(), ids=WEBPS)
def test_webp_is_stored_alike_without_a_load_by_pillow(data: bytes) -> None:
    expected = by_pillow(data)
    with patch.object(WebPImagePlugin.WebPImageFile, "load", side_effect=AssertionError):
        assert process_image(data, RAW) == expected
    assert isinstance(expected, ProcessedImage)


def test_webp_with_a_profile_is_loaded_by_pillow() -> None:
    profile = rgb_profile(DISPLAY_P3, srgb_to_light)
    data = encoded(PICTURE, "WEBP", icc_profile=profile, lossless=True)
    with patch.object(WebPImagePlugin.WebPImageFile, "load", side_effect=OSError("load")):
        assert isinstance(process_image(data, RAW), Rejection)


def test_truncated_or_garbled_webp_has_the_same_outcome() -> None:
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
@examples(100)
def test_transparency_is_drawn_as_pillow_composites_it(
    size: tuple[int, int], mode: str, background: tuple[int, int, int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    given: Pixels = rng.integers(0, 256, (*size, len(mode)), np.uint8)
    given[..., -1] = rng.choice(np.array([0, 1, 127, 254, 255], np.uint8), size)
    image = Image.fromarray(given)
    rgba = image.convert("RGBA")
    behind = Image.new("RGB", image.size, background)
    expected = Image.composite(rgba.convert("RGB"), behind, rgba.getchannel("A"))
    for extension in (resample._pixels, None):
        with patch.object(resample, "_pixels", extension):
            np.testing.assert_array_equal(flattened(given, background), np.asarray(expected))
            np.testing.assert_array_equal(flattened(given, None), np.asarray(rgba)[..., :3])


def test_every_level_and_alpha_gives_the_pixel_of_pillow() -> None:
    levels, alphas = np.meshgrid(np.arange(256), np.arange(256))
    image = Image.fromarray(np.stack([levels, alphas], axis=2).astype(np.uint8))
    data = encoded(image, "TIFF")
    for level in (0, 1, 100, 255):
        result = process_image(data, replace(RAW, background=(level,) * 3))
        assert isinstance(result, ProcessedImage)
        behind = Image.new("L", image.size, level)
        expected = Image.composite(image.convert("L"), behind, image.getchannel("A"))
        assert result.data == expected.convert("RGB").tobytes()
