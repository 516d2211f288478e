"""Keypoints from source to record, against pycocotools, NumPy and twins of competitions."""

import functools
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]
from PIL import Image

import shardprep
from shardprep.catalog.survey import recipe_text, survey_source
from shardprep.dataset.folder import read_schema
from shardprep.dataset.schema import KEYPOINTS, POINTS, Feature
from shardprep.errors import BuildError, RecipeError, SourceError
from shardprep.image.drawing import class_colour
from shardprep.writer.finalize import BuildResult
from tests.support.builders import SHARED_DATA, build, png, write_folder
from tests.writer import records as records_of
from tests.writer.records import records, rows

MODERN = SHARED_DATA / "modern.tar"
HEIGHT, WIDTH = 30, 40
IMAGE = png(HEIGHT, WIDTH)


built = functools.partial(records_of.built, size="none", name="set", shards=1)
"""Builds a source without labels."""


def feature(result: BuildResult, name: str = KEYPOINTS) -> Feature:
    return read_schema(result.path).features[name]


def places(features: dict[str, Any], number: int, name: str = KEYPOINTS) -> Any:
    """Return x, y in pixels of the source and visibility of each keypoint, [n, number, 3]."""
    yx = np.reshape(features[name], (-1, number, 2)) * (HEIGHT, WIDTH)
    visible = np.reshape(features[f"{name}/visible"], (-1, number, 1))
    return np.concatenate([yx[..., ::-1], visible], axis=-1)


# --- real data against pycocotools --------------------------------------------------------------


def modern(folder: Path, name: str) -> Path:
    with tarfile.open(MODERN) as archive:
        archive.extractall(folder, filter="data")
    return folder / "modern" / name


@pytest.mark.skipif(not MODERN.exists(), reason="real data are not here")
@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("coco", ("none", "pad", "crop", "stretch", "within")),
        pytest.param("animalpose", ("none",), marks=pytest.mark.thorough),
        pytest.param("freihand", ("none",), marks=pytest.mark.thorough),
    ],
)
def test_keypoints_of_real_images_are_where_pycocotools_and_numpy_say(
    tmp_path: Path, name: str, fits: tuple[str, ...]
) -> None:
    """The map of each fit is affine. A keypoint that a crop leaves out is 0, 0, 0."""
    from pycocotools.coco import COCO

    folder = modern(tmp_path, name)
    truth = COCO(str(folder / f"test_{name}.json"))
    category = truth.loadCats(truth.getCatIds())[0]
    number, num_seen = len(category["keypoints"]), 0
    for fit in fits:
        size = "none" if fit == "none" else "400x400"
        keys: dict[str, Any] = {
            "points": f"coco:test_{name}.json",
            "size": size,
            "fit": fit,
            "name": "set",
        }
        made = build(folder, tmp_path / fit, **keys)
        own = feature(made)
        assert list(own.points) == category["keypoints"]
        assert [[a + 1, b + 1] for a, b in own.edges] == category["skeleton"]
        found = records(made.path)
        for image in truth.loadImgs(truth.getImgIds()):
            features = found[image["file_name"]]
            height, width = features["image/height"][0], features["image/width"][0]
            said = truth.loadAnns(truth.getAnnIds(image["id"]))
            wanted = np.array([one["keypoints"] for one in said], float).reshape(-1, number, 3)
            sides = np.array([image["width"], image["height"]], float)
            scale, shift = np.array([width, height]) / sides, np.zeros(2)
            if fit == "crop":
                scale = np.full(2, max(scale))
                shift = (np.array([width, height]) - sides * scale) / 2
            if fit == "pad":
                inner = np.round(sides * min(scale))
                scale, shift = inner / sides, (np.array([width, height]) - inner) // 2
            moved = wanted[..., :2] * scale + shift
            is_left = ((moved >= 0) & (moved <= (width, height))).all(-1) & (wanted[..., 2] > 0)
            yx = np.reshape(features[KEYPOINTS], (-1, number, 2)) * (height, width)
            visible = np.reshape(features[f"{KEYPOINTS}/visible"], (-1, number))
            if fit != "crop":  # a crop drops people
                assert (is_left == (wanted[..., 2] > 0)).all()
                assert np.array_equal(visible, wanted[..., 2])
                error = np.abs(yx[..., ::-1] - moved)[is_left]
                assert error.size == 0 or error.max() < 0.01
            assert not yx[visible == 0].any()
            for points, seen in zip(yx[..., ::-1], visible, strict=True):
                away = np.where(is_left[..., None], np.abs(moved - points), 0.0).max((1, 2))
                fits_one = (away < 0.01) & (np.where(is_left, wanted[..., 2], 0) == seen).all(1)
                assert fits_one.any()
                num_seen += int(np.count_nonzero(seen))
    assert num_seen > 0


@pytest.mark.skipif(not MODERN.exists(), reason="real data are not here")
def test_an_export_to_coco_has_the_keypoints_of_its_source(tmp_path: Path) -> None:
    from pycocotools.coco import COCO

    folder = modern(tmp_path, "animalpose")
    made = build(folder, tmp_path / "out", points="coco", size="none", name="set")
    out = shardprep.export(made.path, to="coco", out=tmp_path / "coco").path
    one, two = (
        COCO(str(folder / "test_animalpose.json")),
        COCO(str(out / "annotations/instances_test.json")),
    )
    names = [
        {i["id"]: Path(i["file_name"]).stem for i in coco.dataset["images"]} for coco in (one, two)
    ]
    points = [
        sorted(
            (own[a["image_id"]], np.round(a["keypoints"], 3).tolist())
            for a in coco.dataset["annotations"]
        )
        for coco, own in zip((one, two), names, strict=True)
    ]
    assert points[0] == points[1]


# --- COCO ---------------------------------------------------------------------------------------


def coco(*annotations: dict[str, Any], **more: Any) -> str:
    categories = [
        {"id": 1, "name": "person", "keypoints": ["nose", "left_eye", "right_eye"],
         "skeleton": [[1, 2], [1, 3]]},
        {"id": 2, "name": "cup", "keypoints": ["rim", "nose"]},
        {"id": 3, "name": "ball"},
    ]  # fmt: skip
    images = [
        {"id": i, "file_name": f"{i}.png", "width": WIDTH, "height": HEIGHT} for i in (1, 2, 9)
    ]
    entries = [{"bbox": [4, 4, 20, 16], "id": i, **one} for i, one in enumerate(annotations)]
    return json.dumps({"images": images, "annotations": entries, "categories": categories, **more})


def test_every_object_of_coco_is_stored_dropped_or_unmatched(tmp_path: Path) -> None:
    """Image 9 is missing; categories with other keypoints share one list of names."""
    document = coco(
        {"image_id": 1, "category_id": 1, "keypoints": [5, 6, 2, 99, 6, 2, 0, 0, 0]},
        {"image_id": 1, "category_id": 2, "bbox": [1, 1, 9, 9], "keypoints": [8, 9, 1, 4, 5, 2]},
        {"image_id": 1, "category_id": 3, "bbox": [0, 0, 9, 9]},
        {"image_id": 2, "category_id": 1, "keypoints": [5, 6, 2]},
        {"image_id": 2, "category_id": 1, "keypoints": [5, 6, 3, 1, 1, 1, 0, 0, 0]},
        {"image_id": 2, "category_id": 1, "keypoints": ["a", 6, 2, 1, 1, 1, 0, 0, 0]},
        {"image_id": 9, "category_id": 1, "keypoints": [5, 6, 2, 1, 1, 1, 0, 0, 0]},
    )
    members = {"1.png": IMAGE, "2.png": IMAGE, "all.json": document}
    made, found = built(tmp_path, members, points="coco", max_dropped=1.0)
    assert feature(made).points == ("nose", "left_eye", "right_eye", "rim")
    assert feature(made).edges == ((0, 1), (0, 2))
    assert feature(made).mirrored == (0, 2, 1, 3)
    np.testing.assert_allclose(
        places(found["1.png"], 4),
        [
            [[5, 6, 2], [0, 0, 0], [0, 0, 0], [0, 0, 0]],
            [[4, 5, 2], [0, 0, 0], [0, 0, 0], [8, 9, 1]],
            [[0, 0, 0]] * 4,
        ],
        atol=1e-4,
    )
    assert found["2.png"][KEYPOINTS] == []
    counts = made.manifest.annotations["train"]
    assert counts.dropped == {"malformed": 2, "wrong number of keypoints": 1}
    assert counts.points is not None
    assert counts.points.model_dump() == {
        "num_labelled": 3,
        "num_without": 1,
        "lost": {"outside": 1},
    }
    assert made.manifest.unmatched is not None
    assert made.manifest.unmatched.objects == {"no image": 1}


def test_keypoints_are_stored_only_if_they_are_asked_for(tmp_path: Path) -> None:
    members = {
        "1.png": IMAGE,
        "2.png": IMAGE,
        "all.json": coco({"image_id": 1, "category_id": 2, "keypoints": [8, 9, 1, 4, 5, 2]}),
    }
    made, found = built(tmp_path, members, boxes="coco")
    assert KEYPOINTS not in found["1.png"]
    assert "labelled_points" not in rows(made.path)["1.png"]
    plan = shardprep.build(tmp_path / "source", boxes="coco", dry_run=True, out=tmp_path / "dry")
    assert "keypoints of 1 object are not stored; --points coco stores them" in plan.plan.findings
    survey = survey_source(tmp_path / "source", tmp_path / "work", lambda _: None)
    assert survey.annotations[0].flag == "--boxes coco --points coco"
    assert [one.options for one in survey.choices] == [{"points": "coco"}, {"boxes": "coco"}]
    assert '\n# points = "coco"\n' in recipe_text(survey)


def test_a_report_and_a_contact_sheet_show_the_keypoints(tmp_path: Path) -> None:
    entries = [
        {"image_id": i, "category_id": 1, "keypoints": [6, 6, 2, 9 + i, 9, 1, 0, 0, 0]}
        for i in range(1, 9)
    ]
    images = [{"id": i, "file_name": f"{i}.png"} for i in range(1, 9)]
    members = {f"{i}.png": png(HEIGHT, WIDTH, seed=i) for i in range(1, 9)}
    members["all.json"] = coco(*entries, images=images).encode()
    made, _ = built(tmp_path, members, points="coco")
    shardprep.report(made.path, output=tmp_path / "report.html")
    assert "Show boxes and keypoints" in (tmp_path / "report.html").read_text()
    shardprep.inspect(made.path, boxes=tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:  # tiles of 320 pixels, 8 pixels between them
        assert sheet.getpixel((8 + 6 * 8, 8 + 6 * 8)) == class_colour(0)


# --- YOLO ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["3 values", "2 values", "no shape"])
def test_poses_of_yolo_have_their_keypoints(tmp_path: Path, case: str) -> None:
    names: dict[str, Any] = {"names": ["cat"], "kpt_shape": [2, 3], "flip_idx": [1, 0]}
    names["kpt_names"] = {0: ["tail", "tip"]}
    if case == "2 values":
        names["kpt_shape"] = [2, 2]
    lines = {
        "3 values": "0 .5 .5 .5 .6 .25 .5 2 .5 .6 1\n0 .5 .5 .4 .4 .3 .5 0 0 0 0\n0 .5 .5 .3 .3\n",
        "2 values": "0 .5 .5 .5 .6 .25 .5 .5 .6\n0 .5 .5 .4 .4 .3 .5 -1 -1\n0 .5 .5 .3 .3\n",
    }
    text = lines.get(case, lines["3 values"])
    if case == "no shape":
        names = {"names": ["cat"]}
    members = {"images/a.png": IMAGE, "labels/a.txt": text, "data.yaml": yaml.safe_dump(names)}
    made, found = built(tmp_path, members, points="yolo")
    own = feature(made)
    assert (own.points, own.mirrored) == (
        (("0", "1"), ()) if case == "no shape" else (("tail", "tip"), (1, 0))
    )
    first: Any = [[[10, 15, 2], [20, 18, 2 if case == "2 values" else 1]]]
    second = [[[12, 15, 2], [0, 0, 0]]] if case == "2 values" else [[[0, 0, 0]] * 2]
    wanted = [*first, *second, [[0, 0, 0]] * 2]
    np.testing.assert_allclose(places(found["images/a.png"], 2), wanted, atol=1e-4)


def test_lines_that_may_be_poses_are_pointed_out(tmp_path: Path) -> None:
    """Keypoints without flags, and no names file that states the shape of poses."""
    lines = "0 .5 .5 .5 .6 .25 .5 .5 .6 .6 .7\n0 .4 .5 .2 .2 .35 .5 .45 .45 .4 .4\n"
    source = write_folder(tmp_path / "s", {"a.png": IMAGE, "a.txt": lines.encode()})
    plan = shardprep.build(source, boxes="yolo", dry_run=True, out=tmp_path / "out")
    said = "2 lines may be poses without flags, and are read as polygons; --points yolo reads them"
    assert any(line.startswith(said) for line in plan.plan.findings)


# --- tables: twins of competitions --------------------------------------------------------------


def test_facial_keypoints_are_columns_of_one_row(tmp_path: Path) -> None:
    """A twin of facial-keypoints-detection: an empty cell, a doubled id, a missing image."""
    header = "left_eye_center_x,left_eye_center_y,right_eye_center_x,right_eye_center_y,ImageId"
    rows = "10.5,8,30,8.25,a\n,,29,9,b\n1,2,3,4,a\n7,8,9,10,gone\n99,5,x,5,c\n"
    members = {"a.png": IMAGE, "b.png": IMAGE, "c.png": IMAGE, "training.csv": f"{header}\n{rows}"}
    made, found = built(tmp_path, members, points="csv:training.csv", max_dropped=1.0)
    own = feature(made, POINTS)
    assert own.points == ("left_eye_center", "right_eye_center")
    assert own.mirrored == (1, 0)
    wanted: dict[str, Any] = {
        "a.png": [[10.5, 8, 2], [30, 8.25, 2]],
        "b.png": [[0, 0, 0], [29, 9, 2]],
        "c.png": [[0, 0, 0], [0, 0, 0]],
    }
    for key, one in wanted.items():
        np.testing.assert_allclose(places(found[key], 2, POINTS)[0], one, atol=1e-4)
    counts = made.manifest.annotations["train"].points
    assert counts is not None
    lost = {"not a number": 1, "outside": 1, "repeated": 2}
    assert counts.model_dump() == {"num_labelled": 3, "num_without": 1, "lost": lost}
    assert made.manifest.unmatched is not None
    assert made.manifest.unmatched.objects == {"no image": 2}


def test_images_without_a_row_of_keypoints_are_skipped_or_background(tmp_path: Path) -> None:
    rows = "image,nose_x,nose_y\n" + "".join(f"{i},{i}.5,4\n" for i in range(8))
    members = {f"{i}.png": png(HEIGHT, WIDTH, seed=i) for i in range(10)} | {"t.csv": rows}
    keys = {"points": "csv:t.csv", "split": "train=0.5,test=0.5"}
    made, found = built(tmp_path / "1", members, **keys)
    assert made.manifest.totals.skipped == {"no annotation": 2}
    assert {name: one.num_records for name, one in made.manifest.splits.items()} == {
        "train": 4, "test": 4,
    }  # fmt: skip
    made, found = built(tmp_path / "2", members, **keys, unlisted="background")
    assert sorted(key for key, one in found.items() if one[f"{POINTS}/visible"] == [0]) == [
        "8.png", "9.png",
    ]  # fmt: skip


def test_an_image_has_keypoints_and_a_target_of_several_numbers(tmp_path: Path) -> None:
    members = {
        **{f"{i}.png": png(HEIGHT, WIDTH, seed=i) for i in range(4)},
        "points.csv": "image,nose_x,nose_y\n" + "".join(f"{i},{i}.5,4\n" for i in range(4)),
        "labels.csv": "image,age,weight\n" + "".join(f"{i},{i},{i}.5\n" for i in range(4)),
    }
    keys = {"points": "csv:points.csv", "labels": "csv:labels.csv:image:age,weight"}
    _, found = built(tmp_path, members, **keys)
    for i in range(4):
        one = found[f"{i}.png"]
        assert list(one["targets"]) == [i, i + 0.5]
        np.testing.assert_allclose(places(one, 1, POINTS), [[[i + 0.5, 4, 2]]], atol=1e-5)


def test_lumbar_coordinates_are_rows_of_named_points(tmp_path: Path) -> None:
    """A twin of rsna-2024-lumbar-spine: ids of three columns, names of two."""
    rows = [
        "study_id,series_id,instance_number,condition,level,x,y",
        "1,7,3,Canal,L1/L2,12,9",
        "1,7,3,Canal,L2/L3,14,19.5",
        "1,7,4,Canal,L1/L2,,",
        "2,8,1,Canal,L1/L2,1,1",
    ]
    members = {f"train/1/7/{i}.png": IMAGE for i in (3, 4)}
    rule = "csv:c.csv:{study_id}/{series_id}/{instance_number}:x,y:condition,level"
    made, found = built(
        tmp_path, {**members, "c.csv": "\n".join(rows)}, points=rule, max_dropped=0.5
    )
    assert feature(made, POINTS).points == ("Canal L1/L2", "Canal L2/L3")
    np.testing.assert_allclose(
        places(found["train/1/7/3.png"], 2, POINTS)[0], [[12.0, 9.0, 2.0], [14, 19.5, 2]], atol=1e-4
    )
    assert not any(found["train/1/7/4.png"][f"{POINTS}/visible"])


def test_several_points_of_one_name_are_numbered(tmp_path: Path) -> None:
    """A twin of byu-flagellar-motors: −1 where a slice has no motor, a doubled row, and z."""
    rows = "tomo,z,y,x\na,1,10,20\na,1,4,5\na,1,10,20\nb,2,-1,-1\nc,3,7,7\n"
    members = {f"{key}.png": IMAGE for key in "abc"} | {"labels.csv": rows}
    with pytest.raises(BuildError, match=r"1 of 4 keypoints are invalid .*: 1 repeated; the work"):
        built(tmp_path / "strict", members, points="csv:labels.csv:tomo:x,y")
    made, found = built(tmp_path, members, points="csv:labels.csv:tomo:x,y", max_dropped=0.3)
    assert feature(made, POINTS).points == ("point", "point 2")
    np.testing.assert_allclose(
        places(found["a.png"], 2, POINTS)[0], [[20, 10, 2], [5, 4, 2]], atol=1e-4
    )
    assert found["b.png"][f"{POINTS}/visible"] == [0, 0]
    assert found["c.png"][f"{POINTS}/visible"] == [2, 0]
    counts = made.manifest.annotations["train"].points
    assert counts is not None
    assert counts.lost == {"repeated": 1}
    plan = shardprep.build(
        tmp_path / "source", points="csv:labels.csv", dry_run=True, out=tmp_path / "dry"
    )
    assert any("z is not stored with the keypoints" in line for line in plan.plan.findings)
    survey = survey_source(tmp_path / "source", tmp_path / "work", lambda _: None)
    assert "--points csv:labels.csv:tomo" in [sign.flag for sign in survey.annotations]


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("csv:t.csv:image:a,b", "t.csv: has no keypoints in a, b"),
        ("csv:t.csv:image:a", "is not FILE:ID:X,Y:NAME"),
        ("csv:t.csv", "it is not clear which columns are x and y: image, a, b"),
        ("csv:gone.csv", "gone.csv"),
        ("coco", "no document of the source has this format"),
        ("voc", "'voc' is not a format of keypoints"),
        ("labelme", "no document of the source has this format"),
    ],
)
def test_a_wrong_rule_for_keypoints_is_one_line(tmp_path: Path, rule: str, said: str) -> None:
    table = b"image,a,b\n1,u,v\n2,w,\n"
    source = write_folder(tmp_path / "s", {"1.png": IMAGE, "2.png": IMAGE, "t.csv": table})
    with pytest.raises((SourceError, RecipeError)) as error:
        build(source, tmp_path / "out", points=rule)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_hostile_numbers_of_keypoints_are_one_line(tmp_path: Path) -> None:
    """No array of that size is made."""
    values = [1, 1, 2] * 200_000
    document = coco({"image_id": 1, "category_id": 3, "keypoints": values})
    source = write_folder(tmp_path / "s", {"1.png": IMAGE, "all.json": document.encode()})
    with pytest.raises(SourceError, match="objects have 200,000 keypoints, more than 1,000"):
        build(source, tmp_path / "out", points="coco")
    rows = "".join(f"1,{i},{i}.5\n" for i in range(2_000))
    source = write_folder(tmp_path / "t", {"1.png": IMAGE, "t.csv": f"image,x,y\n{rows}".encode()})
    with pytest.raises(SourceError, match=r"t.csv: has 2,000 keypoints of all images"):
        build(source, tmp_path / "out", points="csv:t.csv")


def test_keypoints_and_boxes_are_of_one_document(tmp_path: Path) -> None:
    members = {"1.png": IMAGE, "all.json": coco().encode(), "b.json": coco().encode()}
    source = write_folder(tmp_path / "s", members)
    with pytest.raises(RecipeError, match=r"--points: 'coco:b.json' and .* must name one document"):
        build(source, tmp_path / "out", points="coco:b.json", boxes="coco:all.json")
    with pytest.raises(SourceError, match="--points: no object has keypoints"):
        build(source, tmp_path / "out", points="coco:b.json", unlisted="background")


# --- LabelMe ------------------------------------------------------------------------------------


def labelme(*shapes: tuple[str, str, list[list[float]], int | None]) -> str:
    listed = [
        {"label": label, "shape_type": kind, "points": points, "group_id": group}
        for label, kind, points, group in shapes
    ]
    return json.dumps(
        {"imagePath": "a.png", "imageHeight": HEIGHT, "imageWidth": WIDTH, "shapes": listed}
    )


def test_points_of_labelme_belong_to_the_object_of_their_group_or_to_the_image(
    tmp_path: Path,
) -> None:
    text = labelme(
        ("L_Eye", "point", [[5, 6]], 1),
        ("person", "rectangle", [[2, 2], [20, 20]], 1),
        ("person", "rectangle", [[20, 2], [38, 20]], 2),
        ("R_Eye", "point", [[30, 7]], 2),
        ("R_Eye", "point", [[31, 7]], 2),
        ("L_Eye", "point", [[1, 1]], None),
    )
    members = {"a.png": IMAGE, "a.json": text}
    made, found = built(tmp_path / "1", members, boxes="labelme", points="labelme")
    assert feature(made).points == ("L_Eye", "R_Eye")
    assert feature(made).mirrored == (1, 0)
    wanted = [[[5, 6, 2], [0, 0, 0]], [[0, 0, 0], [30, 7, 2]]]
    np.testing.assert_allclose(places(found["a.png"], 2), wanted, atol=1e-4)
    counts = made.manifest.annotations["train"].points
    assert counts is not None
    assert counts.lost == {"no object of its group": 1, "repeated": 1}
    made, found = built(tmp_path / "2", members, points="labelme")
    assert feature(made, POINTS).points == ("L_Eye", "L_Eye 2", "R_Eye", "R_Eye 2")
    wanted = [[[5, 6, 2], [1, 1, 2], [30, 7, 2], [31, 7, 2]]]
    np.testing.assert_allclose(places(found["a.png"], 4, POINTS), wanted, atol=1e-4)
