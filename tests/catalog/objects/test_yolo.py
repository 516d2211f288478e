"""YOLO: lines, names of classes, which file is of which image."""

import json
import math
import tarfile
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardprep.catalog.objects.mask_values import given_values
from shardprep.catalog.objects.object_table import Found
from shardprep.errors import SourceError
from shardprep.image.annotation_types import Polygons
from tests.catalog.builders import VOC, catalog, facts_of, images, reasons
from tests.support.annotated import opened, source
from tests.support.builders import SHARED_DATA, jpeg
from tests.support.paths import data_rows

TASKS = SHARED_DATA / "tasks.tar"
needs_tasks = pytest.mark.skipif(not TASKS.exists(), reason="real data are not here")
NAMES = {"data.yaml": "names: [cat, dog, owl]\nnc: 3\n"}


def read_line(line: bytes, names: Mapping[str, str] | None = None) -> Found:
    """Return the objects of an image whose label file has one line."""
    with tempfile.TemporaryDirectory() as folder:
        made = source(Path(folder), {**(names or {}), "1.txt": line}, "1.png")
        return made.read("yolo", outlines=True)


@needs_tasks
@pytest.mark.parametrize(
    ("task", "total"), [("object_detection", 314), ("instance_segmentation", 262)]
)
def test_coco_as_yolo_has_every_object_of_every_line(task: str, total: int) -> None:
    made = opened(TASKS, "coco40/images/")
    found = made.read(f"yolo:coco40/{task}/config.yaml", outlines=True)
    num_objects = 0
    with tarfile.open(TASKS) as archive:
        for key, one in zip(made.index.keys, found.annotations, strict=True):
            name = key.replace("/images/", f"/{task}/labels/").replace(".jpg", ".txt")
            try:
                data = archive.extractfile(name)
            except KeyError:
                assert one is None
                continue
            assert data is not None
            assert one is not None
            assert one.is_relative
            lines = [list(map(float, line.split()[1:])) for line in data.read().splitlines()]
            num_objects += len(lines)
            assert len(one.boxes) == len(lines)
            for box, numbers, outline in zip(
                one.boxes, lines, one.outlines or [None] * len(lines), strict=True
            ):
                if len(numbers) == 4:
                    x, y, w, h = numbers
                    wanted = [x - w / 2, y - h / 2, x + w / 2, y + h / 2]
                else:
                    assert isinstance(outline, Polygons)
                    np.testing.assert_array_equal(outline.rings[0].ravel(), numbers)
                    xs, ys = numbers[::2], numbers[1::2]
                    wanted = [min(xs), min(ys), max(xs), max(ys)]
                np.testing.assert_allclose(box, wanted, atol=1e-6)
    assert num_objects == total
    assert len(found.names) == 80
    assert found.names[:2] == ("person", "bicycle")
    assert found.is_complete


@needs_tasks
def test_boxes_and_polygons_of_the_same_photos_agree_on_their_classes() -> None:
    made = opened(TASKS, "coco40/images/")
    by_box = made.rows(made.read("yolo:object_detection/config.yaml"))
    by_polygon = made.rows(made.read("yolo:instance_segmentation/config.yaml"))
    num_found = 0
    for key, rows in by_polygon.items():
        for name, box in rows:
            near = [n for n, other in by_box.get(key, []) if np.allclose(box, other, atol=3e-3)]
            assert not near or name in near
            num_found += bool(near)
    assert num_found > 150


@needs_tasks
def test_two_sets_of_labels_for_the_same_photos_must_be_told_apart() -> None:
    made = opened(TASKS, "coco40/images/")
    with pytest.raises(SourceError, match="several files name the classes in different ways"):
        made.read("yolo")
    assert made.signs() == [
        "yolo:coco40/instance_segmentation/config.yaml",
        "yolo:coco40/object_detection/config.yaml",
    ]


def test_each_line_is_a_box_or_a_polygon_by_itself(tmp_path: Path) -> None:
    lines = [
        "1 0.5 0.5 0.2 0.4",
        "0 .5 .5 .2 .4 0.93",
        "2 0.1 0.2 0.4 0.2 0.4 0.6",
        "1.0 0.1 0.1 0.3 0.1 0.3 0.5 0.1 0.5",
        "",
    ]
    made = source(tmp_path, {**NAMES, "labels/1.txt": "\r\n".join(lines)}, "images/1.png")
    found = made.read("yolo", outlines=True)
    one = made.of(found, "images/1.png")
    wanted = [
        [0.4, 0.3, 0.6, 0.7],
        [0.4, 0.3, 0.6, 0.7],
        [0.1, 0.2, 0.4, 0.6],
        [0.1, 0.1, 0.3, 0.5],
    ]
    np.testing.assert_allclose(one.boxes, wanted)
    assert one.labels == (1, 0, 2, 1)
    assert [outline is not None for outline in one.outlines] == [False, False, True, True]
    assert not made.of(made.read("yolo"), "images/1.png").outlines


def test_bad_lines_cost_their_objects_and_not_the_image(tmp_path: Path) -> None:
    lines = ["9 .5 .5 .1 .1", "0 .5 .5 .1", "x .5 .5 .1 .1", "0.5 .5 .5 .1 .1", "-1 .5 .5 .1 .1"]
    lines += ["inf 0 0 1 1", "nan 0 0 1 1", "0 1 1 2 2 3 3 4", "0 nan .5 .1 .1", "0 .5 .5 .1 .1"]
    made = source(tmp_path, {**NAMES, "1.txt": "\n".join(lines)}, "1.png")
    one = made.of(made.read("yolo"), "1.png")
    assert one.dropped == {"malformed": 7, "unknown class": 1}
    np.testing.assert_allclose(one.boxes[1], [0.45, 0.45, 0.55, 0.55])
    assert np.isnan(one.boxes[0]).any()
    assert not one.fault


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "\n\nhello world",
            "1.txt is not YOLO: line 3 is 'hello world': 'hello' is not a number",
        ),
        (
            "0,.5,.5,.1,.1",
            "1.txt is not YOLO: line 1 is '0,.5,.5,.1,.1': '0,.5,.5,.1,.1' is not a number, blanks",
        ),
        ("0.5 .5 .5 .1 .1", "1.txt is not YOLO: line 1 is '0.5 .5 .5 .1 .1': the class is not"),
        (b"\x89PNG\0\1", "1.txt is not YOLO: line 1 is"),
        ("0 0.5 0.5 0.4 0.6 1.57", "1.txt is not YOLO: line 1 is"),
        ("0 .1 .1 .3 .1 .3 .5 .1", "1.txt is not YOLO: line 1 is"),
        ("0 .1 .1 .3", "1.txt is not YOLO: line 1 is"),
        ("0 .5 .5 .1 .1\n" * 1_300_000, "1.txt is larger than 16 MiB"),
    ],
)
def test_a_file_without_a_readable_line_is_a_fault_of_its_image(
    tmp_path: Path, text: str | bytes, message: str
) -> None:
    made = source(tmp_path, {**NAMES, "1.txt": text, "2.txt": "0 .5 .5 1 1"}, "1.png", "2.png")
    found = made.read("yolo")
    assert made.of(found, "1.png").fault.startswith(message)
    assert made.rows(found)["2.png"] == [("cat", (0, 0, 1, 1))]


def test_numbers_without_names_that_become_others_are_said(tmp_path: Path) -> None:
    texts = {"labels/1.txt": "0 .5 .5 .1 .1\n3 .5 .5 .1 .1"}
    found = source(tmp_path / "gap", texts, "images/1.png").read("yolo")
    assert found.names == ("0", "3")
    said = "class 3 is stored as 1; --classes 0,1,2,3 keeps the numbers"
    assert any(said in line for line in found.findings)
    texts = {"labels/1.txt": "0 .5 .5 .1 .1\n1 .5 .5 .1 .1"}
    found = source(tmp_path / "whole", texts, "images/1.png").read("yolo")
    assert not any("stored as" in line for line in found.findings)


@pytest.mark.parametrize(("number", "is_said"), [(2, False), (3, True)])
def test_a_number_of_classes_that_differs_from_the_names_is_said(
    tmp_path: Path,
    number: int,
    is_said: bool,  # noqa: FBT001
) -> None:
    texts = {"data.yaml": f"nc: {number}\nnames: [cat, dog]\n", "1.txt": "0 .5 .5 .1 .1"}
    found = source(tmp_path, texts, "1.png").read("yolo")
    assert ("data.yaml: nc is 3, but names has 2" in found.findings) == is_said


def test_a_names_file_that_is_missing_names_the_ones_there(tmp_path: Path) -> None:
    texts = {"set/data.yaml": "names: [cat]\n", "1.txt": "0 .5 .5 .1 .1"}
    made = source(tmp_path, texts, "1.png")
    with pytest.raises(SourceError, match=r"no such file.* one of the source: set/data.yaml"):
        made.read("yolo:data.yml")


def test_an_empty_and_a_missing_file_mean_no_object(tmp_path: Path) -> None:
    texts = {"labels/1.txt": "", "labels/classes.txt": "cat\n", "labels/9.txt": "0 .5 .5 .1 .1"}
    made = source(tmp_path, texts, "images/1.png", "images/2.png")
    found = made.read("yolo")
    assert made.rows(found) == {"images/1.png": []}
    assert found.is_complete
    assert found.without_image == {"labels/9.txt": 1}
    assert found.names == ("cat",)


@pytest.mark.parametrize(("name", "text", "names"), data_rows("objects", "yolo_name_files"))
def test_files_that_name_the_classes(
    tmp_path: Path, name: str, text: str | bytes, names: tuple[str, ...]
) -> None:
    made = source(tmp_path, {name: text, "labels/1.txt": "0 .5 .5 1 1"}, "images/1.png")
    assert made.read("yolo").names == names
    assert made.read(f"yolo:{name}").names == names
    assert made.signs() == ["yolo"]


def test_numbers_with_gaps_are_ids_and_not_places(tmp_path: Path) -> None:
    texts = {
        "d.yaml": "names: {1: person, 13: stop sign}",
        "1.txt": "13 .5 .5 1 1\n1 .5 .5 1 1\n2 .5 .5 1 1",
    }
    made = source(tmp_path, texts, "1.png")
    one = made.of(made.read("yolo"), "1.png")
    assert one.labels == (1, 0)
    assert one.dropped == {"unknown class": 1}


def test_without_names_classes_are_their_numbers(tmp_path: Path) -> None:
    made = source(tmp_path, {"1.txt": "10 .5 .5 1 1\n2 .5 .5 1 1"}, "1.png")
    found = made.read("yolo")
    assert found.names == ("2", "10")
    assert made.of(found, "1.png").labels == (1, 0)
    assert "no names" in found.findings[0]


ODD_NAMES = (
    "yes", "no", "on", "010", "0x1F", "1:30", "1_000", "1e3", "null", "~", "2001-02-03", ".inf",
    "=", ":".join(["59"] * 5_000),
)  # fmt: skip
"""Texts that YAML takes for truths, numbers, times or nothing."""


@pytest.mark.parametrize("tag", ["", "!!bool ", "!!int ", "!!timestamp ", "!!binary ", "!x "])
@pytest.mark.parametrize("form", ["list", "block", "map"])
def test_yaml_names_are_always_texts(tmp_path: Path, form: str, tag: str) -> None:
    lines = [f"{tag}{name}" for name in (*ODD_NAMES, "foo")]
    text = {
        "list": f"names: [{', '.join(lines)}]",
        "block": "names:\n" + "".join(f"- {line}\n" for line in lines),
        "map": "names:\n" + "".join(f"  {i}: {line}\n" for i, line in enumerate(lines)),
    }[form]
    label = f"{len(ODD_NAMES)} .5 .5 1 1"
    made = source(tmp_path, {"data.yaml": text, "labels/1.txt": label}, "images/1.png")
    found = made.read("yolo")
    assert found.names == (*ODD_NAMES, "foo")
    assert made.rows(found)["images/1.png"] == [("foo", (0, 0, 1, 1))]
    values = given_values("data.yaml", lambda _: text.encode())
    assert values.names == (*ODD_NAMES, "foo")


MERGES = "a0: &a0 {0: cat}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 12)
)
"""Merge keys that make 9^11 names of one."""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *data_rows("objects", "yolo_name_errors"),
        ("names: {" + "1" * 900 + ": a}", "has an invalid entry '1111"),
        ("names: " + "[" * 5000, "is damaged YAML"),
        ("names: " + "[\n" * 100_000 + "]" * 100_000, "nested too deeply"),
        ("names: " + "{a: " * 100_000, "nested too deeply"),
        (MERGES, "names no classes"),
        (f"{MERGES}names: {{<<: *a11}}", "has an invalid entry '<<' in 'names'"),
        ("#" + " " * (1 << 20), "has 1,048,577 bytes, but"),
    ],
)
def test_a_bad_file_of_names_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    made = source(tmp_path, {"data.yaml": text, "1.txt": "0 .5 .5 1 1"}, "1.png")
    with pytest.raises(SourceError, match=r"data\.yaml") as raised:
        made.read("yolo:data.yaml")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


PATHS = {
    "folders": ("train: images/train\nval: images/val\ntest: ../images/test", "images/{0}/{1}.png"),
    "darknet lists": ("train: a.txt\nval: ./b.txt\ntest: [c.txt]", "images/{1}.png"),
    "roboflow": (
        "train: ../train/images\nval: ../valid/images\ntest: ../test/images",
        "{0}/images/{1}.png",
    ),
    "folders of another machine": (
        "train: set-6/train/images\nval: /content/set-6/valid/images\ntest: C:\\x\\test\\images",
        "{0}/images/{1}.png",
    ),
}


@pytest.mark.parametrize("case", PATHS)
def test_the_yaml_gives_splits_by_folders_or_lists(tmp_path: Path, case: str) -> None:
    paths, template = PATHS[case]
    has_valid = "{0}" in PATHS[case][1][:3]
    splits = ("train", "valid" if has_valid else "val", "test")
    keys = [template.format(split, i) for i, split in enumerate(splits)]
    texts = {f"{name}.txt": f"/data/images/{i}.png\n" for i, name in enumerate("abc")}
    texts |= {key.replace("images", "labels").replace("png", "txt"): "0 .5 .5 1 1" for key in keys}
    made = source(tmp_path, {**texts, "data.yaml": f"{paths}\nnames: [x]"}, *keys)
    found = made.read("yolo")
    given = dict(zip(made.index.keys, found.splits or (), strict=True))
    assert [given[key] for key in keys] == ["train", "validation", "test"]
    assert not found.without_image
    assert not found.findings


def test_a_yaml_whose_train_folder_is_not_there_leaves_no_image_out(tmp_path: Path) -> None:
    keys = ["images/a/1.png", "images/test/2.png"]
    texts = {key.replace("images", "labels").replace("png", "txt"): "0 .5 .5 1 1" for key in keys}
    texts["data.yaml"] = "train: /home/me/images\ntest: ../images/test\nnames: [x]"
    made = source(tmp_path, texts, *keys)
    found = made.read("yolo")
    assert found.splits == [None, "test"]
    said = "data.yaml names the folder '/home/me/images', which the source lacks"
    assert found.findings == [said]


def test_files_of_equal_names_belong_to_the_images_of_their_folders(tmp_path: Path) -> None:
    keys = [f"{split}/images/{i}.png" for split in ("test", "train", "valid") for i in (1, 2)]
    texts = {
        key.replace("images", "labels").replace("png", "txt"): f"0 .5 .5 .{i} .1"
        for i, key in enumerate(keys, 1)
    }
    made = source(tmp_path, {**NAMES, **texts}, *keys)
    widths = [box[2] - box[0] for [(_, box)] in made.rows(made.read("yolo")).values()]
    np.testing.assert_allclose(widths, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])


def test_a_file_of_another_split_is_of_no_image_of_this_one(tmp_path: Path) -> None:
    texts = {"valid/labels/7.txt": "0 .5 .5 1 1", "train/labels/1.txt": ""}
    made = source(tmp_path, {**NAMES, **texts}, "train/images/1.png", "train/images/7.png")
    found = made.read("yolo")
    assert made.rows(found) == {"train/images/1.png": []}
    assert found.without_image == {"valid/labels/7.txt": 1}


def test_two_files_for_one_image_are_an_error_with_a_way_out(tmp_path: Path) -> None:
    texts = {
        "a/labels/1.txt": "0 .5 .5 1 1",
        "b/labels/1.txt": "1 .5 .5 1 1",
        "b/data.yaml": NAMES["data.yaml"],
    }
    made = source(tmp_path, texts, "images/1.png")
    with pytest.raises(
        SourceError, match=r"b/labels/1.txt: images/1.* is also annotated in a/labels/1.txt"
    ):
        made.read("yolo")
    assert made.rows(made.read("yolo:b/data.yaml"))["images/1.png"] == [("dog", (0, 0, 1, 1))]


def test_annotation_files_that_exclude_matches_are_skipped_unless_an_option_names_them(
    tmp_path: Path,
) -> None:
    members = images("images/1.jpg", "images/2.jpg") | {
        f"{folder}/{i}.txt": b"0 .5 .5 1 1" for folder in ("a", "b") for i in (1, 2)
    }
    members["b/names.txt"] = b"cat"
    out = {f"b/{i}.txt": "matched by --exclude" for i in (1, 2)}
    made = catalog(tmp_path, members, boxes="yolo", exclude=("b/*",))
    assert reasons(made) == out | {"b/names.txt": "matched by --exclude"}
    named = catalog(tmp_path, members, boxes="yolo:b/names.txt", exclude=("b/?.txt", "b/n*"))
    assert facts_of(named).names == ("cat",)


def test_other_text_files_are_not_labels(tmp_path: Path) -> None:
    texts = {
        **NAMES,
        "labels/1.txt": "",
        "labels/README.txt": "hello",
        "README.txt": "x",
        "train.txt": "1",
    }
    made = source(tmp_path, texts, "images/1.png")
    assert not made.read("yolo").without_image
    with pytest.raises(SourceError, match=r"use another format: the source has README\.txt"):
        source(tmp_path, {"README.txt": "hello"}, "1.png").read("yolo")
    texts = {"README.txt": "hello", "classes.txt": "cat", "labels/x1.txt": "0 0.5 0.5 0.5 0.5"}
    with pytest.raises(SourceError, match=r"no TXT file, such as labels/x1.*, belongs to an image"):
        source(tmp_path, texts, "1.png").read("yolo")


def test_a_list_of_a_split_means_the_image_of_its_split(tmp_path: Path) -> None:
    yaml = "names: [cat]\ntrain: train.txt\nval: val.txt\n"
    texts = {"data.yaml": yaml, "train.txt": "1.png", "val.txt": "1.png"}
    texts |= {f"labels/{split}/1.txt": "0 0.5 0.5 0.5 0.5" for split in ("train", "val")}
    found = source(tmp_path, texts, "images/train/1.png", "images/val/1.png").read("yolo")
    assert found.splits == ["train", "validation"]


# Poses


def pose(box: Sequence[float], points: Sequence[tuple[float, ...]]) -> str:
    return " ".join(["0", *(f"{value:g}" for value in (*box, *np.ravel(points)))])


BOX = (0.5, 0.5, 0.4, 0.6)
CORNERS = [0.3, 0.2, 0.7, 0.8]
shares = st.floats(0.001, 0.999)


@given(
    shape=st.tuples(st.integers(1, 20), st.sampled_from((2, 3))),
    box=st.tuples(shares, shares, shares, shares),
    data=st.data(),
)
@settings(max_examples=30, deadline=None)
def test_the_box_of_a_pose_of_any_stated_shape_is_read(
    shape: tuple[int, int], box: tuple[float, ...], data: st.DataObject
) -> None:
    points = data.draw(st.lists(shares, min_size=math.prod(shape), max_size=math.prod(shape)))
    line = " ".join(map(repr, (1, *box, *points))).encode()
    names = {"data.yaml": f"names: [cat, dog]\nkpt_shape: {[*shape]}"}
    found = read_line(line, names)
    (one,) = found.annotations
    assert one is not None
    x, y, width, height = box
    wanted = [[x - width / 2, y - height / 2, x + width / 2, y + height / 2]]
    np.testing.assert_allclose(one.boxes, wanted)
    assert (one.labels, one.outlines, one.dropped, one.fault) == ((1,), (), {}, "")
    assert found.findings == [
        "keypoints of 1 object are not stored, their boxes are; --points yolo stores both"
    ]


@pytest.mark.parametrize("flags", [(2, 2, 0, 1), (2, 1), (1, 1, 1, 1), (0,), (2, 0, 0)], ids=str)
def test_flags_show_a_pose_if_the_names_file_states_no_shape(
    tmp_path: Path, flags: tuple[int, ...]
) -> None:
    line = pose(BOX, [(0.4 + i / 50, 0.5, flag) for i, flag in enumerate(flags)])
    made = source(tmp_path, {**NAMES, "labels/1.txt": line}, "images/1.png")
    found = made.read("yolo", outlines=True)
    one = made.of(found, "images/1.png")
    np.testing.assert_allclose(one.boxes, [CORNERS])
    assert not one.outlines
    assert made.signs() == ["yolo"]


@given(st.lists(st.tuples(shares, shares), min_size=3, max_size=12))
@example([(0, 0), (1, 0), (1, 1), (0, 1), (0, 0)])  # along the edge of its image, as below
@example([(0.3, 1), (0.3, 0.7), (0.15, 0.6), (0, 0.7), (0, 1)])
@example([(0.2, 0.5), (0.5, 1), (1, 1), (1, 0), (0.3, 0), (0, 0.2)])
@settings(max_examples=30, deadline=None)
def test_a_polygon_inside_its_image_is_not_a_pose(points: list[tuple[float, float]]) -> None:
    line = " ".join(map(repr, (0, *np.ravel(points).tolist()))).encode()
    (one,) = read_line(line).annotations
    assert one is not None
    (outline,) = one.outlines
    assert isinstance(outline, Polygons)
    np.testing.assert_array_equal(outline.rings[0], points)


POSES = {"data.yaml": "names: [cat]\nkpt_shape: [4, 3]\n"}
FITS_NEITHER = [
    "0 0.1 0.2 0.4 0.2 0.4 0.6",  # a polygon
    pose(BOX, [(0.4, 0.5)] * 4),  # keypoints without flags
    pose(BOX, [(0.4, 0.5, 2)] * 5),  # a keypoint too many
    pose(BOX, [(0.4, 0.5, 2)] * 4) + " 0.9",  # a value too many
    "0 0.5 0.5 0.4 0.6 1.57",  # a box and an angle, which is no confidence
    "0 0.1 0.1 0.3 0.1 0.3 0.5 0.1 0.5",  # an oriented box
]


def test_among_poses_what_is_neither_box_nor_pose_is_malformed(tmp_path: Path) -> None:
    whole = [pose(BOX, [(0.4, 0.5, 2)] * 4), "0 0.5 0.5 0.4 0.6", "0 0.5 0.5 0.4 0.6 0.9"]
    texts = {**POSES, "labels/1.txt": "\n".join([*whole, *FITS_NEITHER])}
    made = source(tmp_path, texts, "images/1.png")
    one = made.of(made.read("yolo", outlines=True), "images/1.png")
    np.testing.assert_allclose(one.boxes, [CORNERS] * 3)
    assert one.dropped == {"malformed": len(FITS_NEITHER)}
    assert made.signs() == []


BAD_POSES = [f"kpt_shape: {one}" for one in ("17", "[17]", "[17, 4]", "[0, 3]", "[a, 3]", "{a: 1}")]
BAD_POSES += ["kpt_shape: [1.5, 2]", "kpt_shape: [2, 3]\nflip_idx: [0, 9]"]


@pytest.mark.parametrize("more", [*BAD_POSES, "kpt_shape: [2, 3]\nflip_idx: 5"])
def test_invalid_keypoints_of_the_names_file_are_an_error_if_they_are_asked_for(
    tmp_path: Path, more: str
) -> None:
    texts = {"data.yaml": f"names: [cat]\n{more}", "1.txt": "0 0.5 0.5 0.4 0.6"}
    made = source(tmp_path, texts, "1.png")
    with pytest.raises(SourceError, match=r"data\.yaml: has (kpt_|flip_).*; write the num"):
        made.read("yolo", keypoints=True)
    found = made.read("yolo")
    assert found.names == ("cat",)
    assert any("which is not used" in line for line in found.findings)
    np.testing.assert_allclose(made.of(found, "1.png").boxes, [CORNERS])
    assert made.signs() == ["yolo"]


@pytest.mark.skipif(not (SHARED_DATA / "modern.tar").exists(), reason="real data are not here")
def test_poses_of_coco_have_the_boxes_of_their_annotations(tmp_path: Path) -> None:
    """Fourteen people with 17 keypoints each, as ultralytics' converter writes them."""
    with tarfile.open(SHARED_DATA / "modern.tar") as archive:
        data = archive.extractfile("modern/coco/test_coco.json")
        assert data is not None
        document = json.load(data)
    sizes = {one["id"]: (one["width"], one["height"]) for one in document["images"]}
    lines: dict[str, list[str]] = {}
    boxes: dict[str, list[list[float]]] = {}
    for one in document["annotations"]:
        width, height = sizes[one["image_id"]]
        left, top, w, h = one["bbox"]
        points = np.array(one["keypoints"], float).reshape(-1, 3) / (width, height, 1)
        box = ((left + w / 2) / width, (top + h / 2) / height, w / width, h / height)
        key = str(one["image_id"])
        lines.setdefault(key, []).append(pose(box, points.tolist()))
        edges = [left / width, top / height, (left + w) / width, (top + h) / height]
        boxes.setdefault(key, []).append(edges)
    texts = {f"labels/{key}.txt": "\n".join(several) for key, several in lines.items()}
    for names in ("names: [person]\nkpt_shape: [17, 3]", "names: [person]"):
        made = source(
            tmp_path, {**texts, "data.yaml": names}, *(f"images/{key}.png" for key in lines)
        )
        found = made.read("yolo")
        for key, wanted in boxes.items():
            one_image = made.of(found, f"images/{key}.png")
            np.testing.assert_allclose(one_image.boxes, wanted, atol=1e-5)
    assert sum(map(len, boxes.values())) == 14


@pytest.mark.parametrize("lists", ["yolo", "voc"])
def test_an_image_in_no_list_of_a_split_is_skipped_and_counted(lists: str, tmp_path: Path) -> None:
    members = {f"images/{i}.jpg": jpeg(48, 64, seed=i) for i in range(6)} | images("test/7.jpg")
    if lists == "yolo":
        members |= {f"labels/{i}.txt": b"0 .5 .5 .2 .2\n" for i in range(6)}
        members |= {"train.txt": b"images/0.jpg\nimages/1.jpg\n", "val.txt": b"./images/2.jpg\n"}
        members["data.yaml"] = b"names: [a]\ntrain: train.txt\nval: val.txt\n"
    else:
        members = {key.replace("images/", "JPEGImages/"): data for key, data in members.items()}
        members |= {f"Annotations/{i}.xml": VOC for i in range(6)}
        members |= {"ImageSets/Main/train.txt": b"0\n1\n", "ImageSets/Main/val.txt": b"2\n"}
    made = catalog(tmp_path, members, boxes=lists)
    assert Counter(item.split for item in made.items) == {"train": 2, "validation": 1, "test": 1}
    assert Counter(reasons(made).values())["in no split"] == 3
    assert "3 images are in no list of a split; --unlisted train takes them" in made.findings
    taken = catalog(tmp_path, members, boxes=lists, unlisted="train")
    assert Counter(item.split for item in taken.items)["train"] == 5


def test_a_list_is_that_of_its_whole_name_and_a_missing_one_is_said(tmp_path: Path) -> None:
    members = {f"images/{i}.jpg": jpeg(48, 64, seed=i) for i in range(6)}
    members |= {f"labels/{i}.txt": b"0 .5 .5 .2 .2\n" for i in range(6)}
    members |= {"a/old_train.txt": b"images/5.jpg\n", "train.txt": b"0.jpg\n1.jpg\n"}
    members["data.yaml"] = b"names: [a]\ntrain: ./train.txt\nval: val.txt\n"
    made = catalog(tmp_path, members, boxes="yolo")
    assert [item.key for item in made.items] == ["images/0.jpg", "images/1.jpg"]
    assert "data.yaml names the list 'val.txt', which the source lacks" in made.findings
    members["old/train.txt"] = members.pop("train.txt")
    members["new/train.txt"] = b"images/5.jpg\n"
    with pytest.raises(SourceError, match=r"new/train\.txt, old/train\.txt; remove one"):
        catalog(tmp_path / "2", members, boxes="yolo")


def test_taking_images_of_no_list_does_not_hide_missing_files(tmp_path: Path) -> None:
    members = {f"images/{i}.jpg": jpeg(48, 64, seed=i) for i in range(12)}
    members |= {f"labels/{i}.txt": b"0 .5 .5 .2 .2\n" for i in range(4)}
    members |= {"train.txt": b"0.jpg\n1.jpg\n", "data.yaml": b"names: [a]\ntrain: train.txt\n"}
    with pytest.raises(SourceError, match="have no annotation"):
        catalog(tmp_path, members, boxes="yolo", unlisted="train")
