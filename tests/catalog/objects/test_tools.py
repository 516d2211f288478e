"""The files of annotation tools: LabelMe's and VIA's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shardprep.errors import SourceError
from shardprep.image.annotation_types import Polygons
from tests.support.annotated import source

if TYPE_CHECKING:
    from pathlib import Path


def shape(
    label: str, points: Any, kind: str = "polygon", group: int | None = None
) -> dict[str, Any]:
    return {"label": label, "points": points, "shape_type": kind, "group_id": group}


def labelme(*shapes: Any, path: str = "x.jpg") -> str:
    facts = {"imagePath": path, "imageHeight": 30, "imageWidth": 40, "imageData": "AAAA"}
    return json.dumps({"version": "5", "shapes": shapes, **facts})


def test_shapes_of_labelme(tmp_path: Path) -> None:
    text = labelme(
        shape("cat", [[9, 8], [1, 2]], "rectangle"),
        shape("ant", [[0, 0], [4, 0], [4, 4]]),
        shape("dog", [[0, 0], [1, 0], [1, 1]], group=3),
        shape("dog", [[5, 5], [9, 5], [9, 9]], group=3),
        shape("cat", [[10, 10], [13, 14]], "circle"),
        shape("__ignore__", [[0, 0], [4, 0], [4, 4]]),
        shape("cat", [[0, 0], [4, 0]], "line"),
        shape("cat", [[0, 0]], "point"),
        shape("cat", [[0, 0], [1, 1]]),
        shape("cat", []),
    )
    made = source(tmp_path, {"a.json": text}, "a.png", "b.png")
    found = made.read("labelme", outlines=True)
    one = made.of(found, "a.png")
    assert found.names == ("ant", "cat", "dog")
    names = [name for name, _ in made.rows(found)["a.png"]]
    assert names == ["cat", "ant", "dog", "cat"]
    wanted = [[1, 2, 9, 8], [0, 0, 4, 4], [0, 0, 9, 9], [5, 5, 15, 15]]
    np.testing.assert_allclose(one.boxes, wanted, atol=0.02)
    assert one.dropped == {"malformed": 4}
    assert one.size == (30, 40)
    assert isinstance(one.outlines[2], Polygons)
    assert len(one.outlines[2].rings) == 2
    assert found.annotations[1] is None
    assert not made.of(made.read("labelme"), "a.png").outlines
    assert made.signs() == ["labelme"]


def test_labelme_states_its_image_where_its_name_does_not(tmp_path: Path) -> None:
    text = labelme(shape("cat", [[0, 0], [4, 0], [4, 4]]), path="..\\imgs\\b.png")
    made = source(tmp_path, {"j/1.json": text, "j/2.json": '{"a": 1}'}, "imgs/b.png")
    assert made.rows(made.read("labelme")) == {"imgs/b.png": [("cat", (0, 0, 4, 4))]}
    with pytest.raises(SourceError, match="both of"):
        source(tmp_path, {"x/b.json": text, "y/b.json": text}, "b.png").read("labelme")
    with pytest.raises(
        SourceError, match="no JSON file of the source belongs to one of its images"
    ):
        source(tmp_path, {"x/c.json": "{}"}, "b.png").read("labelme")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (labelme()[:-3], "is damaged JSON"),
        ('{"imagePath": 1, "shapes": ' + "[" * 100_000, "is damaged JSON"),
        (labelme([[]] * 1_000_001), "has more than 2,000,000 values"),
        (labelme("cat"), "has shapes that are none of LabelMe"),
        (labelme(shape("cat", [["x", 1]] * 3)), "has shapes that are none of LabelMe"),
        (labelme(shape("cat", [[1, 2], [3]])), "has shapes that are none of LabelMe"),
        ('["shapes", "imagePath"]'.replace(",", ": 1,").join("[]"), "is damaged JSON"),
        (json.dumps([labelme(), {"shapes": 1, "imagePath": 1}]), "is no JSON object"),
    ],
)
def test_a_bad_file_of_labelme_is_a_fault_of_its_image(
    tmp_path: Path, text: str, message: str
) -> None:
    made = source(tmp_path, {"a.json": text, "b.json": labelme()}, "a.png", "b.png")
    found = made.read("labelme")
    assert made.of(found, "a.png").fault.startswith(f"a.json {message}")
    assert not made.of(found, "b.png").fault


def region(name: str, attributes: Any, **sides: Any) -> dict[str, Any]:
    return {"shape_attributes": {"name": name, **sides}, "region_attributes": attributes}


RECT = region("rect", {"type": "cat"}, x=1, y=2, width=3, height=4)
REGIONS = [
    RECT,
    region("polygon", {"type": "dog"}, all_points_x=[0, 4, 4], all_points_y=[0, 0, 5]),
    region("circle", {"type": {"dog": False, "owl": True}}, cx=10, cy=10, r=5),
    region("ellipse", {"type": "owl"}, cx=10, cy=10, rx=5, ry=2, theta=np.pi / 2),
    region("point", {"type": "cat"}, cx=10, cy=10),
    region("polygon", {"type": "cat"}, all_points_x=[0, 4], all_points_y=[0, 0, 5]),
    region("rect", {"color": "red"}, x=1, y=2, width=3, height=4),
]


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
    assert one.dropped == {"malformed": 2, "unknown class": 1}
    assert made.rows(found)["2.png"] == []
    assert found.annotations[2] is None
    assert found.without_image == {"gone.png": len(REGIONS)}
    assert all(isinstance(outline, Polygons) for outline in one.outlines)
    assert made.signs() == ["via"]


def test_regions_without_attributes_are_of_one_class(tmp_path: Path) -> None:
    bare = {**RECT, "region_attributes": {}}
    text = json.dumps({"1": {"filename": "1.png", "regions": {"0": bare}}})
    made = source(tmp_path, {"via.json": text}, "1.png")
    assert made.rows(made.read("via:via.json"))["1.png"] == [("object", (1, 2, 4, 6))]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "[1]",
        '{"a": 1}',
        '{"a": {"regions": []}}',
        '{"a": ' * 100_000,
        '{"a": {"filename": 1}}',
        "[" + "[]," * 1_000_001,
    ],
)
def test_a_bad_document_of_via_is_one_line(tmp_path: Path, text: str) -> None:
    made = source(tmp_path, {"via.json": text}, "1.png")
    with pytest.raises(SourceError, match=r"via\.json: ") as raised:
        made.read("via:via.json")
    assert "\n" not in str(raised.value)
