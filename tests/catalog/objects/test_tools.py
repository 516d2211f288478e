"""The files of annotation tools: LabelMe's and VIA's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shardprep.errors import SourceError
from shardprep.image.annotation_types import Polygons
from tests.support.annotated import source
from tests.support.paths import DATA, data_rows

if TYPE_CHECKING:
    from pathlib import Path


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
    assert one.dropped == {"malformed": 3}
    assert found.findings == ["1 point of LabelMe: not stored without --points labelme"]
    assert one.size == (30, 40)
    assert isinstance(one.outlines[2], Polygons)
    assert len(one.outlines[2].rings) == 2
    assert found.annotations[1] is None
    assert not made.of(made.read("labelme"), "a.png").outlines
    assert made.signs() == ["labelme"]


def test_the_image_that_labelme_states_counts_if_no_image_has_the_name_of_the_file(
    tmp_path: Path,
) -> None:
    made = source(tmp_path, {"j/1.json": RING, "j/2.json": '{"a": 1}'}, "imgs/b.png")
    assert made.rows(made.read("labelme")) == {"imgs/b.png": [("cat", (0, 0, 4, 4))]}
    with pytest.raises(SourceError, match="both of"):
        source(tmp_path, {"x/b.json": RING, "y/b.json": RING}, "b.png").read("labelme")
    with pytest.raises(
        SourceError, match="no JSON file of the source belongs to one of its images"
    ):
        source(tmp_path, {"x/c.json": "{}"}, "b.png").read("labelme")


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
    assert one.dropped == {"malformed": 2, "unknown class": 1}
    assert made.rows(found)["2.png"] == []
    assert found.annotations[2] is None
    assert found.without_image == {"gone.png": len(REGIONS)}
    assert all(isinstance(outline, Polygons) for outline in one.outlines)
    assert made.signs() == ["via"]


def test_two_files_of_one_name_are_not_one_image_of_via(tmp_path: Path) -> None:
    entries: Any = {f"1.png{n}": {"filename": "1.png", "size": n, "regions": []} for n in (1, 2)}
    made = source(tmp_path, {"via.json": json.dumps(entries)}, "1.png")
    with pytest.raises(SourceError, match=r"via\.json: '1\.png' and '1\.png' are both of 1\.png"):
        made.read("via:via.json")


def test_regions_without_attributes_are_of_one_class(tmp_path: Path) -> None:
    bare = {**REGIONS[0], "region_attributes": {}}
    text = json.dumps({"1": {"filename": "1.png", "regions": {"0": bare}}})
    made = source(tmp_path, {"via.json": text}, "1.png")
    assert made.rows(made.read("via:via.json"))["1.png"] == [("object", (1, 2, 4, 6))]


@pytest.mark.parametrize("text", [*data_rows("objects", "via_errors"), '{"a": ' * 100_000, LARGE])
def test_a_bad_document_of_via_is_one_line(tmp_path: Path, text: str) -> None:
    made = source(tmp_path, {"via.json": text}, "1.png")
    with pytest.raises(SourceError, match=r"via\.json: ") as raised:
        made.read("via:via.json")
    assert "\n" not in str(raised.value)
