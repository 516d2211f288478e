"""COCO's JSON: what is taken of it, and what a stranger's may not do."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardprep.errors import RecipeError, SourceError
from shardprep.image.annotation_types import Counts, Polygons
from shardprep.reader import Dataset
from tests.support.annotated import PIXELS, opened, source
from tests.support.builders import SHARED_DATA, Quiet, build, write, zip_bytes
from tests.support.paths import data_rows

NAN = float("nan")


def image(number: int, name: str, height: int = 30, width: int = 40) -> dict[str, Any]:
    return {"id": number, "file_name": name, "height": height, "width": width}


def thing(image: Any, category: Any, bbox: Any, **more: Any) -> dict[str, Any]:
    return {"id": 1, "image_id": image, "category_id": category, "bbox": bbox, **more}


def document(
    images: list[dict[str, Any]],
    things: list[Any],
    categories: dict[int, str] | list[dict[str, Any]] | None = None,
) -> str:
    named: Any = categories if categories is not None else {1: "cat", 3: "dog"}
    if isinstance(named, dict):
        named = [{"id": number, "name": name} for number, name in named.items()]
    return json.dumps({"annotations": things, "images": images, "categories": named})


def test_boxes_become_corners_and_labels_follow_the_order_of_ids(tmp_path: Path) -> None:
    things = [thing(7, 90, [1, 2, 3, 4]), thing(5, 2, [0.5, 0, 9, 9]), thing(7, 2, [3, 3, 1, 1])]
    text = document([image(7, "a.png"), image(5, "b.png")], things, {90: "aa", 2: "zz", 50: "no"})
    made = source(tmp_path, {"instances.json": text}, "a.png", "b.png", "c.png")
    found = made.read("coco")
    assert found.names == ("zz", "no", "aa")
    assert made.rows(found) == {
        "a.png": [("aa", (1, 2, 4, 6)), ("zz", (3, 3, 4, 4))],
        "b.png": [("zz", (0.5, 0, 9.5, 9))],
    }
    assert made.of(found, "a.png").size == (30, 40)
    assert found.annotations[2] is None
    assert found.documents == ("instances.json",)
    assert not found.is_complete
    assert not made.of(found, "a.png").crowds
    assert not made.of(found, "a.png").outlines


def test_the_same_objects_as_by_pycocotools(tmp_path: Path) -> None:
    from pycocotools.coco import COCO

    rng = np.random.default_rng(3)
    boxes = rng.uniform(0, 20, (300, 4)).round(2).tolist()
    things = [
        {**thing(int(rng.integers(9)), int(rng.choice([1, 3])), box), "id": i}
        for i, box in enumerate(boxes)
    ]
    text = document([image(i, f"{i}.png") for i in range(9)], things)
    made = source(tmp_path, {"x/y.json": text}, *(f"{i}.png" for i in range(9)))
    rows = made.rows(made.read("coco:x/y.json"))
    (tmp_path / "y.json").write_text(text)
    oracle = COCO(tmp_path / "y.json")
    for number in range(9):
        theirs = [
            (oracle.cats[one["category_id"]]["name"], one["bbox"])
            for one in oracle.loadAnns(oracle.getAnnIds([number]))
        ]
        assert [name for name, _ in rows[f"{number}.png"]] == [name for name, _ in theirs]
        for (_, mine), (_, (x, y, w, h)) in zip(rows[f"{number}.png"], theirs, strict=True):
            assert mine == pytest.approx((x, y, x + w, y + h), abs=1e-9)


def test_outlines_are_read_if_masks_are_wanted(tmp_path: Path) -> None:
    ring = [1, 1, 5, 1, 5, 5]
    things = [
        thing(1, 1, [1, 1, 4, 4], segmentation=[ring, [7, 7, 9, 7, 9, 9, 7, 9]], iscrowd=0),
        thing(1, 1, [0, 0, 2, 2], segmentation={"size": [30, 40], "counts": [0, 1200]}, iscrowd=1),
        thing(1, 1, [0, 0, 2, 2], segmentation={"size": [30, 40], "counts": "PPYo0"}, iscrowd=0),
        thing(1, 3, [0, 0, 2, 2], segmentation=[]),
        {"id": 9, "image_id": 1, "category_id": 3, "segmentation": ring},
    ]
    made = source(tmp_path, {"a.json": document([image(1, "1.png")], things)}, "1.png")
    one = made.of(made.read("coco", outlines=True), "1.png")
    first, counted, packed, none, alone = one.outlines
    assert isinstance(first, Polygons)
    assert [r.tolist() for r in first.rings] == [
        [[1, 1], [5, 1], [5, 5]],
        [[7, 7], [9, 7], [9, 9], [7, 9]],
    ]
    assert counted == Counts((0, 1200), (30, 40))
    assert packed == Counts("PPYo0", (30, 40))
    assert none is None
    assert isinstance(alone, Polygons)
    assert one.crowds == (False, True, False, False, False)
    assert np.isnan(one.boxes[4]).all()
    assert not np.isnan(one.boxes[:4]).any()
    boxes = made.of(made.read("coco"), "1.png")
    assert boxes.outlines[:4] == (None,) * 4
    assert isinstance(boxes.outlines[4], Polygons)


def test_a_root_without_objects_is_not_a_class(tmp_path: Path) -> None:
    categories = [
        {"id": 0, "name": "cells", "supercategory": "none"},
        {"id": 1, "name": "RBC", "supercategory": "cells"},
        {"id": 2, "name": "WBC", "supercategory": "cells"},
        {"id": 3, "name": "person", "supercategory": "person"},
    ]
    text = document([image(1, "1.png")], [thing(1, 1, [0, 0, 1, 1])], categories)
    made = source(tmp_path, {"train/_annotations.coco.json": text}, "train/1.png")
    assert made.read("coco").names == ("RBC", "WBC", "person")
    used = document([image(1, "1.png")], [thing(1, 0, [0, 0, 1, 1])], categories)
    made = source(tmp_path, {"train/_annotations.coco.json": used}, "train/1.png")
    assert made.read("coco").names == ("cells", "RBC", "WBC", "person")


@pytest.mark.parametrize(
    ("name", "key", "splits"),
    [
        ("annotations/instances_{}2017.json", "images/{}2017/a.png",
         ["test", "train", "validation"]),
        ("{}/_annotations.coco.json", "{}/a.png", None),
    ],
)  # fmt: skip
def test_equal_names_belong_to_the_document_of_their_split_or_folder(
    tmp_path: Path, name: str, key: str, splits: list[str] | None
) -> None:
    order = ("test", "train", "val")
    texts = {
        name.format(split): document([image(1, "a.png")], [thing(1, 1, [number, 0, 1, 1])])
        for number, split in enumerate(order)
    }
    made = source(tmp_path, texts, *(key.format(split) for split in order))
    found = made.read("coco")
    assert [box[0] for [(_, box)] in made.rows(found).values()] == [0, 1, 2]
    assert found.splits == splits


@pytest.mark.parametrize(
    "name", ["JPEGImages/1.png", "1.png", "./1.png", "C:\\x\\1.png", "/data/1.png"]
)
def test_a_name_with_folders_that_are_not_there(tmp_path: Path, name: str) -> None:
    made = source(tmp_path, {"a.json": document([image(1, name)], [])}, "images/1.png")
    found = made.read("coco:a.json")
    assert made.of(found, "images/1.png").labels == ()


def test_an_image_without_objects_is_listed_and_one_without_file_is_named(tmp_path: Path) -> None:
    text = document([image(1, "1.png"), image(2, "gone.png")], [thing(2, 3, [0, 0, 1, 1])])
    made = source(tmp_path, {"a.json": text}, "1.png", "2.png")
    found = made.read("coco:a.json")
    assert made.rows(found) == {"1.png": []}
    assert found.without_image == {"gone.png": 1}
    assert found.names == ("cat", "dog")


def test_bad_objects_are_counted_by_reason(tmp_path: Path) -> None:
    bad = [None, [], [1, 2, 3], ["a", 1, 2, 3], {"x": 1}, 5, [1, 2, 10**400, 4]]
    things: list[Any] = [thing(1, 1, box) for box in bad]
    things += [thing(1, 77, [1, 1, 2, 2]), thing(1, [1], [1, 1, 2, 2]), thing(1, 3, [1, 1, 2, 2])]
    made = source(tmp_path, {"a.json": document([image(1, "1.png")], things)}, "1.png")
    one = made.of(made.read("coco:a.json"), "1.png")
    assert one.boxes.tolist() == [[1, 1, 3, 3]]
    assert one.labels == (1,)
    assert one.dropped == {"malformed": len(bad) + 1, "unknown class": 1}


def test_objects_of_images_that_are_not_described_are_counted_by_their_id(tmp_path: Path) -> None:
    text = document([image(1, "1.png")], [thing(1, 1, [0, 0, 1, 1]), thing("1", 1, [0, 0, 1, 1])])
    found = source(tmp_path, {"a.json": text}, "1.png").read("coco:a.json")
    assert found.without_image == {"image_id '1'": 1}


def test_several_documents_are_joined_if_they_are_named(tmp_path: Path) -> None:
    texts = {
        "a.json": document([image(1, "1.png")], [thing(1, 1, [0, 0, 1, 1])], {1: "cat"}),
        "b.json": document([image(8, "1.png")], [thing(8, 1, [2, 0, 1, 1])], {1: "ant", 2: "cat"}),
    }
    made = source(tmp_path, texts, "1.png")
    found = made.read("coco:a.json,b.json")
    assert sorted(found.names) == ["ant", "cat"]
    assert made.rows(found)["1.png"] == [("cat", (0, 0, 1, 1)), ("ant", (2, 0, 3, 1))]
    with pytest.raises(SourceError, match=r"b.json: another document also has objects of 1.png"):
        made.read("coco")


def test_a_document_for_each_of_many_images_is_read(tmp_path: Path) -> None:
    """Detection looks at some documents only; `--boxes coco` reads them all."""
    names = [f"{i:03}.png" for i in range(70)]
    texts = {
        f"of/{i}_boxes.json": document([image(i, name)], [thing(i, 1, [1, 2, 3, 4])], {1: "cat"})
        for i, name in enumerate(names)
    }
    made = source(tmp_path, texts, *names)
    assert made.rows(made.read("coco")) == {name: [("cat", (1, 2, 4, 6))] for name in names}


def test_instances_go_before_documents_of_the_same_images(tmp_path: Path) -> None:
    texts = {
        "annotations/instances_train.json": document(
            [image(1, "1.png")], [thing(1, 1, [0, 0, 1, 1])]
        ),
        "annotations/person_keypoints_train.json": document(
            [image(1, "1.png")], [thing(1, 1, [0, 0, 9, 9])]
        ),
    }
    made = source(tmp_path, texts, "1.png")
    assert made.rows(made.read("coco"))["1.png"] == [("cat", (0, 0, 1, 1))]


UNUSED: dict[str, list[tuple[str, Any]]] = {
    "categories": [
        ("keypoints", ["a", "a"]), ("keypoints", 5), ("supercategory", [1]), ("isthing", "x"),
    ],
    "annotations": [
        ("keypoints", 5), ("keypoints", {"a": 1}), ("foot_kpts", 5), ("segmentation", 5),
        ("segmentation", {"size": 1}), ("area", "x"), ("iscrowd", []), ("id", [1]),
    ],
    "images": [("height", "x"), ("width", None), ("license", [1]), ("coco_url", 5)],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "field", "value"), [(k, *v) for k in UNUSED for v in UNUSED[k]])
def test_a_field_that_boxes_do_not_need_refuses_nothing(
    tmp_path: Path, kind: str, field: str, value: Any
) -> None:
    text = json.loads(document([image(1, "1.png")], [thing(1, 1, [1, 2, 3, 4])]))
    text[kind][0][field] = value
    made = source(tmp_path, {"a.json": json.dumps(text)}, "1.png")
    found = made.read("coco")
    assert made.rows(found) == {"1.png": [("cat", (1, 2, 4, 6))]}
    assert not made.of(found, "1.png").dropped
    assert not found.findings


@pytest.mark.parametrize(
    ("skeleton", "num_bad", "edges"),
    [
        ([[1, 2], [2, 17]], 1, [(0, 1)]),
        ([[1, 2], [2, 3], 5, ["a", 1], [1], [1.5, 2], [-1, 2], [None, 1]], 6, [(0, 1), (1, 2)]),
        ([[0, 1], [1, 2], [2, 3]], 1, [(0, 1), (1, 2)]),  # counted from 0
        (7, 1, []),
    ],
)
def test_a_bad_edge_of_a_skeleton_is_dropped_with_a_note(
    tmp_path: Path, skeleton: Any, num_bad: int, edges: list[tuple[int, int]]
) -> None:
    person = {"id": 1, "name": "person", "keypoints": ["l", "r", "x"], "skeleton": skeleton}
    points = [thing(1, 1, [1, 1, 20, 20], keypoints=[3, 3, 2, 9, 9, 2, 0, 0, 0])]
    text = document([image(1, "1.png")], points, [person])
    made = source(tmp_path, {"a.json": text}, "1.png")
    found = made.read("coco", keypoints=True)
    assert found.skeleton is not None
    assert [*found.skeleton.edges] == edges
    number = "1 edge" if num_bad == 1 else f"{num_bad} edges"
    assert found.findings == [f"a.json: {number} of the skeleton of 'person' left out"]
    assert made.of(found, "1.png").keypoints is not None
    assert made.rows(made.read("coco")) == {"1.png": [("person", (1, 1, 21, 21))]}


GOOD = document([image(1, "1.png")], [thing(1, 1, [0, 0, 1, 1])])
HOSTILE: dict[str, tuple[str | bytes, str]] = data_rows("objects", "hostile_coco") | {
    "cut": (GOOD[:-30], "is damaged JSON at line 1, column"),
    "nested": ('{"images": ' + "[" * 100_000, "nested too deeply"),
    "nested in an entry": ('{"images": [' + '{"a": ' * 100_000, "nested too deeply"),
    "digits": ('{"images": [{"id": ' + "9" * 5000 + "}]}", "too many digits"),
    "no text": (b"{\xff\xfe\x00", "is not UTF-8 in line 1;"),
    "cut in a late line": (
        '{"images": [' + '{"id": 1,\n "file_name": "1.png"},' * 50_000,
        "is damaged JSON at line 50,001, column",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_damaged_document_is_one_line_with_file_and_place(tmp_path: Path, case: str) -> None:
    text, message = HOSTILE[case]
    made = source(tmp_path, {"bad.json": text}, "1.png")
    with pytest.raises(SourceError, match=message) as raised:
        made.read("coco:bad.json")
    assert raised.value.where == "bad.json"
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("names", "what"),
    [(["eye", "ear", "eye"], "has two keypoints 'eye'"), ([*"x" * 3_000], "has two keypoints 'x'"),
     ([*map(str, range(3_000))], "has more than 1,000 keypoints")],
)  # fmt: skip
def test_names_of_keypoints_that_cannot_be_used_are_an_error_of_their_category(
    tmp_path: Path, names: list[str], what: str
) -> None:
    category = {"id": 1, "name": "person", "keypoints": names}
    text = document([image(1, "1.png")], [thing(1, 1, [0, 0, 1, 1])], categories=[category])
    made = source(tmp_path, {"a.json": text}, "1.png")
    with pytest.raises(SourceError, match=rf"a\.json: the category 'person' {what}"):
        made.read("coco:a.json", keypoints=True)


def test_categories_of_one_name_are_one_class_which_a_note_says(tmp_path: Path) -> None:
    categories = [{"id": i, "name": name} for i, name in ((1, "cat"), (2, "dog"), (7, "cat"))]
    things = [thing(1, i, [i, 0, 1, 1]) for i in (1, 2, 7)]
    made = source(
        tmp_path, {"a.json": document([image(1, "1.png")], things, categories=categories)}, "1.png"
    )
    found = made.read("coco:a.json")
    assert [name for name, _ in made.rows(found)["1.png"]] == ["cat", "dog", "cat"]
    assert found.findings == ["a.json has several categories called cat: one class"]


def test_nan_in_json_is_a_number_that_the_image_decides_on(tmp_path: Path) -> None:
    text = document([image(1, "1.png")], [thing(1, 1, [NAN, 0, 1, 1], area=NAN)])
    text = text.replace('"height": 30', '"height": NaN')
    made = source(tmp_path, {"a.json": text}, "1.png")
    one = made.of(made.read("coco:a.json"), "1.png")
    assert np.isnan(one.boxes[0, 0])
    assert one.size is None


def test_white_space_and_order_do_not_matter(tmp_path: Path) -> None:
    pretty = json.dumps(json.loads(GOOD), indent=4).replace("\n", "\r\n")
    made = source(tmp_path, {"a.json": f"\ufeff {pretty} \n"}, "1.png")
    assert made.rows(made.read("coco:a.json"))["1.png"] == [("cat", (0, 0, 1, 1))]


def test_no_document_is_coco(tmp_path: Path) -> None:
    made = source(tmp_path, {"a.json": '{"a": 1}'}, "1.png")
    with pytest.raises(
        SourceError, match=r"this format; use another format: the source has a\.json"
    ):
        made.read("coco")
    with pytest.raises(
        SourceError, match=r"b\.json: no such document, neither in the source nor on"
    ):
        made.read("coco:b.json")


def test_a_document_on_disk(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(GOOD)
    made = opened((source(tmp_path, {}, "1.png"), tmp_path / "set.zip")[1])
    assert made.rows(made.read(f"coco:{tmp_path}/x.json"))["1.png"] == [("cat", (0, 0, 1, 1))]


def test_many_boxes_of_one_image_take_little_memory(tmp_path: Path) -> None:
    number = 8_000  # takes 2.7 MB, with a list of all entries 4.2 MB
    text = document([image(1, "1.png")], [thing(1, 1, [1.5, 2.5, 3.5, 4.5])] * number)
    made = source(tmp_path, {"a.json": text}, "1.png")
    tracemalloc.start()
    try:
        found = made.read("coco:a.json")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(made.of(found, "1.png").boxes) == number
    assert peak < 3.4e6


def test_the_things_of_a_panoptic_document(tmp_path: Path) -> None:
    segments = [
        {"id": 9, "category_id": 1, "bbox": [1, 2, 3, 4], "iscrowd": 0},
        {"id": 8, "category_id": 3, "bbox": [0, 0, 40, 9], "iscrowd": 0},
        {"id": 7, "category_id": 5, "bbox": [0, 0, 40, 9], "iscrowd": 0},
        {"id": 6, "category_id": 1, "bbox": None, "iscrowd": 0},
    ]
    parts = {
        "annotations": [{"image_id": 1, "file_name": "1.png", "segments_info": segments}],
        "images": [image(1, "1.jpg")],
        "categories": [
            {"id": 1, "name": "cat", "isthing": 1},
            {"id": 3, "name": "sky", "isthing": 0},
        ],
    }
    made = source(tmp_path, {"panoptic_train.json": json.dumps(parts)}, "1.png")
    found = made.read("coco:panoptic_train.json")
    assert found.names == ("cat",)
    assert made.rows(found) == {"1.png": [("cat", (1, 2, 4, 6))]}
    assert made.of(found, "1.png").dropped == {"unknown class": 1, "malformed": 1}


def crowded(num_crowds: int, number: int = 8) -> str:
    """Return masks of the left half of images, the first ones as crowds, as CVAT writes brushes."""
    things = [
        thing(i, 1, [0, 0, 20, 30], iscrowd=int(i < num_crowds),
              segmentation={"size": [30, 40], "counts": [0, 600, 600]})
        for i in range(number)
    ]  # fmt: skip
    things.append(thing(99, 1, [0, 0, 20, 30], iscrowd=1))  # its image is missing
    return document([image(i, f"{i}.png") for i in range(number)], things)


@pytest.mark.parametrize("num_crowds", [0, 1, 2, 8])
def test_many_crowds_are_a_note_with_their_number(tmp_path: Path, num_crowds: int) -> None:
    """Real sets have one crowd in a hundred objects."""
    made = source(tmp_path, {"a.json": crowded(num_crowds)}, *(f"{i}.png" for i in range(8)))
    lines = made.read("coco", outlines=True).findings
    note = f"{num_crowds} of 8 objects are crowds (iscrowd 1): training ignores them, and their "
    note += "pixels are 255 in class masks; --crowds objects stores them as other objects"
    assert lines == ([note] if num_crowds > 1 else [])
    found = made.read("coco", outlines=True, keeps_crowds=False)
    assert not found.findings
    assert not made.of(found, "0.png").crowds


@pytest.mark.parametrize("instances", [True, False])
def test_crowds_are_stored_as_objects_if_the_user_says_so(tmp_path: Path, instances: bool) -> None:  # noqa: FBT001
    members = {f"{i}.png": PIXELS for i in range(8)} | {"a.json": crowded(8).encode()}
    path = write(tmp_path / "x.zip", zip_bytes(members))
    keys: dict[str, Any] = {"size": "none", "format": "png", "boxes": "coco", "masks": "coco"}
    keys |= {"instances": instances, "max_dropped": 1.0}
    for crowds, value in (("ignore", 255), ("objects", 2 if instances else 1)):
        watcher = Quiet()
        made = build(path, tmp_path / crowds, crowds=crowds, watcher=watcher, **keys)
        assert any("8 of 8 objects are crowds" in line for line in watcher.lines) == (value == 255)
        item = Dataset(made.path, "train", as_supervised=False)[0]
        assert ("objects/is_crowd" in item) == (value == 255)
        if instances:
            assert np.asarray(item["objects/mask"]).squeeze().sum() == 600
        else:
            mask = np.asarray(item["segmentation_mask"]).squeeze()
            assert (mask[:, :20] == value).all()
            assert (mask[:, 20:] == 0).all()


def test_crowds_without_documents_of_coco_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.zip", zip_bytes({"1.png": PIXELS, "1.txt": b"0 0.5 0.5 0.1 0.1"}))
    with pytest.raises(RecipeError, match="--crowds: works only with COCO annotations"):
        build(path, tmp_path / "out", boxes="yolo", crowds="objects")


TASKS = SHARED_DATA / "tasks.tar"


@pytest.mark.skipif(not TASKS.exists(), reason="real data are not here")
def test_panoptic_and_yolo_agree_on_the_same_photos() -> None:
    """In pixels; where both have a box of a class, for they leave out different ones."""
    made = opened(TASKS, "coco40/images/")
    document = "coco40/panoptic_segmentation/annotations/panoptic_train2017.json"
    panoptic = made.read(f"coco:{document}")
    things, yolo = made.rows(panoptic), made.rows(made.read("yolo:object_detection/config.yaml"))
    assert len(panoptic.names) == 80
    num_near = 0
    for key, rows in things.items():
        height, width = made.of(panoptic, key).size or (0, 0)
        sides = np.array([width, height, width, height])
        for name, box in rows:
            near = (
                [n for n, b in yolo[key] if np.allclose(sides * b, box, atol=1.5)]
                if key in yolo
                else []
            )
            assert not near or name in near, (key, name, box)
            num_near += bool(near)
    assert num_near > 100


def test_a_document_without_any_image_in_the_source_is_reported(tmp_path: Path) -> None:
    texts = {
        "instances_train.json": document([image(1, "1.png")], [thing(1, 1, [0, 0, 1, 1])]),
        "instances_val.json": document([image(1, "7.png")], [thing(1, 1, [0, 0, 1, 1])]),
    }
    found = source(tmp_path, texts, "1.png").read("coco")
    assert found.findings == ["no image of instances_val.json is in the source"]
    assert (found.without_image, found.num_elsewhere) == ({"7.png": 0}, 1)


def test_two_names_of_one_image_are_an_error_and_two_ids_a_note(tmp_path: Path) -> None:
    things = [thing(1, 1, [1, 2, 3, 4]), thing(2, 1, [5, 5, 9, 9])]
    text = document([image(1, "x/a.png"), image(2, "y/a.png")], things)
    with pytest.raises(SourceError, match=r"'x/a.png' and 'y/a.png' both match the image a.png"):
        source(tmp_path / "1", {"instances.json": text}, "a.png").read("coco")
    text = document([image(1, "a.png"), image(2, "a.png")], things)
    found = source(tmp_path / "2", {"instances.json": text}, "a.png").read("coco")
    what = "1 image has several ids in instances.json: their objects are stored together"
    assert what in found.findings


def test_outlines_in_shares_are_refused(tmp_path: Path) -> None:
    ring = [0.1, 0.1, 0.9, 0.1, 0.9, 0.9]
    things = [thing(1, 1, [4, 4, 20, 20], segmentation=[ring])]
    files = {"instances.json": document([image(1, "a.png")], things).encode(), "a.png": PIXELS}
    path = write(tmp_path / "a.zip", zip_bytes(files))
    with pytest.raises(SourceError, match=r"outlines must be in pixels.*shares of the sides"):
        build(path, tmp_path / "out", masks="coco")
