"""Boxes that are not inside of their images: too many are a wrong reading, and an error."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shardprep.catalog.catalog import Catalog
from shardprep.catalog.objects.formats import box_format
from shardprep.errors import SourceError
from shardprep.image.annotation_types import Floats
from shardprep.recipe.object_rules import BoxForm
from tests.catalog.builders import catalog, objects_of
from tests.catalog.objects.written import HEIGHT, WIDTH, coco, voc, yolo
from tests.support.builders import png

NUM_IMAGES, NUM_BOXES = 5, 8
FORMS: tuple[BoxForm, ...] = ("xyxy", "xywh", "center")


def corners() -> Floats:
    """Return two corners, x and y, of the boxes of all images, those of an image together."""
    draw = np.random.default_rng(29)
    low = draw.integers(0, (WIDTH - 4, HEIGHT - 4), (NUM_IMAGES * NUM_BOXES, 2))
    high = draw.integers(low + 2, (WIDTH + 1, HEIGHT + 1))
    return np.concatenate((low, high), axis=1).astype(np.float64)


def rows() -> list[tuple[int, list[float]]]:
    """Return the number of an image and the corners of each of its boxes."""
    return [(i // NUM_BOXES, one) for i, one in enumerate(corners().tolist())]


def made(folder: Path, documents: dict[str, str], **keys: Any) -> Catalog:
    images = {f"images/{i}.png": png(HEIGHT, WIDTH, seed=i) for i in range(NUM_IMAGES)}
    texts = {key: text.encode() for key, text in documents.items()}
    return catalog(folder, {**images, **texts}, **keys)


def boxes(found: Catalog) -> Floats:
    """Return the boxes of all images in pixels."""
    several = []
    for item in found.items:
        sides = (WIDTH, HEIGHT) * 2 if objects_of(item).is_relative else (1,) * 4
        several.append(objects_of(item).boxes * sides)
    return np.concatenate(several)


def table(form: BoxForm, *, columns: str, is_cell: bool = False, share: bool = False) -> str:
    numbers = box_format.numbers(corners() / ((WIDTH, HEIGHT) * 2 if share else 1), form)
    cells = [",".join(f"{value:.8g}" for value in one) for one in numbers.tolist()]
    cells = [f'"[{one}]"' if is_cell else one for one in cells]
    pairs = zip(rows(), cells, strict=True)
    return "\n".join([f"id,{columns}", *(f"{image}.png,{cell}" for (image, _), cell in pairs)])


@pytest.mark.parametrize(("columns", "share"), [("a,b,c,d", False), ("bbox", True)])
@pytest.mark.parametrize("true", FORMS)
@pytest.mark.parametrize("asked", FORMS)
def test_a_reading_that_does_not_fit_names_the_one_that_does(
    tmp_path: Path, asked: BoxForm, true: BoxForm, columns: str, *, share: bool
) -> None:
    text = table(true, columns=columns, is_cell=columns == "bbox", share=share)
    option = f"csv:t.csv:id:{asked}({columns})"
    if asked != true:
        with pytest.raises(SourceError) as caught:
            made(tmp_path, {"t.csv": text}, boxes=option)
        assert f"of 40 boxes are not inside their images, read as {box_format.WORDS[asked]}" in str(
            caught.value
        )
        assert str(caught.value).count(".png") == 3
        hint = f"write {true}({columns}) instead of {columns}, or accept them with --max-clipped 1"
        assert hint in str(caught.value)
    option = f"csv:t.csv:id:{true}({columns})"
    found = boxes(made(tmp_path, {"t.csv": text}, boxes=option))
    np.testing.assert_allclose(found, corners(), atol=1e-5)


@pytest.mark.parametrize(
    ("names", "true"), [("x1,y1,x2,y2", "xywh"), ("x,y,w,h", "xyxy"), ("cx,cy,w,h", "xyxy")]
)
def test_names_of_columns_that_the_boxes_contradict_are_an_error(
    tmp_path: Path, names: str, true: BoxForm
) -> None:
    with pytest.raises(SourceError, match=rf"write {true}\({names}\) instead of"):
        made(tmp_path, {"t.csv": table(true, columns=names)}, boxes="csv:t.csv")


def test_columns_that_hold_no_boxes_are_an_error(tmp_path: Path) -> None:
    draw = np.random.default_rng(7)
    lines = [f"{image}.png,{','.join(map(str, draw.integers(0, 9999, 4)))}" for image, _ in rows()]
    text = "\n".join(["id,a,b,c,d", *lines])
    with pytest.raises(SourceError, match=r"boxes are not inside .*; correct the boxes, or accept"):
        made(tmp_path, {"t.csv": text}, boxes="csv:t.csv:id:xyxy(a,b,c,d)")


AS_WRITTEN: dict[str, BoxForm] = {"coco": "xywh", "yolo": "center", "voc": "xyxy"}
"""Format → the form of its four numbers."""


def written(form: str, numbers: Floats, *, size: tuple[int, int] | None = None) -> dict[str, str]:
    """Return documents that have these four numbers for the boxes, whatever they mean."""
    meant = box_format.corners(numbers, AS_WRITTEN[form])
    if form == "yolo":
        meant = meant * ((WIDTH, HEIGHT) * 2)
    sets: dict[str, list[tuple[str, list[float]]]] = {}
    for (image, _), box in zip(rows(), meant.tolist(), strict=True):
        sets.setdefault(str(image), []).append(("cat", box))
    return {"coco": coco, "yolo": yolo, "voc": voc}[form](sets, ["cat"], size)


SHARES = corners() / ((WIDTH, HEIGHT) * 2)
AS_CENTER, AS_SIZE = (box_format.numbers(corners(), form) for form in ("center", "xywh"))


@pytest.mark.parametrize(
    ("form", "numbers", "size", "fits"),
    [
        ("coco", corners(), None, "two corners (xyxy) in pixels"),
        ("coco", corners(), (HEIGHT, WIDTH), "two corners (xyxy) in pixels"),
        ("coco", box_format.numbers(SHARES, "xywh"), None,
         "corner, width and height (xywh) in shares of the sides"),
        ("yolo", SHARES, None, "two corners (xyxy) in shares of the sides"),
        ("yolo", AS_CENTER, None, "center, width and height (center) in pixels"),
        ("voc", AS_SIZE, None, "corner, width and height (xywh) in pixels"),
    ],
)  # fmt: skip
def test_boxes_in_the_form_of_another_format_are_an_error_that_names_the_form(
    tmp_path: Path, form: str, numbers: Floats, size: tuple[int, int] | None, fits: str
) -> None:
    documents = written(form, numbers, size=size)
    with pytest.raises(SourceError) as caught:
        made(tmp_path, documents, boxes=form)
    assert f"they fit as {fits}, which the format does not use" in str(caught.value)
    assert str(caught.value).count(".png") == 3
    made(tmp_path, documents, boxes=form, max_clipped=1, max_dropped=1)


@pytest.mark.parametrize(
    ("form", "numbers"),
    [("coco", AS_SIZE), ("yolo", box_format.numbers(SHARES, "center")), ("voc", corners())],
)
def test_boxes_inside_their_images_pass(tmp_path: Path, form: str, numbers: Floats) -> None:
    found = boxes(made(tmp_path, written(form, numbers), boxes=form, max_clipped=0))
    np.testing.assert_allclose(found, corners(), atol=1e-5)


@pytest.mark.parametrize("num_far", [4, 5])
def test_a_tenth_of_the_boxes_may_pass_the_edge_and_no_more(tmp_path: Path, num_far: int) -> None:
    numbers = corners()
    numbers[:num_far, 2] = WIDTH + 9
    if num_far > 4:
        with pytest.raises(SourceError, match="5 of 40 boxes are not inside their images"):
            made(tmp_path, written("voc", numbers), boxes="voc")
    found = made(tmp_path, written("voc", numbers), boxes="voc", max_clipped=num_far / 40)
    assert len(boxes(found)) == 40


@given(arrays(np.float64, (5, 4), elements=st.floats(-1e6, 1e6)), st.sampled_from(FORMS))
@settings(max_examples=50, deadline=None)
def test_numbers_are_what_corners_are_read_from(values: Floats, form: BoxForm) -> None:
    read = box_format.corners(values, form)
    np.testing.assert_allclose(box_format.numbers(read, form), values, atol=1e-6)
