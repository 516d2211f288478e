"""Every object is stored at its place in the stored image, or dropped with a reason."""

import io
import itertools
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from shardprep.image.annotation_types import (
    IS_CROWD,
    Annotation,
    AnnotationSpec,
    Counts,
    Polygons,
    Runs,
    Segment,
)
from shardprep.image.annotations import PlacedObjects, place_objects
from shardprep.image.boxes import Reason
from shardprep.image.placement import Placement
from shardprep.image.png import encoded_png as png
from shardprep.image.process import Rejection
from shardprep.image.spec import Fit, ImageSpec
from tests.support.builders import encoded
from tests.support.odd_images import Array

NAN = float("nan")
WHOLE = Placement.whole((100, 200))
BOXES = AnnotationSpec(boxes=True, num_classes=3)
CLASSES = AnnotationSpec(masks="classes", num_classes=4)
INSTANCES = AnnotationSpec(boxes=True, masks="instances", num_classes=3)
FILES = AnnotationSpec(boxes=True, masks="instances", num_classes=3, is_binary=True)


def annotated(boxes: Sequence[Any], **keys: Any) -> Annotation:
    keys.setdefault("labels", (0,) * len(boxes))
    return Annotation(boxes=np.array(boxes, np.float64).reshape(-1, 4), **keys)


def stored(
    annotation: Annotation,
    files: Sequence[bytes] = (),
    placement: Placement = WHOLE,
    spec: AnnotationSpec = BOXES,
) -> PlacedObjects:
    result = place_objects(annotation, files, placement, spec)
    assert isinstance(result, PlacedObjects), result
    boxes = result.boxes
    assert boxes.dtype == np.float32
    assert boxes.shape == (len(result.labels), 4)
    assert ((boxes >= 0) & (boxes <= 1)).all()
    assert (boxes[:, :2] < boxes[:, 2:]).all()
    assert set(result.dropped) <= {*get_args(Reason), *annotation.dropped}
    return result


def rejection(
    annotation: Annotation,
    files: Sequence[bytes] = (),
    placement: Placement = WHOLE,
    spec: AnnotationSpec = BOXES,
) -> Rejection:
    result = place_objects(annotation, files, placement, spec)
    assert isinstance(result, Rejection), result
    assert len(result.reason.splitlines()) == 1
    return result


def cropped(height: int, width: int, size: tuple[int, int], fit: Fit = "crop") -> Placement:
    return Placement.fit((height, width), ImageSpec(size=size, fit=fit))


def values(data: bytes) -> Array:
    image = Image.open(io.BytesIO(data))
    assert image.mode in ("L", "I;16")
    return np.asarray(image)


def mask_of(*box: int, size: tuple[int, int] = (100, 200)) -> NDArray[np.uint8]:
    left, top, right, bottom = box
    mask = np.zeros(size, np.uint8)
    mask[top:bottom, left:right] = 1
    return mask


def rectangle(left: float, top: float, right: float, bottom: float) -> Polygons:
    return Polygons((np.array([[left, top], [right, top], [right, bottom], [left, bottom]]),))


# --- boxes --------------------------------------------------------------------------------------


def test_boxes_are_shares_of_the_stored_image_with_y_first() -> None:
    found = stored(annotated([[20, 10, 100, 60], [0, 0, 200, 100]], labels=(2, 1)))
    expected = np.array([[0.1, 0.1, 0.6, 0.5], [0, 0, 1, 1]])
    np.testing.assert_allclose(found.boxes, expected, atol=1e-7)
    assert found.labels == (2, 1)
    assert (found.attributes, found.masks, found.segmentation_mask) == ({}, (), b"")
    assert (found.num_clipped, found.dropped) == (0, {})


def test_an_object_that_cannot_be_stored_is_dropped_with_a_reason() -> None:
    sound = [10.0, 10, 50, 50]
    boxes = [
        sound, [NAN, 1, 2, 3], [1, 2, float("inf"), 9], [30, 30, 30, 40], [40, 40, 20, 60],
        [-9, 10, 0, 20], [200, 10, 230, 20], [10, -7, 20, -1], [10, 100, 20, 120],
        sound, sound, [10, 10, 50, 51], sound, sound,
    ]  # fmt: skip
    labels = (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 3, -1)
    found = stored(annotated(boxes, labels=labels, dropped={"unknown class": 4, "odd": 1}))
    assert found.labels == (0, 1, 0)
    assert found.dropped == {
        "not finite": 2, "reversed": 1, "zero size": 1, "outside": 4, "repeated": 1,
        "unknown class": 6, "odd": 1,
    }  # fmt: skip


def test_a_box_past_the_edge_is_clipped_and_counted_beyond_rounding() -> None:
    boxes = [[-5, 10, 20, 30], [10, 10, 200.0005, 30], [-0.0005, 0, 9, 9], [190, 90, 205, 100.5]]
    found = stored(annotated(boxes))
    assert found.num_clipped == 2
    assert found.boxes[0].tolist() == pytest.approx([0.1, 0, 0.3, 0.1])
    shares = annotated([[0.5, 0.5, 1.0000005, 1.0000005], [0.9, 0.9, 1.1, 1]], is_relative=True)
    assert stored(shares).num_clipped == 1
    assert stored(shares).boxes.max() == 1
    found = stored(annotated([[-9, 0, 9, 9]] * 2 + [[-9, 0, -1, 9]]))
    assert (found.num_clipped, found.dropped) == (1, {"repeated": 1, "outside": 1})


def test_a_crop_drops_the_objects_that_it_cuts_away() -> None:
    """From 200x100 to a square of 50: 50 source pixels are lost at each side, half remains."""
    placement = cropped(100, 200, (50, 50))
    boxes = [
        [20, 20, 55, 60],  # 5 of 35 remain
        [20, 20, 53, 60],  # 3 of 33
        [20, 20, 50, 60],  # none
        [48, 20, 51.9, 60],  # half, less than a stored pixel
        [100, 50, 101, 51],  # whole, half a stored pixel
    ]
    found = stored(annotated(boxes), placement=placement)
    assert found.dropped == {"cut away": 3}
    assert found.boxes[0].tolist() == pytest.approx([0.2, 0, 0.6, 0.05])
    keen = AnnotationSpec(boxes=True, num_classes=3, min_visible=0.5)
    assert stored(annotated(boxes), placement=placement, spec=keen).dropped == {"cut away": 4}


def test_boxes_too_thin_for_float32_have_zero_size() -> None:
    found = stored(annotated([[199.0, 10, 199.0 + 1e-12, 20], [1, 1, 2, 2]]))
    assert (len(found.boxes), found.dropped) == (1, {"zero size": 1})


def test_attributes_stay_with_their_boxes_and_are_0_if_they_are_not_stated() -> None:
    spec = AnnotationSpec(boxes=True, attributes=("is_crowd", "places"), num_classes=3)
    boxes = [[1, 1, 5, 5], [9, 9, 9, 9], [2, 2, 7, 7]]
    given = {"is_crowd": np.array([0.0, 1, 1]), "places": np.arange(6.0).reshape(3, 2)}
    found = stored(annotated(boxes, attributes=given), spec=spec).attributes
    assert {name: values.tolist() for name, values in found.items()} == {
        "is_crowd": [0, 1], "places": [[0, 1], [4, 5]],
    }  # fmt: skip
    bare = stored(annotated(boxes), spec=replace(spec, attributes=("is_crowd",))).attributes
    assert bare["is_crowd"].tolist() == [0, 0]


def test_annotations_that_cannot_be_used_reject_the_image() -> None:
    assert rejection(Annotation(fault="line 3: no number")) == Rejection(
        "bad_annotation", "line 3: no number"
    )
    found = rejection(annotated([[1, 1, 5, 5]], size=(100, 100)))
    assert found.kind == "bad_annotation"
    assert "100x100" in found.reason
    assert "200x100" in found.reason


@given(
    boxes=st.lists(st.tuples(*[st.floats(allow_nan=True, width=32)] * 4), max_size=6),
    fit=st.sampled_from(get_args(Fit)), orientation=st.integers(1, 8), is_relative=st.booleans(),
)  # fmt: skip
def test_any_numbers_are_stored_as_boxes_or_dropped(
    boxes: list[tuple[float, ...]],
    fit: Fit,
    orientation: int,
    is_relative: bool,  # noqa: FBT001
) -> None:
    spec = ImageSpec(size=None if fit == "none" else (30, 50), fit=fit)
    placement = Placement.fit((70, 40), spec, orientation)
    found = stored(annotated(boxes, is_relative=is_relative), placement=placement)
    assert len(found.boxes) + sum(found.dropped.values()) == len(boxes)


SIDES = st.one_of(st.integers(0, 8).map(lambda n: n / 8), st.floats(-0.125, 1.125, width=32))
"""Corners as shares of a side: edges and repeated places often, some beyond the image."""
LABELS = st.sampled_from((0, 1, 2, 0, 1, 2, 0, 3, -1))
"""Mostly classes of three."""


def test_repeated_boxes_are_found_among_few_and_among_many() -> None:
    rng = np.random.default_rng(0)
    for number in (40, 4000):
        corners = rng.integers(0, 40, (number, 2))
        boxes = np.hstack([corners, corners + rng.integers(1, 4, (number, 2))]).astype(float)
        labels = tuple(rng.integers(0, 3, number).tolist())
        found = stored(Annotation(boxes=boxes, labels=labels))
        rows = [(*box, label) for box, label in zip(boxes.tolist(), labels, strict=True)]
        first = list(dict.fromkeys(rows))
        assert found.dropped.get("repeated", 0) == number - len(first)
        expected = np.array([row[:4] for row in first])[:, (1, 0, 3, 2)] / (100, 200, 100, 200)
        np.testing.assert_allclose(found.boxes, expected, atol=1e-6)
        assert found.labels == tuple(row[4] for row in first)


@pytest.mark.thorough
def test_half_a_million_boxes_take_seconds_and_150_mb() -> None:
    code = """
import resource, time
import numpy as np
from shardprep.image.annotation_types import Annotation, AnnotationSpec
from shardprep.image.annotations import place_objects
from shardprep.image.placement import Placement
from shardprep.image.spec import ImageSpec
boxes = np.random.default_rng(0).uniform(0, 3000, (500_000, 4))
boxes[:, 2:] += boxes[:, :2]
annotation = Annotation(boxes=boxes, labels=(0,) * len(boxes))
placement = Placement.fit((3000, 4000), ImageSpec())
before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
place_objects(annotation, (), placement, AnnotationSpec(boxes=True))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(after - before >> 10, time.process_time() - start)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    megabytes, seconds = map(float, done.stdout.split())
    assert megabytes < 150
    assert seconds < 10


# --- masks of objects ---------------------------------------------------------------------------


def test_an_object_without_a_box_gets_the_box_of_its_mask() -> None:
    """The outer edges of its pixels, whatever form the mask has."""
    mask = mask_of(20, 10, 60, 31)
    counts = Counts(
        (20 * 100 + 10, *itertools.chain(*[(21, 79)] * 39), 21, 69 + 140 * 100), (100, 200)
    )
    runs = Runs(" ".join(f"{x * 100 + 11} 21" for x in range(20, 60)), "column")
    outlines = (counts, runs, rectangle(20, 10, 60, 31))
    for outline in outlines:
        found = stored(annotated([[NAN] * 4], outlines=(outline,)), spec=INSTANCES)
        assert found.boxes[0].tolist() == pytest.approx([0.1, 0.1, 0.31, 0.3])
        assert np.array_equal(values(found.masks[0]), mask)
    alone = stored(annotated([[NAN] * 4], outlines=(runs,)))
    assert alone.boxes[0].tolist() == pytest.approx([0.1, 0.1, 0.31, 0.3])
    assert alone.masks == ()


def test_masks_stay_with_their_boxes() -> None:
    boxes = [[10, 10, 20, 20], [9, 9, 9, 9], [NAN] * 4, [30, 30, 60, 50], [70, 10, 80, 20]]
    outlines = (
        rectangle(10, 10, 20, 20), rectangle(0, 0, 5, 5), rectangle(100, 20, 150, 60), None,
        rectangle(70, 10, 80, 20),
    )  # fmt: skip
    labels = (0, 1, 2, 0, 1)
    found = stored(annotated(boxes, labels=labels, outlines=outlines), spec=INSTANCES)
    assert found.labels == (0, 2, 1)
    assert found.dropped == {"zero size": 1, "no outline": 1}
    for box, mask in zip(found.boxes, found.masks, strict=True):
        pixels = values(mask)
        assert set(np.unique(pixels)) == {0, 1}
        rows, columns = np.nonzero(pixels)
        extent = [rows.min() / 100, columns.min() / 200, (rows.max() + 1) / 100]
        assert box.tolist() == pytest.approx([*extent, (columns.max() + 1) / 200], abs=0.011)


def test_equal_boxes_with_different_shapes_are_not_repeated() -> None:
    corner = Polygons((np.array([[10.0, 10], [50, 10], [10, 50]]),))
    other = Polygons((np.array([[50.0, 10], [50, 50], [10, 50]]),))
    boxes = [[10, 10, 50, 50]] * 3
    found = stored(annotated(boxes, outlines=(corner, other, corner)), spec=INSTANCES)
    assert (len(found.masks), found.dropped) == (2, {"repeated": 1})


def test_an_object_without_a_stored_pixel_is_dropped() -> None:
    tiny = rectangle(101, 50, 102, 51)
    annotation = annotated([[101, 50, 102, 51]], outlines=(tiny,))
    for fit, reason in (("pad", "too small"), ("crop", "cut away")):
        placement = cropped(100, 200, (4, 4), fit)  # type: ignore[arg-type]
        found = stored(annotation, placement=placement, spec=INSTANCES)
        assert (found.masks, found.dropped) == ((), {reason: 1})
    empty = stored(annotated([[NAN] * 4], outlines=(Polygons(()),)), spec=INSTANCES)
    assert empty.dropped == {"zero size": 1}


def test_each_binary_file_is_an_object() -> None:
    files = [png(mask_of(*box) * 255) for box in ((10, 10, 20, 20), (0, 0, 0, 0), (50, 5, 90, 80))]
    files.append(files[0])
    found = stored(Annotation(labels=(1, 1, 2, 1)), files, spec=FILES)
    assert found.labels == (1, 2)
    assert found.dropped == {"zero size": 1, "repeated": 1}
    assert found.boxes[1].tolist() == pytest.approx([0.05, 0.25, 0.8, 0.45])
    assert stored(Annotation(), files[:1], spec=FILES).labels == (0,)


def test_each_number_of_a_file_is_an_object() -> None:
    """As in Penn-Fudan's masks; 255 is the border between objects."""
    ids = mask_of(10, 10, 20, 20) * 1 + mask_of(30, 30, 60, 60) * 7
    ids[30:60, 60] = 255
    found = stored(Annotation(), (png(ids),), spec=INSTANCES)
    assert found.labels == (0, 0)
    assert np.array_equal(values(found.masks[1]), mask_of(30, 30, 60, 60))
    table = replace(INSTANCES, background=255, values={0: 255, 1: 2, 7: 0, 255: 255})
    assert stored(Annotation(), (png(ids),), spec=table).labels == (0, 2)


def test_boxes_and_masks_without_a_known_order_reject_the_image() -> None:
    found = rejection(annotated([[1, 1, 5, 5]]), (png(mask_of(1, 1, 5, 5)),), spec=FILES)
    assert found.kind == "bad_annotation"


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_mask_of_another_size_rejects_the_image(orientation: int) -> None:
    placement = Placement.whole((100, 200), orientation)
    for size in ((100, 100), (200, 300)):
        found = rejection(Annotation(), (png(np.zeros(size, np.uint8)),), placement, FILES)
        assert found.kind == "bad_mask"
        assert f"{size[1]}x{size[0]}" in found.reason
    half = stored(Annotation(), (png(mask_of(10, 5, 30, 15, size=(50, 100))),), placement, FILES)
    assert half.boxes[0].tolist() == pytest.approx([0.1, 0.1, 0.3, 0.3])
    turned = png(np.zeros((200, 100), np.uint8))
    result = place_objects(Annotation(), (turned,), placement, FILES)
    assert isinstance(result, PlacedObjects if orientation == 6 else Rejection)


def test_a_bad_mask_is_named_with_its_reason() -> None:
    annotation = annotated([[NAN] * 4] * 2, outlines=(rectangle(1, 1, 9, 9), Runs("0 1", "row")))
    found = rejection(annotation, spec=INSTANCES)
    assert found.kind == "bad_mask"
    assert (
        found.reason == "the mask of object 2 has a run that starts at 0, but the first pixel is 1"
    )
    huge = Counts((10**10,), (50_000, 100_000))
    assert (
        "100000x50000" in rejection(annotated([[NAN] * 4], outlines=(huge,)), spec=CLASSES).reason
    )
    nothing = Counts((), (0, -5))
    assert "-5x0" in rejection(annotated([[NAN] * 4], outlines=(nothing,)), spec=CLASSES).reason
    files = (png(mask_of(1, 1, 5, 5)), b"GIF89a")
    assert rejection(Annotation(), files, spec=FILES).reason.startswith("mask 2 of 2 ")
    colours = encoded(Image.new("RGB", (200, 100), (1, 2, 3)), "PNG")
    assert "has colours" in rejection(Annotation(), (colours,), spec=INSTANCES).reason


# --- masks of classes ---------------------------------------------------------------------------


def test_index_files_are_stored_unchanged() -> None:
    mask = np.random.default_rng(0).choice(np.array([0, 1, 3, 255], np.uint8), (100, 200))
    found = stored(Annotation(), (png(mask),), spec=CLASSES)
    assert np.array_equal(values(found.segmentation_mask), mask)
    assert found.num_ignored == np.count_nonzero(mask == 255)
    assert found.pixels == {value: np.count_nonzero(mask == value) for value in (0, 1, 3)}
    assert (len(found.boxes), found.labels) == (0, ())


def test_later_files_and_objects_win_and_crowds_are_ignored() -> None:
    first, second = (10, 10, 60, 60), (40, 40, 90, 90)
    expected = mask_of(*first) * 2
    expected[mask_of(*second) > 0] = 1
    binary = AnnotationSpec(masks="classes", num_classes=4, is_binary=True)
    files = [png(mask_of(*box)) for box in (first, second)]
    by_files = stored(Annotation(labels=(2, 1)), files, spec=binary)
    assert np.array_equal(values(by_files.segmentation_mask), expected)
    layers = [png(mask_of(*first) * 2), png(mask_of(*second))]
    by_layers = stored(Annotation(), layers, spec=CLASSES)
    assert by_layers.segmentation_mask == by_files.segmentation_mask
    outlines = (rectangle(*first), None, rectangle(*second), rectangle(0, 0, 9, 9))
    objects = annotated([[NAN] * 4] * 4, labels=(2, 1, 1, 9), outlines=outlines)
    by_outlines = stored(objects, spec=CLASSES)
    assert by_outlines.segmentation_mask == by_files.segmentation_mask
    assert by_outlines.dropped == {"no outline": 1, "unknown class": 1}
    crowd = annotated(
        [[NAN] * 4], labels=(2,), outlines=(rectangle(*first),), attributes={IS_CROWD: np.ones(1)}
    )
    assert stored(crowd, spec=CLASSES).num_ignored == 2500


WIDE = AnnotationSpec(masks="classes", num_classes=300)
BINARY = AnnotationSpec(masks="classes", num_classes=4, is_binary=True)
VALUES = AnnotationSpec(masks="classes", num_classes=4, values={0: 0, 1: 2})
NO_GROUND = AnnotationSpec(masks="classes", num_classes=4, background=255)
OUTLINED = {"boxes": [[NAN] * 4], "labels": (2,)}
FILE = mask_of(0, 0, 200, 50)


@pytest.mark.parametrize(
    ("annotation", "files", "spec"),
    [
        (Annotation(), (png(FILE * 2),), CLASSES),
        (Annotation(), (png(FILE * 2),), NO_GROUND),
        (Annotation(), (png(FILE * 2),), WIDE),
        (Annotation(), (png(FILE),), VALUES),
        (Annotation(labels=(2,)), (png(FILE),), BINARY),
        (Annotation(labels=(2, 2)), (png(FILE), png(FILE)), BINARY),
        (annotated(**OUTLINED, outlines=(rectangle(0, 0, 200, 50),)), (), CLASSES),
        (annotated(**OUTLINED, outlines=(Runs("1 10000", "row"),)), (), WIDE),
        (annotated(**OUTLINED, outlines=(Counts((0, *[50] * 400), (100, 200)),)), (), CLASSES),
        (Annotation(), (), CLASSES),
    ],
)
def test_the_padding_of_class_masks_is_ignored(
    annotation: Annotation, files: tuple[bytes, ...], spec: AnnotationSpec
) -> None:
    found = stored(annotation, files, cropped(100, 200, (50, 50), "pad"), spec)
    mask = values(found.segmentation_mask)
    ignore = 65_535 if spec is WIDE else 255
    assert (mask[[*range(12), *range(37, 50)]] == ignore).all()
    is_object = bool(annotation.labels or files)
    assert (mask[12:24] == (2 if is_object else 0)).all()
    assert (mask[25:37] == 0).all()
    assert found.num_ignored == 25 * 50
    assert sum(found.pixels.values()) == 25 * 50


def test_the_padding_of_object_masks_is_empty() -> None:
    placement = cropped(100, 200, (50, 50), "pad")
    outline = annotated([[0, 0, 200, 100]], outlines=(rectangle(0, 0, 200, 100),))
    for found in (
        stored(outline, (), placement, INSTANCES),
        stored(Annotation(), (png(mask_of(0, 0, 200, 100)),), placement, FILES),
    ):
        (mask,) = map(values, found.masks)
        assert np.array_equal(mask, mask_of(0, 12, 50, 37, size=(50, 50)))


def test_masks_of_many_classes_have_16_bits() -> None:
    spec = AnnotationSpec(masks="classes", num_classes=300, background=65_535)
    mask = np.array([[0, 255, 299, 65_535]], np.uint16)
    found = stored(Annotation(), (png(mask),), Placement.whole((1, 4)), spec)
    assert np.array_equal(values(found.segmentation_mask), mask)
    assert (found.pixels, found.num_ignored) == ({0: 1, 255: 1, 299: 1}, 1)


def test_an_image_may_have_boxes_and_a_class_mask() -> None:
    spec = AnnotationSpec(boxes=True, masks="classes", num_classes=4)
    file = png(mask_of(5, 5, 9, 9))
    found = stored(annotated([[10, 10, 20, 20]], labels=(3,)), (file,), spec=spec)
    assert found.labels == (3,)
    assert found.segmentation_mask == stored(Annotation(), (file,), spec=CLASSES).segmentation_mask
    assert stored(Annotation(labels=(2,)), (file,), spec=spec).labels == ()


# --- segments of a panoptic mask ----------------------------------------------------------------

PANOPTIC = AnnotationSpec(masks="classes", num_classes=4, is_panoptic=True, background=255)
THINGS = AnnotationSpec(boxes=True, masks="instances", num_classes=4, is_panoptic=True)


def colours_of(ids: NDArray[Any]) -> Image.Image:
    """Return ids as colours, by the arithmetic of panopticapi (utils.py, id2rgb)."""
    channels = [ids.astype(np.int64) // 256**i % 256 for i in range(3)]
    return Image.fromarray(np.stack(channels, -1).astype(np.uint8))


def coloured(ids: NDArray[Any], form: str = "PNG") -> bytes:
    return encoded(colours_of(ids), form)


def segments(things: dict[int, int], stuff: dict[int, int], **keys: Any) -> Annotation:
    """Return an annotation with the ids of segments and their classes, without boxes."""
    areas = tuple((Segment(id_), label) for id_, label in stuff.items())
    outlines, labels = tuple(map(Segment, things)), tuple(things.values())
    return annotated(
        [(NAN,) * 4] * len(things), labels=labels, outlines=outlines, areas=areas, **keys
    )


@pytest.mark.parametrize("orientation", range(1, 9))
def test_segments_become_classes_and_objects(orientation: int) -> None:
    """Of every kind of colour: grey ones, and ids of one, two and three bytes."""
    rng = np.random.default_rng(orientation)
    palette = np.array([0, 7, 300, 70_000, 0x0A0A0A, 0xFFFFFF])
    ids = np.kron(palette[rng.integers(0, 6, (10, 20))], np.ones((10, 10), int))
    placement = Placement.whole((100, 200), orientation)
    things = {7: 0, 0x0A0A0A: 1, 300: 1}
    one = segments(things, {70_000: 3}, attributes={IS_CROWD: np.array([0.0, 0, 1])})
    mask = values(stored(one, [coloured(ids)], placement, PANOPTIC).segmentation_mask)
    expected = np.full(ids.shape, 255, np.uint8)
    for id_, label in {**things, 70_000: 3}.items():
        expected[ids == id_] = label
    np.testing.assert_array_equal(mask, expected)
    objects = stored(one, [coloured(ids)], placement, THINGS)
    assert objects.labels == (0, 1, 1)
    for id_, data in zip(things, objects.masks, strict=True):
        np.testing.assert_array_equal(values(data), ids == id_)


def test_padding_and_pixels_without_a_segment_are_ignored() -> None:
    placement = Placement.fit((100, 200), ImageSpec(size=(80, 80), fit="pad"))
    ids = np.full((100, 200), 5)
    ids[:50] = 6
    found = stored(segments({5: 2}, {}), [coloured(ids)], placement, PANOPTIC)
    mask = np.full((80, 80), 255)
    mask[40:60] = 2
    assert np.array_equal(values(found.segmentation_mask), mask)
    assert found.pixels == {2: 1600}
    nothing = stored(Annotation(), [], placement, PANOPTIC)
    assert nothing.num_ignored == 6400
    assert stored(Annotation(), [], placement, THINGS).masks == ()


def test_segments_of_more_than_254_classes() -> None:
    wide = AnnotationSpec(masks="classes", num_classes=300, is_panoptic=True, background=65_535)
    found = stored(segments({}, {4: 299}), [coloured(np.full((100, 200), 4))], spec=wide)
    assert found.pixels == {299: 20_000}


def test_a_segment_without_a_pixel_is_dropped_and_a_mask_without_any_is_rejected() -> None:
    ids = np.full((100, 200), 5)
    found = stored(segments({5: 2, 6: 1}, {}), [coloured(ids)], spec=THINGS)
    assert (found.labels, found.dropped) == ((2,), {"zero size": 1})
    boxed = annotated([(0, 0, 9, 9)] * 2, outlines=(Segment(5), Segment(6)), labels=(0, 1))
    assert stored(boxed, [coloured(ids)], spec=THINGS).dropped == {"no outline": 1}
    for spec in (PANOPTIC, THINGS):
        wrong = rejection(segments({7: 0}, {8: 1}), [coloured(ids)], spec=spec)
        assert wrong == Rejection("bad_mask", "none of the listed segments is in the mask")


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ([b"no image"], "the mask is not a readable image"),
        ([coloured(np.full((100, 200), 5), "JPEG")], "the mask is a JPEG, which does not keep"),
        ([coloured(np.full((30, 200), 5))], "the mask is of 200x30 pixels, but its image has"),
        ([], "has 0 mask files"),
        ([coloured(np.full((100, 200), 5))] * 2, "has 2 mask files"),
    ],
)  # fmt: skip
def test_an_unusable_mask_of_segments_rejects_the_image(files: list[bytes], reason: str) -> None:
    for spec in (PANOPTIC, THINGS):
        found = rejection(segments({5: 0}, {}), files, spec=spec)
        assert found.kind == "bad_mask"
        assert reason in found.reason


def test_colours_that_are_not_rgb_are_ids_of_segments() -> None:
    """JPEG's colours in a TIFF file; the ids are those of its RGB colours."""
    file = encoded(colours_of(np.full((100, 200), 0x40_80_C0)).convert("YCbCr"), "TIFF")
    red, green, blue = np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))[0, 0].tolist()
    number = red | green << 8 | blue << 16
    assert stored(segments({number: 1}, {}), [file], spec=PANOPTIC).pixels == {1: 20_000}


def test_an_outline_with_a_number_too_large_for_numpy_rejects_the_image() -> None:
    file = png(mask_of(0, 0, 9, 9))
    for found in (
        rejection(segments({1: 1, 1 << 63: 1}, {}), [file], spec=PANOPTIC),
        rejection(annotated([[1, 1, 5, 5]], outlines=(Counts("0", (10**400, 1)),)), spec=INSTANCES),
    ):
        assert found.kind == "bad_mask"


def test_ids_without_colours_are_values() -> None:
    """Grey of 8 and 16 bits, and a palette, whose colours count."""
    ids = np.full((100, 200), 5, np.uint8)
    ids[:50] = 200
    wide = ids.astype(np.uint16) * 100
    palette = colours_of(ids).convert("P", palette=Image.Palette.ADAPTIVE)
    for file, one, two in ((png(ids), 5, 200), (png(wide), 500, 20_000),
                           (encoded(palette, "PNG"), 5, 200)):  # fmt: skip
        found = stored(segments({one: 1, two: 2}, {}), [file], spec=PANOPTIC)
        assert found.pixels == {1: 10_000, 2: 10_000}
