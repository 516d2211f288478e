"""Mask files of any depth give the numbers that were written, or an error."""

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageCms

from shardprep.image.annotation_types import AnnotationSpec
from shardprep.image.masks import (
    MaskError,
    decode_mask,
    mask_classes,
    value_counts,
)
from shardprep.image.png import encoded_png
from tests.support.builders import encoded, jpeg
from tests.support.odd_images import png_by_hand

INDICES = np.array([[0, 1, 2, 3], [3, 2, 1, 0], [1, 1, 2, 2]], np.uint8)
COLOURS = {0: (0, 0, 0), 1: (128, 64, 32), 2: (0, 255, 0), 3: (255, 0, 1)}
BY_COLOUR = {colour: label for label, colour in COLOURS.items()}


def spec(**keys: Any) -> AnnotationSpec:
    return AnnotationSpec(masks="classes", **{"num_classes": 4, **keys})


def classes(data: bytes, **keys: Any) -> NDArray[Any]:
    return mask_classes(decode_mask(data), spec(**keys))


def fault(data: bytes, **keys: Any) -> str:
    with pytest.raises(MaskError) as found:
        classes(data, **keys)
    assert len(str(found.value).splitlines()) == 1
    return str(found.value)


def grey_png(depth: int, values: NDArray[Any]) -> bytes:
    """Return a grey PNG of 1, 2, 4, 8 or 16 bits, packed by hand."""
    rows = b""
    for row in values.tolist():
        bits = "".join(f"{value:0{depth}b}" for value in row)
        bits += "0" * (-len(bits) % 8)
        rows += b"\0" + int(bits, 2).to_bytes(len(bits) // 8, "big")
    return png_by_hand(values.shape[1], values.shape[0], depth, 0, rows)


def palette_image(values: NDArray[Any]) -> Image.Image:
    image = Image.fromarray(values, "P")
    image.putpalette([channel for colour in COLOURS.values() for channel in colour])
    return image


def coloured(values: NDArray[Any]) -> NDArray[np.uint8]:
    picture: NDArray[np.uint8] = np.array([COLOURS[i] for i in range(4)], np.uint8)[values]
    return picture


XYZ = ImageCms.createProfile("XYZ")
FILES: dict[str, bytes] = {
    "2-bit PNG": grey_png(2, INDICES),
    "4-bit PNG": grey_png(4, INDICES),
    "8-bit PNG": encoded(Image.fromarray(INDICES), "PNG"),
    "16-bit PNG": encoded(Image.fromarray(INDICES.astype(np.uint16)), "PNG"),
    "with a profile that changes grey": encoded(
        Image.fromarray(INDICES), "PNG", icc_profile=ImageCms.ImageCmsProfile(XYZ).tobytes()
    ),
    "palette PNG": encoded(palette_image(INDICES), "PNG"),
    "palette PNG of 2 bits": encoded(palette_image(INDICES), "PNG", bits=2),
    "palette PNG with a clear colour": encoded(palette_image(INDICES), "PNG", transparency=0),
    "palette GIF": encoded(palette_image(INDICES), "GIF", optimize=False),
    "BMP": encoded(palette_image(INDICES), "BMP"),
    "TIFF": encoded(Image.fromarray(INDICES), "TIFF"),
    "compressed TIFF": encoded(Image.fromarray(INDICES), "TIFF", compression="tiff_lzw"),
    "16-bit TIFF": encoded(Image.fromarray(INDICES.astype(np.uint16)), "TIFF"),
    "32-bit TIFF": encoded(Image.fromarray(INDICES.astype(np.int32)), "TIFF"),
    "TIFF of floats": encoded(Image.fromarray(INDICES.astype(np.float32)), "TIFF"),
    "grey with alpha": encoded(Image.merge("LA", [Image.fromarray(INDICES)] * 2), "PNG"),
    "equal channels": encoded(Image.fromarray(np.dstack([INDICES] * 3)), "PNG"),
    "equal channels and alpha": encoded(
        Image.fromarray(np.dstack([INDICES] * 3 + [np.full_like(INDICES, 9)])), "PNG"
    ),
    "PGM": encoded(Image.fromarray(INDICES), "PPM"),
}


# --- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", FILES.values(), ids=FILES)
def test_values_are_class_indices_or_become_classes_by_a_table(data: bytes) -> None:
    found = classes(data)
    assert found.dtype == np.uint8
    assert np.array_equal(found, INDICES)
    expected = np.array([3, 0, 255, 1], np.uint8)[INDICES]
    assert np.array_equal(classes(data, values={0: 3, 1: 0, 2: 255, 3: 1}), expected)


@pytest.mark.parametrize("form", ["PNG", "TIFF", "BMP"])
def test_colours_become_classes_by_a_table(form: str) -> None:
    data = encoded(Image.fromarray(coloured(INDICES)), form)
    assert np.array_equal(classes(data, values=BY_COLOUR), INDICES)
    grey = encoded(Image.new("RGB", (4, 3)), form)
    assert np.array_equal(classes(grey, values=BY_COLOUR), np.zeros((3, 4)))


@pytest.mark.parametrize(("dtype", "high"), [(np.uint8, 1), (np.uint8, 255), (np.uint16, 65_535)])
def test_two_values_are_0_and_1(dtype: Any, high: int) -> None:
    mask = (INDICES > 1).astype(dtype) * high
    for one in (mask, np.zeros_like(mask), np.full_like(mask, high)):
        for form in ("PNG", "TIFF"):
            data = encoded(Image.fromarray(one), form)
            assert np.array_equal(classes(data, is_binary=True), one > 0)


def test_masks_of_one_bit_are_0_and_1() -> None:
    mask = INDICES > 1
    for data in (
        grey_png(1, mask.astype(np.uint8)),
        encoded(Image.fromarray(mask), "PNG"),
        encoded(Image.fromarray(mask), "TIFF", compression="group4"),
        encoded(Image.fromarray(mask), "GIF"),
    ):
        assert np.array_equal(classes(data, is_binary=True), mask)


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_binary_jpeg_is_split_at_half(mode: str) -> None:
    mask = np.zeros((64, 80), np.uint8)
    mask[16:48, 24:64] = 255
    data = encoded(Image.fromarray(mask).convert(mode), "JPEG", quality=60)
    assert np.array_equal(classes(data, is_binary=True), mask > 0)
    black = encoded(Image.new(mode, (8, 8), 0), "JPEG")
    assert not classes(black, is_binary=True).any()


def test_more_than_254_classes_take_16_bits() -> None:
    mask = np.array([[0, 255, 256, 299, 65_535]], np.uint16)
    data = encoded(Image.fromarray(mask), "PNG")
    found = classes(data, num_classes=300)
    assert found.dtype == np.uint16
    assert np.array_equal(found, mask)
    assert spec(num_classes=254).ignore == 255
    assert spec(num_classes=255).ignore == 65_535


@given(
    st.integers(0, 1000), st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.sampled_from([np.uint8, np.uint16]),
)  # fmt: skip
def test_an_encoded_mask_has_its_values(seed: int, size: tuple[int, int], dtype: Any) -> None:
    mask = np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, size).astype(dtype)
    data = encoded_png(mask)
    image = Image.open(io.BytesIO(data))
    assert image.mode == ("L" if dtype == np.uint8 else "I;16")
    assert np.array_equal(np.asarray(image), mask)
    assert np.array_equal(
        value_counts(mask), np.bincount(mask.ravel(), minlength=1 + np.iinfo(dtype).max)
    )


# --- faults -------------------------------------------------------------------------------------


def test_unknown_values_and_colours_are_named() -> None:
    data = FILES["8-bit PNG"]
    assert "the value 3; classes are 0 to 2" in fault(data, num_classes=3)
    assert "the value 2, 3, which" in fault(data, values={0: 0, 1: 1})
    colours = encoded(Image.fromarray(coloured(INDICES)), "PNG")
    some = {colour: label for colour, label in BY_COLOUR.items() if label != 3}
    assert "the colour (255, 0, 1), which" in fault(colours, values=some)
    assert "no mask values are given" in fault(colours)
    assert "single numbers" in fault(colours, values={0: 0})
    hint = "but other masks of the source are black and white: save it with the values 0 and"
    assert fault(colours, is_binary=True).startswith(f"has colours, {hint}")
    assert fault(data, is_binary=True).startswith(f"has values up to 3, {hint}")
    assert "JPEG" in fault(jpeg())
    assert "JPEG" in fault(jpeg(), values=BY_COLOUR)
    assert "are colours" in fault(FILES["16-bit PNG"], values=BY_COLOUR)


def tiff(values: list[float], dtype: Any) -> bytes:
    return encoded(Image.fromarray(np.array([values], dtype)), "TIFF")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a readable image"),
        (b"<html>", "not a readable image"),
        (encoded_png(np.arange(200, dtype=np.uint8).reshape(10, 20))[:-30], "cannot be decoded"),
        (tiff([0.5, 1.0], np.float32), "whole numbers"),
        (tiff([np.nan, 1.0], np.float32), "whole numbers"),
        (tiff([-1, 70_000], np.int32), "whole numbers"),
        (png_by_hand(1, 1, 16, 2, b"\0" + bytes(6)), "16 bits"),
        (b"P5 4 1 15\n\0\1\2\3", "0 to 15"),
        (png_by_hand(100_000, 100_000, 8, 0, bytes(100)), "100000x100000 pixels, above the limit"),
    ],
)
def test_a_file_that_is_not_a_mask_is_an_error(data: bytes, says: str) -> None:
    assert says in fault(data)


def test_the_limit_of_pixels_may_be_another() -> None:
    with pytest.raises(MaskError, match="limit of 11 pixels"):
        decode_mask(FILES["8-bit PNG"], 11)
