"""A contact sheet shows each picture with its boxes and masks where they are."""

from typing import Any

import numpy as np
import pytest

from shardprep.image.drawing import (
    AnnotatedPicture,
    Legend,
    class_colour,
    draw_contact_sheet,
    mask_layers,
)
from tests.support.annotated import grey_png

GREY = np.full((60, 100, 3), 128, np.uint8)
NAMES = Legend(objects=("red", "blue"))
BOX = np.array([[0.25, 0.2, 0.75, 0.6]])


def drawn(legend: Legend = NAMES, **picture: Any) -> Any:
    """Return the sheet of one picture of 100 x 60, twice as large, 8 pixels from the corner."""
    one = AnnotatedPicture(title="a", pixels=GREY, **picture)
    return np.asarray(draw_contact_sheet([one], legend, side=200))


def near(pixels: Any, colour: tuple[int, int, int]) -> Any:
    return (np.abs(pixels.astype(int) - colour) <= 2).all(axis=-1)


def test_a_box_is_drawn_around_its_object_in_the_colour_of_its_class() -> None:
    boxed = drawn(boxes=BOX, labels=(1,))
    (rows,) = np.nonzero(near(boxed[8:128, 8 + 110], class_colour(1)))  # beside its name
    _, columns = np.nonzero(near(boxed[8:128, 8:208], class_colour(1)))
    found = rows.min(), rows.max(), columns.min(), columns.max()
    assert np.abs(np.subtract(found, (30, 89, 40, 119))).max() <= 1
    assert (boxed[8 + 50 : 8 + 80, 8 + 60 : 8 + 100] == 128).all()
    assert not near(drawn(Legend())[8:128, 8:208], class_colour(1)).any()


def test_masks_are_drawn_over_their_pixels() -> None:
    mask = np.zeros((60, 100), np.uint8)
    mask[30:] = 1
    mask[:, :10] = 255
    sheet = drawn(Legend(mask=("background", "road")), mask=grey_png(mask))
    above, below, ignored = sheet[8 + 20, 8 + 100], sheet[8 + 100, 8 + 100], sheet[8 + 20, 8 + 5]
    assert (above == 128).all()  # a background is not painted
    assert np.abs(below - (0.55 * 128 + 0.45 * np.array(class_colour(1)))).max() <= 1
    assert (ignored < 90).all()
    one = np.zeros((60, 100), np.uint8)
    one[10:20, 10:20] = 1
    sheet = drawn(boxes=BOX, labels=(0,), masks=(grey_png(one),))
    expected = 0.55 * 128 + 0.45 * np.array(class_colour(0))
    assert np.abs(sheet[8 + 30, 8 + 30] - expected).max() <= 1
    assert (sheet[8 + 30, 8 + 150] == 128).all()


def test_pictures_of_all_shapes_are_drawn_in_rows() -> None:
    shapes = [(60, 100), (100, 60), (1, 400), (3, 3)] * 2
    pictures = [
        AnnotatedPicture(title=f"{i}", pixels=np.zeros((*shape, 3), np.uint8))
        for i, shape in enumerate(shapes)
    ]
    sheet = draw_contact_sheet(iter(pictures), Legend(), columns=3, side=50)
    assert sheet.width == 3 * 58 + 8
    assert sheet.height > 3 * 50


def test_pictures_are_taken_one_at_a_time() -> None:
    """Each may have a hundred megabytes."""
    import gc
    import weakref

    class Pixels(np.ndarray):
        """An array that can be watched."""

    alive: list[weakref.ref[Any]] = []
    most = 0

    def pictures() -> Any:
        nonlocal most
        for i in range(6):
            gc.collect()
            most = max(most, sum(one() is not None for one in alive))
            pixels = np.zeros((20, 20, 3), np.uint8).view(Pixels)
            alive.append(weakref.ref(pixels))
            yield AnnotatedPicture(title=str(i), pixels=pixels)
            del pixels

    gc.freeze()  # what other tests have left is not looked through again and again
    try:
        draw_contact_sheet(pictures(), Legend())
    finally:
        gc.unfreeze()
    assert most <= 2


@pytest.mark.parametrize(
    "mask",
    [b"", b"no PNG", grey_png(np.zeros((4, 4), np.uint8)), grey_png(GREY[..., 0])[:60]],
    ids=["empty", "no PNG", "another size", "cut"],
)
def test_boxes_are_drawn_if_a_mask_cannot_be_read(mask: bytes) -> None:
    assert near(drawn(boxes=BOX, labels=(1,), masks=(mask,)), class_colour(1)).any()


def test_boxes_of_any_numbers_are_not_an_error() -> None:
    corners = ([np.nan] * 4, [np.inf] * 4, [0.9, 0.9, 0.1, 0.1], [-5.0, -5.0, 1e30, 1e30])
    for boxes in (*(np.array([one]) for one in corners), np.zeros((2000, 4))):
        drawn(boxes=boxes, labels=(7,) * len(boxes))


def test_a_class_whose_name_is_its_number_is_named_once() -> None:
    """The second square of the legend follows "1" instead of "1 1"."""

    def gap(*names: str) -> int:
        sheet = drawn(Legend(mask=("x", *names)))
        first, second = (np.nonzero(near(sheet, class_colour(i)))[1].min() for i in (1, 2))
        return int(second - first)

    assert gap("1", "2") < gap("a", "b") == gap("2", "1")


@pytest.mark.parametrize(
    ("names", "painted"),
    [
        (("0", "1"), False),
        (("background", "road"), False),
        (("_background_", "1"), False),
        (("sky", "1"), True),
        (("1", "0"), True),
    ],
)
def test_class_0_without_a_name_does_not_paint_the_picture(
    names: tuple[str, str],
    painted: bool,  # noqa: FBT001
) -> None:
    mask = np.zeros((60, 100), np.uint8)
    mask[30:] = 1
    sheet = drawn(Legend(mask=names), mask=grey_png(mask))
    assert (sheet[8 + 20, 8 + 100] != 128).any() == painted
    assert (sheet[8 + 100, 8 + 100] != 128).any()
    assert near(sheet[136:], class_colour(0)).any() == painted  # nor is it in the legend
    assert near(sheet[136:], class_colour(1)).any()


@pytest.mark.parametrize("objects", [(), ("cell",), ("red", "blue")])
def test_each_object_has_its_own_colour(objects: tuple[str, ...]) -> None:
    places = np.arange(100) // 20 == np.arange(5)[:, None, None]
    masks = [grey_png(np.tile(place.astype(np.uint8), (60, 1))) for place in places]
    labels = (0, 0, 1, 0, 1) if len(objects) > 1 else (0,) * 5
    picture = AnnotatedPicture(title="a", pixels=GREY, labels=labels, masks=masks)
    layers = list(mask_layers(picture, Legend(objects=objects), (100, 60)))
    assert [int(where.sum()) for where, _ in layers] == [1200] * 5
    colours = [colour for _, colour in layers]
    assert len(set(colours)) == 5
    if len(objects) > 1:
        assert [colours[0], colours[2]] == [class_colour(0), class_colour(1)]


def test_titles_and_names_of_any_length_and_script_are_drawn() -> None:
    legend = Legend(objects=("猫" * 500, "b\n\x1b[31m"), mask=tuple(map(str, range(300))))
    picture = AnnotatedPicture(title="größe/" * 99, pixels=GREY, boxes=BOX, labels=(0,))
    assert draw_contact_sheet([picture], legend).width == 336
    assert draw_contact_sheet([], Legend()).mode == "RGB"


def test_neighbouring_classes_have_colours_far_apart() -> None:
    colours = np.array([class_colour(label) for label in range(60)])
    assert np.abs(np.diff(colours, axis=0)).sum(axis=1).min() > 90
    assert len({*map(tuple, colours.tolist())}) == 60
