"""Boxes in lists of a Parquet, of a TFRecord and of the JSON of each image are the same objects."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardprep.dataset import example, tfrecord
from shardprep.errors import RecipeError, SourceError
from shardprep.image.annotation_types import Polygons
from tests.catalog.builders import catalog, facts_of
from tests.support.arrays import parquet
from tests.support.builders import jpeg

NAMES = ("cat", "traffic light")
IMAGES = [jpeg(60, 80, seed=i) for i in range(4)]
OBJECTS = [
    [((4, 3, 24, 33), 0)],
    [((40, 30, 79, 59), 1), ((5, 30, 60, 59), 0)],
    [],
    [((4, 30, 70, 59), 1), ((4, 3, 24, 33), 1), ((0, 0, 80, 60), 0)],
]
"""Corners in pixels and class of each object of each image of 80x60 pixels."""
Form = Callable[[float, float, float, float], list[float]]
FORMS: dict[str, Form] = {
    "xyxy": lambda a, b, c, d: [a, b, c, d],
    "xywh": lambda a, b, c, d: [a, b, c - a, d - b],
    "center": lambda a, b, c, d: [(a + c) / 2, (b + d) / 2, c - a, d - b],
    "yxyx of 1": lambda a, b, c, d: [b / 60, a / 80, d / 60, c / 80],
}
CLASS = {"names": list(NAMES), "_type": "ClassLabel"}
NUMBER = {"dtype": "float32", "_type": "Value"}


def boxes(form: str) -> list[list[list[float]]]:
    return [[FORMS[form](*box) for box, _ in several] for several in OBJECTS]


def labels() -> list[list[int]]:
    return [[label for _, label in several] for several in OBJECTS]


def names() -> list[list[str]]:
    return [[NAMES[one] for one in several] for several in labels()]


def of(image: Any, **columns: Any) -> bytes:
    return parquet({"image": IMAGES, **columns}, image)


def struct_of_lists(form: str, features: Any) -> bytes:
    pairs = zip(boxes(form), labels(), strict=True)
    rows = [{"bbox": box, "category": label, "area": [1.0] * len(box)} for box, label in pairs]
    return of({"info": {"features": {"objects": features}}}, objects=rows)


def list_of_structs(form: str) -> bytes:
    pairs = zip(boxes(form), names(), strict=True)
    rows = [[{"label": n, "bbox": b} for b, n in zip(*one, strict=True)] for one in pairs]
    return of(None, annotations=rows)


def sides(form: str, *keys: str) -> list[dict[str, Any]]:
    return [
        {key: [box[i] for box in several] for i, key in enumerate(keys)} for several in boxes(form)
    ]


def beside(document: Callable[[int], Any]) -> dict[str, bytes]:
    members = {f"a/{i}.jpg": image for i, image in enumerate(IMAGES)}
    return members | {f"a/{i}.json": json.dumps(document(i)).encode() for i in range(4)}


def of_records() -> bytes:
    corners = sides("xyxy", "xmin", "ymin", "xmax", "ymax")
    records: list[dict[str, Any]] = [
        {
            "image/encoded": [image],
            "image/object/class/label": [one + 1 for one in labels()[i]],
            "image/object/class/text": [one.encode() for one in names()[i]],
            **{f"image/object/bbox/{key}": [one / (80, 60)[key[0] == "y"] for one in values]
               for key, values in corners[i].items()},
        }
        for i, image in enumerate(IMAGES)
    ]  # fmt: skip
    dtypes = {key: "float32" if "bbox" in key else "bytes" for key in records[0]}
    dtypes["image/object/class/label"] = "int64"
    return b"".join(tfrecord.frame(example.encode(one, dtypes)) for one in records)


SOURCES: dict[str, Callable[[], dict[str, bytes]]] = {
    "struct of lists": lambda: {
        "a.parquet": struct_of_lists("xywh", {"bbox": [[NUMBER]], "category": [CLASS]})
    },
    "sequence of datasets": lambda: {
        "a.parquet": struct_of_lists(
            "xyxy", {"_type": "Sequence", "feature": {"category": CLASS, "bbox": NUMBER}}
        )
    },
    "list of structs": lambda: {"a.parquet": list_of_structs("xywh")},
    "columns of lists": lambda: {
        "a.parquet": of(None, bboxes=boxes("xyxy"), categories=names(), id=[*range(4)])
    },
    "TFRecord": lambda: {"a.tfrecord": of_records()},
    "JSON of lists": lambda: beside(
        lambda i: {"objects": {"bbox": boxes("xywh")[i], "class": names()[i], "id": [1, 2]}}
    ),
    "JSON of objects": lambda: beside(
        lambda i: {"name": f"{i}", "labels": [
            {"category": label, "box2d": dict(zip(("x1", "y1", "x2", "y2"), box, strict=True))}
            for box, label in zip(boxes("xyxy")[i], names()[i], strict=True)
        ]}
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", SOURCES)
def test_boxes_in_lists_are_found_and_read(kind: str, tmp_path: Path) -> None:
    made = catalog(tmp_path, SOURCES[kind]())
    found = facts_of(made).names
    assert set(found) == {*NAMES}
    for item, several in zip(sorted(made.items, key=lambda one: one.key), OBJECTS, strict=True):
        one = item.annotation
        assert one is not None
        scale = (80, 60, 80, 60) if one.is_relative else (1, 1, 1, 1)
        corners = np.array([box for box, _ in several]).reshape(-1, 4)
        assert np.allclose(np.array(one.boxes).reshape(-1, 4) * scale, corners, atol=1e-4)
        assert [found[label] for label in one.labels] == [NAMES[label] for _, label in several]


def test_shares_do_not_tell_which_of_x_and_y_is_first(tmp_path: Path) -> None:
    members = beside(lambda i: {"bbox": boxes("yxyx of 1")[i], "label": names()[i]})
    flag = r"write yxyx\(bbox\) or xyxy\(bbox\) instead of bbox"
    for boxes_ in ({}, {"boxes": "auto"}):
        with pytest.raises(SourceError, match=flag):
            catalog(tmp_path, members, **boxes_)
    rule = "csv:{id}.json:id:yxyx(bbox):label"
    found = catalog(tmp_path / "again", members, boxes=rule).items[0].annotation
    assert found is not None
    assert np.allclose(found.boxes * (80, 60, 80, 60), [OBJECTS[0][0][0]], atol=1e-4)


def test_crowds_in_lists_are_crowds(tmp_path: Path) -> None:
    rows = [{"bbox": box, "is_crowd": [i % 2 for i in range(len(box))]} for box in boxes("xywh")]
    made = catalog(tmp_path, {"a.parquet": of(None, objects=rows)}, boxes="column")
    crowds = [item.annotation.crowds for item in made.items if item.annotation]
    assert crowds == [(False,), (False, True), (), (False, True, False)]


def test_columns_of_boxes_can_be_named(tmp_path: Path) -> None:
    source = {"a.parquet": list_of_structs("center")}
    made = catalog(tmp_path, source, boxes="column:center(annotations.bbox):annotations.label")
    assert sum(facts_of(made).num_objects.values()) == 6
    with pytest.raises(
        SourceError, match=r"has no column 'annotations.box'; is .* meant\? use one of"
    ):
        catalog(tmp_path / "other", source, boxes="column:annotations.box")
    with pytest.raises(SourceError, match="needs an array file or one label table") as error:
        catalog(tmp_path / "none", {"a.jpg": IMAGES[0]}, boxes="column:x,y,w,h:breed")
    assert error.value.hint == "give --boxes csv:FILE:ID:x,y,w,h:breed"


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        ("column::a", "is not one column, four or eight"),
        ("column:a:b:c", "is not BOX; use column:BOX or column:BOX:LABEL"),
    ],
)
def test_a_bad_rule_is_an_error(rule: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=what):
        catalog(tmp_path, {"a.jpg": IMAGES[0]}, boxes=rule)


def test_lists_that_are_not_json_or_of_other_lengths_are_no_traceback(tmp_path: Path) -> None:
    box = [1.0, 2.0, 30.0, 40.0]
    rows: list[Any] = [{"bbox": [box, box], "category": ["cat", "dog"]}] * 2
    rows += [{"bbox": [box], "category": []}, {"bbox": None, "category": None}]
    rule = "column:xyxy(objects.bbox):objects.category"
    made = catalog(tmp_path, {"a.parquet": of(None, objects=rows)}, boxes=rule, max_dropped=0.5)
    assert facts_of(made).num_objects == {"cat": 2, "dog": 2}
    assert facts_of(made).dropped == {"unknown class": 1}
    rows[0] = {"bbox": [box[:3]], "category": ["cat"]}
    with pytest.raises(SourceError, match=r"a.parquet: has no boxes in objects.bbox, but"):
        catalog(tmp_path / "odd", {"a.parquet": of(None, objects=rows)}, boxes=rule)
    members = beside(lambda i: ["no", "objects"] if i else {"bbox": [[1, 2, 30, 40]], "label": "a"})
    members["a/3.json"] = b"{"
    with pytest.raises(SourceError, match=r"a/3.json: is not JSON"):
        catalog(tmp_path / "json", members, boxes="csv:{id}.json:id:xyxy(bbox):label")


def test_columns_may_be_paths_into_a_document_of_all_images(tmp_path: Path) -> None:
    centers = [
        [{"x": 20, "y": 12, "width": 8, "height": 6}],
        [],
        [{"x": 9, "y": 9, "width": 2, "height": 4}],
    ]
    entries = [
        {
            "image": f"{i}.jpg",
            "annotations": [{"label": f"{'ab'[i % 2]}", "coordinates": one} for one in several],
        }
        for i, several in enumerate(centers)
    ]
    members = {f"{i}.jpg": IMAGES[0] for i in range(3)} | {"c.json": json.dumps(entries).encode()}
    sides = ",".join(f"annotations.coordinates.{one}" for one in ("x", "y", "width", "height"))
    rule = f"csv:c.json:image:center({sides}):annotations.label"
    made = catalog(tmp_path, members, boxes=rule, unlisted="background")
    found = [one.annotation for one in sorted(made.items, key=lambda one: one.key)]
    assert found[0] is not None
    assert found[0].boxes.tolist() == [[16, 9, 24, 15]]
    assert facts_of(made).num_objects == {"a": 2}


RINGS: list[list[Any]] = [[[[4, 3, 24, 3, 24, 33]] for _ in several] for several in OBJECTS]
POSES: list[list[Any]] = [[[9.0, 8.0, 2, 5.0, 6.0, 1] for _ in several] for several in OBJECTS]
"""A polygon and two keypoints of each object, as COCO writes them."""


def shaped(start: str, **lists: list[list[Any]]) -> dict[str, bytes]:
    """Return boxes with further lists in a Parquet file, or in the JSON of each image."""
    rows = [
        {"bbox": boxes("xywh")[i], "class": names()[i], **{k: one[i] for k, one in lists.items()}}
        for i in range(4)
    ]
    if start == "column:":
        return {"a.parquet": of(None, objects=rows)}
    return beside(lambda i: {"objects": rows[i]})


BESIDE = "csv:{folder}/{id}.json:{folder}/{id}:"


@pytest.mark.parametrize("start", ["column:", BESIDE])
def test_outlines_and_keypoints_beside_boxes_are_read(start: str, tmp_path: Path) -> None:
    members = shaped(start, segmentation=RINGS, keypoints=POSES)
    rule = f"{start}xywh(objects.bbox):objects.class"
    made = catalog(tmp_path, members, boxes=rule, masks=rule, points=rule, instances=True)
    keypoints = facts_of(made).spec.keypoints
    assert keypoints is not None
    assert keypoints.names == ("0", "1")
    for item, several in zip(sorted(made.items, key=lambda one: one.key), OBJECTS, strict=True):
        one = item.annotation
        assert one is not None
        assert one.keypoints is not None
        assert [*map(len, (one.outlines, one.labels, one.keypoints))] == [len(several)] * 3
        for outline, points in zip(one.outlines, one.keypoints, strict=True):
            assert isinstance(outline, Polygons)
            assert outline.rings[0].tolist() == [[4, 3], [24, 3], [24, 33]]
            assert points.tolist() == [[9, 8, 2], [5, 6, 1]]
    alone = catalog(tmp_path, members, boxes=rule)
    assert facts_of(alone).spec.masks == "none"
    assert facts_of(alone).spec.keypoints is None


@pytest.mark.parametrize(
    "odd", ["x", 7, {"size": [1], "counts": 5}, [["a"]], [[None]], {}, [[[1e999]]]]
)
def test_a_shape_that_is_none_is_an_object_without_outline_or_keypoints(
    odd: Any, tmp_path: Path
) -> None:
    rings, poses = [[*one] for one in RINGS], [[*one] for one in POSES]
    rings[0][0] = poses[0][0] = odd
    rule = f"{BESIDE}xywh(objects.bbox):objects.class"
    masks: dict[str, Any] = {"masks": rule, "instances": True, "max_dropped": 0.5}
    members = shaped(BESIDE, segmentation=rings, keypoints=poses)
    made = catalog(tmp_path, members, boxes=rule, points=rule, **masks)
    assert facts_of(made).dropped == {"no outline": 1}
