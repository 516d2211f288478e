"""Boxes in tables: every spelling of Kaggle's, and how the reading of four numbers is told."""

from pathlib import Path

import numpy as np
import pytest

from shardprep.errors import RecipeError, SourceError
from shardprep.image.annotation_types import Polygons
from tests.support.annotated import Source, source
from tests.support.paths import data_rows

BOX = (2.0, 3.0, 12.0, 8.0)


def table(folder: Path, *lines: str, keys: tuple[str, ...] = ("a.png", "b.png")) -> Source:
    return source(folder, {"t.csv": "\n".join(lines)}, *keys)


@pytest.mark.parametrize(("header", "row", "columns"), data_rows("objects", "box_columns"))
def test_columns_by_their_names_and_cells_by_their_form(
    tmp_path: Path, header: str, row: str, columns: str
) -> None:
    made = table(tmp_path, f"id,{header}", f"a,{row}")
    found = made.read(f"csv:t.csv:id:{columns}")
    assert made.rows(found) == {"a.png": [("object", BOX)]}
    assert "in pixels" in found.how
    assert not found.is_complete


def test_rows_of_an_image_keep_their_order_and_classes_are_in_natural_order(tmp_path: Path) -> None:
    lines = [
        "name,c,xmin,ymin,xmax,ymax",
        "b,10,1,1,2,2",
        "a,2,0,0,3,3",
        "b,9,1,1,3,3",
        "gone,1,0,0,1,1",
    ]
    made = table(tmp_path, *lines, "gone,1,1,1,2,2")
    found = made.read("csv:t.csv:name:xmin,ymin,xmax,ymax:c")
    assert found.names == ("1", "2", "9", "10")
    assert made.rows(found)["b.png"] == [("10", (1, 1, 2, 2)), ("9", (1, 1, 3, 3))]
    assert found.without_image == {"gone": 2}
    assert found.documents == ("t.csv",)


def test_empty_cells_mean_no_object(tmp_path: Path) -> None:
    lines = ["patientId,x,y,width,height,Target", "a,,NaN,nan,,0", "b,2,3,10,5,1"]
    made = table(tmp_path, *lines, keys=("a.png", "b.png", "c.png"))
    found = made.read("csv:t.csv:patientId:x,y,width,height:Target")
    assert found.names == ("1",)
    assert made.rows(found) == {"a.png": [], "b.png": [("1", BOX)]}
    assert found.annotations[2] is None


@pytest.mark.parametrize("rows", [("a,.1,.2,.3,.4", "b,9,9,20,20"), ("b,9,9,20,20", "a,0,0,1,.5")])
def test_boxes_in_shares_beside_boxes_in_pixels_are_an_error(
    tmp_path: Path, rows: tuple[str, str]
) -> None:
    """Boxes of a fraction of a pixel were stored."""
    made = table(tmp_path, "id,xmin,ymin,xmax,ymax", *rows, "gone,.1,.1,.2,.2")
    what = r"t.csv: 1 of 2 boxes look like shares .* in a.png, and others like pixels, .* in b.png"
    with pytest.raises(SourceError, match=what):
        made.read("csv:t.csv:id:xmin,ymin,xmax,ymax")
    whole = table(tmp_path / "2", "id,xmin,ymin,xmax,ymax", "a,0,0,1,1", "b,9,9,20,20")
    assert not whole.read("csv:t.csv:id:xmin,ymin,xmax,ymax").findings


@pytest.mark.parametrize("cell", ["[]", "", "-1", "none", '"[ ]"'])
def test_cells_without_a_box(tmp_path: Path, cell: str) -> None:
    made = table(tmp_path, "id,boxes,n", f"a,{cell},1", 'b,"[[2, 3, 10, 5], [1, 1, 2, 2]]",1')
    found = made.read("csv:t.csv:id:xywh(boxes)")
    assert made.rows(found) == {"a.png": [], "b.png": [("object", BOX), ("object", (1, 1, 3, 3))]}


@pytest.mark.parametrize(("cells", "rows"), data_rows("objects", "box_cells"))
def test_tuples_of_a_cell(
    tmp_path: Path, cells: list[str], rows: list[tuple[str, tuple[float, ...]]]
) -> None:
    made = table(tmp_path, "id,PredictionString", *(f"a,{cell}" for cell in cells))
    found = made.read("csv:t.csv:id:xywh(PredictionString)")
    assert sorted(made.rows(found)["a.png"]) == sorted(rows)


@pytest.mark.parametrize(
    "cell", ["[(2, 3), (12, 3), (12, 8)]", "[[2, 3], [12, 3], [12, 8]]",
             "POLYGON ((2 3, 12 3, 12 8, 2 3))", "[(2, 3), (12, 3), (12, 8), (2, 8)]"],
)  # fmt: skip
def test_points_of_a_cell_are_a_polygon(tmp_path: Path, cell: str) -> None:
    made = table(tmp_path, "id,geometry,class", f'a,"{cell}",x', f'b,"{cell}",y', f'b,"{cell}",y')
    option = "csv:t.csv:id:geometry:class"
    assert made.signs() == [option]
    found = made.read(option, outlines=True)
    assert made.rows(found) == {"a.png": [("x", BOX)], "b.png": [("y", BOX)] * 2}
    [outline] = made.of(found, "a.png").outlines
    assert isinstance(outline, Polygons)
    assert outline.rings[0][:3].tolist() == [[2, 3], [12, 3], [12, 8]]
    assert not made.of(made.read(option), "a.png").outlines


QUAD = "4,3,12,5,10,8,2,6"


@pytest.mark.parametrize("names", ["x{},y{}", "X_{},Y_{}", "bbox.x{},bbox.y{}", "p{},q{}"])
def test_eight_columns_are_four_corners(tmp_path: Path, names: str) -> None:
    """Two of the corners were read as a box."""
    columns = ",".join(names.format(i, i) for i in range(1, 5))
    lines = [f"id,{columns},text", f"a,{QUAD},EXIT", f"a,{QUAD},SALE", "b,,,,,,,,", "b,?,,,,,,,"]
    made = table(tmp_path, *lines, f"a,{QUAD[:-1]}x,bad", f"a,nan{QUAD[1:]},bad")
    option = f"csv:t.csv:id:{columns}"
    found = made.read(option, outlines=True)
    assert made.rows(found) == {"a.png": [("object", BOX)] * 2, "b.png": []}
    assert made.of(found, "a.png").dropped == {"malformed": 2}
    [outline, _] = made.of(found, "a.png").outlines
    assert isinstance(outline, Polygons)
    assert outline.rings[0].tolist() == [[4, 3], [12, 5], [10, 8], [2, 6]]
    assert not made.of(made.read(option), "a.png").outlines
    assert "four corners, in pixels" in found.how
    assert made.signs() == ([option] if "x" in names.lower() else [])


def test_four_of_more_corners_and_other_columns_are_boxes_as_before(tmp_path: Path) -> None:
    """Columns of two corners may have others beside them."""
    head = "id,xmin,ymin,xmax,ymax,x1,y1,x2,y2,x3,y3,x4,y4"
    made = table(tmp_path, head, f"a,2,3,12,8,{QUAD}", f"a,2,3,12,8,{QUAD}")
    assert made.signs() == ["csv:t.csv:id:xmin,ymin,xmax,ymax"]
    found = made.read("csv:t.csv:id:xyxy(x1,y1,xmax,ymax)")
    assert made.rows(found)["a.png"] == [("object", (4, 3, 12, 8))] * 2


def test_a_stated_form_takes_columns_in_the_order_in_which_they_stand(tmp_path: Path) -> None:
    """Their names may be wrong: `x2` has the top side here. y before x is an error."""
    made = table(tmp_path, "id,x1,x2,y1,y2", "a,4,3,12,8", "a,4,3,12,8")
    found = made.read("csv:t.csv:id:xyxy(x1,x2,y1,y2)")
    assert made.rows(found)["a.png"] == [("object", (4, 3, 12, 8))] * 2
    assert made.signs() == ["csv:t.csv:id:xyxy(x1,x2,y1,y2)"]
    with pytest.raises(SourceError, match=r"write xyxy\(x1,y1,x2,y2\)"):
        made.read("csv:t.csv:id:xyxy(y1,x1,y2,x2)")


def test_a_stated_order_that_contradicts_plausible_names_is_refused(tmp_path: Path) -> None:
    made = table(tmp_path, "id,x1,x2,y1,y2,w,h", "a,2,12,3,8,10,5", "a,2,12,3,8,10,5")
    with pytest.raises(SourceError, match=r"write xyxy\(x1,y1,x2,y2\), or rename the columns"):
        made.read("csv:t.csv:id:xyxy(x1,x2,y1,y2)")
    with pytest.raises(SourceError, match=r"write xywh\(x1,y1,w,h\)"):
        made.read("csv:t.csv:id:xywh(w,h,x1,y1)")


def random_boxes(number: int, *, corners: bool, scale: float = 1.0) -> list[str]:
    rng = np.random.default_rng(number)
    first, size = rng.uniform(0, [25, 18], (number, 2)), rng.uniform(2, [14, 11], (number, 2))
    second = first + size if corners else size
    return [str(list(map(float, row))) for row in (np.hstack((first, second)) * scale).round(4)]


@pytest.mark.parametrize("form", ["xyxy", "xywh"])
@pytest.mark.parametrize(
    ("sizes", "scale", "unit"), [("", 1, "pixels"), (",40,30", 1, "pixels"), ("", 0.025, "shares")]
)
def test_the_form_of_four_numbers_is_detected(
    tmp_path: Path, sizes: str, scale: float, unit: str, form: str
) -> None:
    """By the heads of the images, or by the sizes that the table states."""
    header = "image_id,bbox" + (",width,height" if sizes else "")
    cells = random_boxes(60, corners=form == "xyxy", scale=scale)
    rows = (f'{"ab"[i % 2]},"{cell}"{sizes}' for i, cell in enumerate(cells))
    made = table(tmp_path, header, *rows)
    found = made.read("csv:t.csv:image_id:bbox")
    assert f"({form}), detected from the data, in {unit}" in found.how
    forced = made.read(f"csv:t.csv:image_id:{form}(bbox)")
    assert made.rows(found) == made.rows(forced)
    assert made.of(found, "a.png").size == ((30, 40) if sizes else None)
    assert made.of(found, "a.png").is_relative == (unit == "shares")


@pytest.mark.parametrize("box", ["[1, 1, 20, 20]", "[30, 20, 25, 15]"])
def test_unclear_forms_are_an_error_that_names_both(tmp_path: Path, box: str) -> None:
    made = table(tmp_path, "id,box", f'a,"{box}"')
    with pytest.raises(SourceError, match=r"write xywh\(box\) or xyxy\(box\) instead of box"):
        made.read("csv:t.csv:id:box")


def test_boxes_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    lines = ["id,x,y,w,h", "a,1,2,3,x", "a,1,2,,3", "a,2,3,10,5", "a,inf,3,10,5"]
    made = table(tmp_path, *lines)
    one = made.of(made.read("csv:t.csv:id:x,y,w,h"), "a.png")
    assert one.dropped == {"malformed": 2}
    assert one.boxes[0].tolist() == list(BOX)
    assert np.isinf(one.boxes[1, 0])


@pytest.mark.parametrize(("rule", "message"), data_rows("objects", "box_table_errors"))
def test_a_table_that_does_not_fit_is_one_line(tmp_path: Path, rule: str, message: str) -> None:
    made = table(tmp_path, "id,x,y,w,h,c", "a,1,2,3,4,hello")
    with pytest.raises(SourceError) as raised:
        made.read(f"csv:{rule}")
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    "rule",
    [
        "", "t.csv:id", "t.csv:id:a,b", "t.csv:id:zxzx(a)", "t.csv:id:a:b:c", "t.csv:id:a,,b,c",
        "t.csv:id:a,b,c,d,e,f,g", "t.csv:id:xyxy(a,b,c,d,e,f,g,h)",
    ],
)  # fmt: skip
def test_an_invalid_rule_is_an_error(tmp_path: Path, rule: str) -> None:
    with pytest.raises(RecipeError, match="--boxes csv: "):
        table(tmp_path, "id,x", "a,1").read(f"csv:{rule}")


def test_columns_are_found_by_their_names(tmp_path: Path) -> None:
    lines = ["filename,width,height,class,xmin,ymin,xmax,ymax", "a.png,40,30,cat,2,3,12,8"]
    made = table(tmp_path, *lines, "a.png,40,30,dog,0,0,4,4")
    found = made.read("csv:t.csv")
    assert made.rows(found)["a.png"] == [("cat", BOX), ("dog", (0, 0, 4, 4))]
    assert made.of(found, "a.png").size == (30, 40)
    assert made.signs() == ["csv:t.csv:filename:xmin,ymin,xmax,ymax:class"]


def test_ids_that_are_paths_of_columns_and_several_tables(tmp_path: Path) -> None:
    texts = {
        "x.csv": "video,frame,annotations\n0,7,\"[{'x': 2, 'y': 3, 'width': 10, 'height': 5}]\"\n",
        "y.csv": "video,frame,annotations\n1,7,[]\n",
    }
    made = source(tmp_path, texts, "video_0/7.png", "video_1/7.png")
    found = made.read("csv:x.csv,y.csv:video_{video}/{frame}.png:annotations")
    assert made.rows(found) == {"video_0/7.png": [("object", BOX)], "video_1/7.png": []}
    assert found.documents == ("x.csv", "y.csv")


def test_null_cells_of_the_recipe_are_empty(tmp_path: Path) -> None:
    text = "id,x,y,w,h\na,?,?,?,?\n"
    made = source(tmp_path, {"t.csv": text}, "a.png", null=["?"])
    assert made.rows(made.read("csv:t.csv:id:x,y,w,h")) == {"a.png": []}


@pytest.mark.parametrize("lines", data_rows("objects", "no_box_tables"))
def test_tables_that_may_not_hold_boxes_are_not_detected(tmp_path: Path, lines: list[str]) -> None:
    assert table(tmp_path, *lines).signs() == []


@pytest.mark.parametrize(
    ("columns", "cells", "label"),
    [
        ("class_name,class_id", "cat,3 dog,5 cat,3", "class_name"),
        ("class_id,class_name", "3,cat 5,dog 3,cat", "class_name"),
        ("class_id,class_name", "3,cat 5,dog 3,dog", "class_id"),
        ("class_id,type", "3,scan 5,scan 3,scan", "class_id"),
    ],
)
def test_words_that_name_the_numbers_of_classes_are_the_classes_in_either_order(
    tmp_path: Path, columns: str, cells: str, label: str
) -> None:
    rows = [f"{'ab'[i % 2]},{one},1,1,5,5" for i, one in enumerate(cells.split())]
    made = table(tmp_path, f"id,{columns},xmin,ymin,xmax,ymax", *rows)
    assert made.signs() == [f"csv:t.csv:id:xmin,ymin,xmax,ymax:{label}"]
