"""Pixels, boxes and masks of a file are at the same place in the stored image."""

import io
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from shardprep.image.annotation_types import FRAMES, Annotation, AnnotationSpec, Frame, Polygons
from shardprep.image.annotations import PlacedObjects, place_objects
from shardprep.image.placement import Placement
from shardprep.image.process import ProcessedImage, process_image
from shardprep.image.spec import Fit, ImageSpec
from tests.support.annotated import grey_png
from tests.support.builders import encoded, jpeg
from tests.support.odd_images import Array, as_stored, oriented

ORIENTATIONS = range(1, 9)
FITS: tuple[Fit, ...] = ("crop", "pad", "stretch", "within", "none")
FORMS = ("JPEG", "PNG", "TIFF")
INSTANCES = AnnotationSpec(boxes=True, masks="instances", is_binary=True)


def image_spec(fit: Fit, size: tuple[int, int], form: str = "raw") -> ImageSpec:
    black = (0, 0, 0)
    return ImageSpec(size=None if fit == "none" else size, fit=fit, format=form, background=black)  # type: ignore[arg-type]


def rectangle_in_noise(
    rng: np.random.Generator, height: int, width: int
) -> tuple[Array, tuple[int, int, int, int]]:
    """Return a dark picture of noise with a bright rectangle near its middle, and its box."""
    picture = rng.integers(0, 60, (height, width, 3), np.uint8)
    left, top = int(width * rng.uniform(0.1, 0.35)), int(height * rng.uniform(0.1, 0.35))
    right, bottom = int(width * rng.uniform(0.6, 0.95)), int(height * rng.uniform(0.6, 0.95))
    picture[top:bottom, left:right] = rng.integers(
        196, 256, (bottom - top, right - left, 3), np.uint8
    )
    return picture, (left, top, right, bottom)


def bright_extent(profile: Array) -> tuple[float, float]:
    """Return the interpolated places, in edges of pixels, at which brightness passes the middle."""
    is_bright = np.flatnonzero(profile > 128)
    first, last = int(is_bright[0]), int(is_bright[-1])

    def share(inside: float, outside: float) -> float:
        return (inside - 128) / (inside - outside)

    low = first + 0.5 - share(profile[first], profile[first - 1]) if first else 0.0
    end = len(profile) - 1
    high = last + 0.5 + share(profile[last], profile[last + 1]) if last < end else end + 1.0
    return low, high


def drawn_box(stored: Array) -> tuple[float, float, float, float]:
    """Return the bright box, ymin, xmin, ymax, xmax in pixels, measured in its middle bands."""
    grey = stored.mean(axis=2)
    rows, columns = np.flatnonzero((grey > 128).any(1)), np.flatnonzero((grey > 128).any(0))
    middle_rows = slice(int(np.quantile(rows, 0.3)), int(np.quantile(rows, 0.7)) + 1)
    middle_columns = slice(int(np.quantile(columns, 0.3)), int(np.quantile(columns, 0.7)) + 1)
    top, bottom = bright_extent(grey[:, middle_columns].mean(axis=1))
    left, right = bright_extent(grey[middle_rows].mean(axis=0))
    return top, left, bottom, right


def placed(data: bytes, spec: ImageSpec) -> tuple[Array, Placement]:
    result = process_image(data, spec)
    assert isinstance(result, ProcessedImage), result
    assert result.placement.size == (result.height, result.width)
    stored = np.frombuffer(result.data, np.uint8).reshape(result.height, result.width, 3)
    return stored, result.placement


def objects(*arguments: Any) -> PlacedObjects:
    result = place_objects(*arguments)
    assert isinstance(result, PlacedObjects), result
    return result


def opened(data: bytes) -> Array:
    image = Image.open(io.BytesIO(data))
    assert image.mode == "L"
    return np.asarray(image)


def as_pillow(mask: Array, placement: Placement) -> Array:
    """Return the part of an upright mask that Pillow takes by NEAREST, of 8 bits.

    In 16 bits it rounds differently if a centre is between two pixels.
    """
    image = Image.fromarray(mask.astype(np.uint8))
    size = placement.fitted[::-1]
    return np.asarray(image.resize(size, Image.Resampling.NEAREST, box=placement.box))


# --- pixels, boxes and masks --------------------------------------------------------------------


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_box_and_mask_are_where_the_rectangle_is_drawn(orientation: int, fit: Fit) -> None:
    """Up to sizes at which a JPEG is decoded at half or a quarter, with odd sides."""
    form = FORMS[(orientation + 2 * FITS.index(fit)) % 3]
    rng = np.random.default_rng(100 * orientation + FITS.index(fit))
    height, width = (int(side) for side in rng.integers(200, 720, 2))
    size = int(rng.integers(80, 160)), int(rng.integers(80, 160))
    picture, box = rectangle_in_noise(rng, height, width)
    file = Image.fromarray(as_stored(picture, orientation))
    data = encoded(file, form, exif=oriented(orientation), quality=95)
    stored, placement = placed(data, image_spec(fit, size))
    left, top, right, bottom = box
    mask = np.zeros((height, width), np.uint8)
    mask[top:bottom, left:right] = 255
    annotation = Annotation(boxes=np.array([box], np.float64), labels=(0,))
    found = objects(annotation, (), placement, AnnotationSpec(boxes=True))
    by_mask = objects(Annotation(labels=(0,)), (grey_png(mask),), placement, INSTANCES)
    assert np.array_equal(found.boxes, by_mask.boxes)
    expected = drawn_box(stored)
    assert np.abs(found.boxes[0] * (placement.size * 2) - expected).max() < 1, (form, expected)
    seen = stored.mean(axis=2) > 128
    inside = opened(by_mask.masks[0]) > 0
    assert (seen & inside).sum() > 0.95 * (seen | inside).sum()


BARS = ((1560, 250, 1680, 1400), (120, 250, 241, 1400), (300, 1560, 1400, 1680),
        (300, 120, 1400, 241))  # fmt: skip


@cache
def with_bar(orientation: int, box: tuple[int, int, int, int]) -> bytes:
    picture = np.zeros((1801, 1801 + 2 * orientation, 3), np.uint8)
    left, top, right, bottom = box
    picture[top:bottom, left:right] = 255
    file = Image.fromarray(as_stored(picture, orientation))
    return encoded(file, "JPEG", exif=oriented(orientation), quality=95)


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch", "within"])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_a_box_is_where_its_pixels_are_if_the_decoder_rounds_the_sides_up(
    orientation: int, fit: Fit
) -> None:
    """At 1/8, the last column of 1801 pixels has seven pixels that are not in the image."""
    for box in BARS:
        data = with_bar(orientation, box)
        stored, placement = placed(data, image_spec(fit, (224, 224)))
        annotation = Annotation(boxes=np.array([box]), labels=(0,))
        found = objects(annotation, (), placement, AnnotationSpec(boxes=True))
        apart = found.boxes[0] * (placement.size * 2) - drawn_box(stored)
        assert np.abs(apart).max() < 0.2, (box, apart)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_annotations_in_the_stored_frame_end_at_the_same_place(orientation: int) -> None:
    """The size gives the frame after a quarter turn, else the option."""
    placement = Placement.fit((60, 90), ImageSpec(size=(40, 33), fit="pad"), orientation)
    mask = np.zeros((60, 90), np.uint8)
    mask[10:21, 33:80] = 1
    stored = as_stored(mask[..., None], orientation)[..., 0]
    rows, columns = (np.flatnonzero(stored.any(axis)) for axis in (1, 0))
    box = np.array([[columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]], np.float64)
    size = (stored.shape[0], stored.shape[1])
    upright = objects(Annotation(labels=(0,)), (grey_png(mask),), placement, INSTANCES)
    usual: tuple[Frame, ...] = FRAMES if orientation >= 5 else ("stored", "upright")
    spec = AnnotationSpec(boxes=True, masks="instances", is_binary=True, frames=usual)
    turned = objects(Annotation(labels=(0,)), (grey_png(stored),), placement, spec)
    spec = AnnotationSpec(boxes=True, frames=usual)
    by_box = objects(Annotation(boxes=box, labels=(0,), size=size), (), placement, spec)
    assert turned.masks == upright.masks
    np.testing.assert_allclose(turned.boxes, upright.boxes, atol=1e-6)
    np.testing.assert_allclose(by_box.boxes, upright.boxes, atol=1e-6)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_boxes_move_as_pillow_turns_pixels(orientation: int) -> None:
    for row, column in ((0, 0), (3, 1), (4, 6)):
        picture = np.zeros((5, 7), np.uint8)
        picture[row, column] = 255
        file = encoded(Image.fromarray(picture), "PNG", exif=oriented(orientation))
        upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(file))))
        size = (upright.shape[0], upright.shape[1])
        placement = Placement.whole(size, orientation)
        pixel = np.array([[column, row, column + 1.0, row + 1.0]])
        (left, top, right, bottom), *_ = placement.boxes(pixel, (5, 7), "stored").tolist()
        assert upright[int(top), int(left)] == 255
        assert (right, bottom) == (left + 1, top + 1)


@given(
    height=st.integers(1, 80), width=st.integers(1, 80),
    size=st.tuples(st.integers(1, 60), st.integers(1, 60)), fit=st.sampled_from(FITS),
    depth=st.sampled_from([np.uint8, np.uint16]),
)  # fmt: skip
def test_masks_have_the_pixels_of_pillow(
    height: int, width: int, size: tuple[int, int], fit: Fit, depth: Any
) -> None:
    placement = Placement.fit((height, width), image_spec(fit, size))
    mask = np.random.default_rng(0).integers(0, 250, (height, width)).astype(depth)
    (top, left), (rows, columns) = placement.corner, placement.fitted
    stored = placement.mask(mask, "upright", 251)
    assert stored.shape == placement.size
    assert stored.dtype == depth
    part = stored[top : top + rows, left : left + columns]
    assert np.array_equal(part, as_pillow(mask, placement))
    assert np.count_nonzero(stored == 251) == stored.size - part.size


@given(
    upright=st.tuples(st.integers(1, 500), st.integers(1, 500)),
    size=st.tuples(st.integers(1, 300), st.integers(1, 300)), fit=st.sampled_from(FITS),
    orientation=st.sampled_from(ORIENTATIONS),
)  # fmt: skip
def test_a_box_of_the_whole_image_covers_its_whole_place(
    upright: tuple[int, int], size: tuple[int, int], fit: Fit, orientation: int
) -> None:
    placement = Placement.fit(upright, image_spec(fit, size), orientation)
    frames: tuple[Frame, ...] = ("upright", "stored")
    for frame in frames:
        found = placement.boxes(np.array([[0.0, 0.0, 1.0, 1.0]]), (1, 1), frame)[0]
        (top, left), (rows, columns) = placement.corner, placement.fitted
        edges = np.array([left, top, left + columns, top + rows])
        if fit == "crop":
            assert ((found - edges) * (-1, -1, 1, 1) >= -1e-6).all()
        else:
            np.testing.assert_allclose(found, edges, atol=1e-9)


# --- frames -------------------------------------------------------------------------------------


def test_the_annotated_size_gives_the_frame() -> None:
    turned = Placement.whole((60, 90), 6)
    assert turned.frame((60, 90)) == "upright"
    assert turned.frame((90, 60)) == "stored"
    assert turned.frame((120, 181)) == "upright"
    assert turned.frame((45, 30)) == "stored"
    assert turned.frame(None) == turned.frame((0, 0)) == "upright"
    assert turned.frame((60, 60)) is None
    assert turned.frame((90, 60), ("upright",)) is None
    assert turned.frame((60, 90), ("stored", "upright")) == "upright"
    assert turned.frame(None, ("stored",)) == "stored"
    mirrored = Placement.whole((60, 90), 2)
    assert mirrored.frame((60, 90)) == "upright"
    assert mirrored.frame((90, 60)) is None


def test_a_resized_copy_gives_the_same_place() -> None:
    placement = Placement.fit((60, 90), ImageSpec(size=(24, 24), fit="crop"))
    boxes = np.array([[10.0, 20.0, 50.0, 60.0]])
    half = placement.boxes(boxes / 2, (30, 45), "upright")
    np.testing.assert_allclose(half, placement.boxes(boxes, (60, 90), "upright"))


@pytest.mark.parametrize("form", ["keep", "jpeg"])
def test_kept_and_encoded_images_have_their_placement(form: str) -> None:
    plain, with_exif = jpeg(48, 64), jpeg(48, 64, exif=oriented(1))
    for data in (plain, with_exif):
        result = process_image(data, ImageSpec(size=None, fit="none", format=form))  # type: ignore[arg-type]
        assert isinstance(result, ProcessedImage)
        assert result.placement == Placement.whole((48, 64))
    turned = process_image(jpeg(48, 64, exif=oriented(6)), ImageSpec(size=(20, 10), fit="stretch"))
    assert isinstance(turned, ProcessedImage)
    assert turned.placement.orientation == 6
    assert turned.placement.upright == (64, 48)
    assert turned.placement.box == (0, 0, 48, 64)


def test_a_turned_tiff_has_both_frames() -> None:
    """Pillow turns its pixels and its header while it loads them."""
    picture = np.zeros((30, 50, 3), np.uint8)
    stored = Image.fromarray(as_stored(picture, 8))
    data = encoded(stored, "TIFF", exif=oriented(8))
    result = process_image(data, image_spec("none", (1, 1)))
    assert isinstance(result, ProcessedImage)
    assert result.placement.frame_size("upright") == (30, 50)
    assert result.placement.frame_size("stored") == (50, 30)


def test_polygons_of_shares_follow_the_image() -> None:
    placement = Placement.fit((60, 90), ImageSpec(size=(30, 30), fit="stretch"))
    square = np.array([[0.2, 0.2], [0.6, 0.2], [0.6, 0.7], [0.2, 0.7]])
    annotation = Annotation(
        boxes=np.full((1, 4), np.nan),
        labels=(0,),
        outlines=(Polygons((square,)),),
        is_relative=True,
    )
    found = objects(annotation, (), placement, INSTANCES)
    np.testing.assert_allclose(found.boxes, [[0.2, 0.2, 0.7, 0.6]], atol=0.02)
