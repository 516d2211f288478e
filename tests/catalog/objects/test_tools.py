"""The files of annotation tools: LabelMe's and VIA's."""

import base64
import io
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shardprep.errors import SourceError
from shardprep.image.annotation_types import Polygons, Runs
from shardprep.image.rasterize import outline_mask
from tests.support.annotated import source
from tests.support.paths import DATA, data_rows

EMPTY = '{"shapes": [], "imagePath": "x"}'
RING = (
    '{"shapes": [{"label": "cat", "points": [[0, 0], [4, 0], [4, 4]]}], '
    r'"imagePath": "..\\imgs\\b.png"}'
)


def test_shapes_of_labelme(tmp_path: Path) -> None:
    text = (DATA / "labelme.json").read_text()
    made = source(tmp_path, {"a.json": text}, "a.png", "b.png")
    found = made.read("labelme", outlines=True)
    one = made.of(found, "a.png")
    assert found.names == ("ant", "cat", "dog")
    names = [name for name, _ in made.rows(found)["a.png"]]
    assert names == ["cat", "ant", "dog", "cat"]
    wanted = [[1, 2, 9, 8], [0, 0, 4, 4], [0, 0, 9, 9], [5, 5, 15, 15]]
    np.testing.assert_allclose(one.boxes, wanted, atol=0.02)
    assert one.dropped == {"malformed": 2, "shape 'line'": 1}
    assert found.findings == [
        "1 point of LabelMe: not stored without --points labelme instead of --boxes"
    ]
    assert one.size == (30, 40)
    assert isinstance(one.outlines[2], Polygons)
    assert len(one.outlines[2].rings) == 2
    assert found.annotations[1] is None
    assert not made.of(made.read("labelme"), "a.png").outlines
    assert made.signs() == ["labelme"]


def masked(pixels: np.ndarray[Any, Any], left: int, top: int, **facts: Any) -> dict[str, Any]:
    """Return a shape as LabelMe 5 writes it: its points are the first and the last pixel."""
    file = io.BytesIO()
    Image.fromarray(pixels.astype(bool)).save(file, "PNG")
    last = [left + pixels.shape[1] - 1, top + pixels.shape[0] - 1]
    text = base64.b64encode(file.getvalue()).decode()
    shape = {"label": "cat", "points": [[left, top], last], "shape_type": "mask", "mask": text}
    return {**shape, **facts}


def labelme(*shapes: dict[str, Any], **sides: int) -> dict[str, str]:
    sides = sides or {"imageHeight": 30, "imageWidth": 40}
    return {"a.json": json.dumps({"imagePath": "a.png", "shapes": shapes, **sides})}


@given(
    place=st.tuples(st.integers(0, 20), st.integers(0, 15)),
    sides=st.tuples(st.integers(1, 15), st.integers(1, 20)),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=50, deadline=None, database=None)
def test_a_mask_of_labelme_is_pasted_at_its_corners(
    place: tuple[int, int], sides: tuple[int, int], seed: int
) -> None:
    pixels = np.random.default_rng(seed).integers(0, 2, sides)
    pixels[-1, -1] = 1
    (left, top), whole = place, np.zeros((30, 40), np.uint8)
    whole[top : top + sides[0], left : left + sides[1]] = pixels
    with TemporaryDirectory() as folder:
        made = source(Path(folder), labelme(masked(pixels, left, top)), "a.png")
        one = made.of(made.read("labelme", outlines=True), "a.png")
    (outline,), (found,) = one.outlines, one.boxes.tolist()
    assert isinstance(outline, Runs)
    assert (outline_mask(outline, (30, 40)) == whole).all()
    rows, columns = np.nonzero(whole)
    assert found == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


def test_masks_and_polygons_of_a_group_are_one_object(tmp_path: Path) -> None:
    parts = [masked(np.ones((2, 3)), x, 4, group_id=1) for x in (5, 20)]
    ring = {"label": "cat", "points": [[0, 0], [8, 0], [8, 2], [0, 2]], "group_id": 1}
    made = source(tmp_path, labelme(*parts, ring), "a.png")
    one = made.of(made.read("labelme", outlines=True), "a.png")
    whole = np.zeros((30, 40), np.uint8)
    whole[:2, :8] = whole[4:6, 5:8] = whole[4:6, 20:23] = 1
    assert one.boxes.tolist() == [[0, 0, 23, 6]]
    assert isinstance(one.outlines[0], Runs)
    assert (outline_mask(one.outlines[0], (30, 40)) == whole).all()


MASK = masked(np.ones((2, 3)), 5, 4)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ({"points": [[5, 4], [8, 5]]}, "malformed"),
        ({"points": [[38, 4], [40, 5]]}, "malformed"),
        ({"points": [[-1, 4], [1, 5]]}, "malformed"),
        ({"points": [[float("nan"), 4], [7, 5]]}, "malformed"),
        ({"points": []}, "malformed"),
        ({"mask": "AAAA"}, "malformed"),
        ({"mask": None}, "malformed"),
        (masked(np.zeros((2, 3)), 5, 4), "malformed"),
        ({"shape_type": "rotated cuboid"}, "shape 'rotated cuboid'"),
    ],
)
def test_a_shape_that_cannot_be_drawn_is_dropped_by_name(
    tmp_path: Path, shape: dict[str, Any], reason: str
) -> None:
    made = source(tmp_path, labelme(MASK, {**MASK, **shape}), "a.png")
    one = made.of(made.read("labelme", outlines=True), "a.png")
    assert (len(one.labels), one.dropped) == (1, {reason: 1})


def test_the_image_that_labelme_states_counts_if_no_image_has_the_name_of_the_file(
    tmp_path: Path,
) -> None:
    made = source(tmp_path, {"j/1.json": RING, "j/2.json": '{"a": 1}'}, "imgs/b.png")
    assert made.rows(made.read("labelme")) == {"imgs/b.png": [("cat", (0, 0, 4, 4))]}
    with pytest.raises(SourceError, match="is also annotated in"):
        source(tmp_path, {"x/b.json": RING, "y/b.json": RING}, "b.png").read("labelme")
    with pytest.raises(SourceError, match=r"has this format; .* has x/c\.json$"):
        source(tmp_path, {"x/c.json": "{}"}, "b.png").read("labelme")
    with pytest.raises(SourceError, match=r"x/c\.json, belongs to an image; give each file the"):
        source(tmp_path, {"x/c.json": EMPTY}, "b.png").read("labelme")


def test_files_of_labelme_may_lack_the_path_of_the_image_and_be_in_a_tree_beside(
    tmp_path: Path,
) -> None:
    """dacl10k states the name of the image under another key."""
    shapes = [{"label": "crack", "points": [[1, 2], [9, 2], [9, 8]], "shape_type": "polygon"}]
    texts = {
        "set/annotations/train/a.json": json.dumps({"imageName": "a.jpg", "shapes": shapes}),
        "set/annotations/val/a.json": json.dumps({"shapes": [], "imageName": "a.jpg"}),
    }
    made = source(tmp_path, texts, "set/images/train/a.png", "set/images/val/a.png")
    found = made.read("labelme", outlines=True)
    rows = {"set/images/train/a.png": [("crack", (1, 2, 9, 8))], "set/images/val/a.png": []}
    assert made.rows(found) == rows
    assert made.signs() == ["labelme"]
    plot = {"a.json": '{"shapes": [{"type": "line", "x0": 1, "label": {}}]}'}
    assert source(tmp_path / "plot", plot, "a.png").signs() == ["labelme"]


LARGE = "[" + "[]," * 1_000_001 + "1]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *data_rows("objects", "labelme_errors"),
        ('{"imagePath": 1, "shapes": ' + "[" * 100_000, "is damaged JSON"),
        (EMPTY.replace("[]", LARGE), "has more than 2,000,000 values"),
    ],
)
def test_a_bad_file_of_labelme_is_a_fault_of_its_image(
    tmp_path: Path, text: str, message: str
) -> None:
    made = source(tmp_path, {"a.json": text, "b.json": EMPTY}, "a.png", "b.png")
    found = made.read("labelme")
    assert made.of(found, "a.png").fault.startswith(f"a.json {message}")
    assert not made.of(found, "b.png").fault


REGIONS = json.loads((DATA / "via_regions.json").read_text())


@pytest.mark.parametrize("form", ["list", "dict", "project"])
def test_regions_of_via(tmp_path: Path, form: str) -> None:
    regions: Any = {str(i): one for i, one in enumerate(REGIONS)} if form == "dict" else REGIONS
    document: Any = {
        "1.png123": {"filename": "1.png", "size": 123, "regions": regions},
        "2.png123": {"filename": "2.png", "size": 123, "regions": {}},
        "gone": {"filename": "gone.png", "size": 1, "regions": regions},
    }
    if form == "project":
        document = {"_via_settings": {"a": 1}, "_via_img_metadata": document}
    made = source(tmp_path, {"via.json": json.dumps(document)}, "1.png", "2.png", "3.png")
    found = made.read("via", outlines=True)
    one = made.of(found, "1.png")
    assert found.names == ("cat", "dog", "owl")
    assert [name for name, _ in made.rows(found)["1.png"]] == ["cat", "dog", "owl", "owl"]
    wanted = [[1, 2, 4, 6], [0, 0, 4, 5], [5, 5, 15, 15], [8, 5, 12, 15]]
    np.testing.assert_allclose(one.boxes, wanted, atol=0.02)
    assert one.dropped == {"malformed": 1, "shape 'point'": 1, "unknown class": 1}
    assert made.rows(found)["2.png"] == []
    assert found.annotations[2] is None
    assert found.without_image == {"gone.png": len(REGIONS)}
    assert all(isinstance(outline, Polygons) for outline in one.outlines)
    assert made.signs() == ["via"]


def test_two_files_of_one_name_are_not_one_image_of_via(tmp_path: Path) -> None:
    entries: Any = {f"1.png{n}": {"filename": "1.png", "size": n, "regions": []} for n in (1, 2)}
    made = source(tmp_path, {"via.json": json.dumps(entries)}, "1.png")
    with pytest.raises(
        SourceError, match=r"via\.json: has two entries for '1\.png'; delete one of them"
    ):
        made.read("via:via.json")


def test_regions_without_attributes_are_of_one_class(tmp_path: Path) -> None:
    bare = {**REGIONS[0], "region_attributes": {}}
    text = json.dumps({"1": {"filename": "1.png", "regions": {"0": bare}}})
    made = source(tmp_path, {"via.json": text}, "1.png")
    assert made.rows(made.read("via:via.json"))["1.png"] == [("object", (1, 2, 4, 6))]


def test_a_point_without_a_label_refuses_no_box_of_labelme(tmp_path: Path) -> None:
    box = {"label": "cat", "points": [[1, 2], [9, 8]], "shape_type": "rectangle"}
    text = json.dumps({"shapes": [{"shape_type": "point"}, box], "imagePath": "1.png"})
    made = source(tmp_path, {"1.json": text}, "1.png")
    assert made.rows(made.read("labelme"))["1.png"] == [("cat", (1, 2, 9, 8))]


@pytest.mark.parametrize("attributes", [[1], "x", 5])
def test_a_region_with_odd_attributes_refuses_no_other_of_via(
    tmp_path: Path, attributes: Any
) -> None:
    sound = {**REGIONS[0], "region_attributes": {"class": "cat"}}
    odd = {**REGIONS[0], "region_attributes": attributes}
    text = json.dumps({"1": {"filename": "1.png", "regions": [odd, sound]}})
    made = source(tmp_path, {"via.json": text}, "1.png")
    found = made.read("via:via.json")
    assert made.rows(found)["1.png"] == [("cat", (1, 2, 4, 6))]
    assert made.of(found, "1.png").dropped == {"unknown class": 1}


@pytest.mark.parametrize("text", [*data_rows("objects", "via_errors"), '{"a": ' * 100_000, LARGE])
def test_a_bad_document_of_via_is_one_line(tmp_path: Path, text: str) -> None:
    made = source(tmp_path, {"via.json": text}, "1.png")
    with pytest.raises(SourceError, match=r"via\.json: ") as raised:
        made.read("via:via.json")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("others", "note"), [(("b", "c"), "'a', not by b, c"), (("class",), "")])
def test_the_attribute_that_gives_classes_is_said(
    others: tuple[str, ...], note: str, tmp_path: Path
) -> None:
    shape = {"name": "rect", "x": 1, "y": 2, "width": 3, "height": 4}
    region = {"shape_attributes": shape, "region_attributes": dict.fromkeys(("a", *others), "x")}
    text = json.dumps({"1": {"filename": "1.png", "regions": [region]}})
    found = source(tmp_path, {"via.json": text}, "1.png").read("via:via.json")
    assert found.findings == ([f"via.json: classes by {note}"] if note else [])
