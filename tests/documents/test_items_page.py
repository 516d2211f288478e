"""docs/items.md: each of its layouts, in small, is built by its code."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardprep.dataset.folder import read_schema
from shardprep.reader import Dataset
from shardprep.writer.finalize import BuildResult
from tests.documents.page_code import examples, executed
from tests.support.builders import jpeg, png, write, write_folder, zip_bytes

pytest.importorskip("pandas")

_WIDER = "0--Parade/{}.jpg\n2\n1 2 20 30 0 0\n5 6 7 8 0 0\n1--None/{}.jpg\n0\n0 0 0 0 0 0\n"
_MPII = "NAME,r ankle_X,r ankle_Y,l ankle_X,l ankle_Y\na.jpg,1,2,3,4\nb.jpg,5,6,-1,-1\n"
_CELEBA = "3\nBald Smiling\n1.jpg 1 -1\n2.jpg 1 1\n3.jpg -1 -1\n"
_MOT = "1,1,2,3,10,11,1,1,1\n1,2,4,5,6,7,0,1,1\n2,1,3,3,10,11,1,1,1\n"
_CUB = {
    "images": "1 001.Crow/a.jpg\n2 001.Crow/b.jpg\n3 002.Gull/a.jpg\n",
    "image_class_labels": "1 1\n2 1\n3 2\n",
    "train_test_split": "1 1\n2 0\n3 1\n",
    "bounding_boxes": "1 1 1 5 5\n2 1 1 5 5\n3 1 1 5 5\n",
    "classes": "1 001.Crow\n2 002.Gull\n",
}
_VOTT = {
    "asset": {"name": "a.jpg"},
    "regions": [{"tags": ["cup"], "boundingBox": {"left": 1, "top": 2, "width": 10, "height": 20}}],
}
_COCO = {
    "images": [{"id": i, "file_name": f"{i}.jpg", "width": 64, "height": 48} for i in (1, 2)],
    "categories": [{"id": 5, "name": "person"}, {"id": 6, "name": "dog"}],
    "annotations": [
        {"id": 1, "image_id": 1, "category_id": 5, "area": 400, "bbox": [1, 2, 20, 20]},
        {"id": 2, "image_id": 1, "category_id": 6, "area": 400, "bbox": [9, 9, 20, 20]},
        {"id": 3, "image_id": 2, "category_id": 5, "area": 4, "bbox": [1, 2, 2, 2]},
    ],
}


def _texts(texts: Mapping[str, str]) -> dict[str, bytes]:
    return {name: text.encode() for name, text in texts.items()}


def _sources(folder: Path) -> None:
    rows = [f"{i},{'cat' if i % 2 else 'dog'},{i % 5}" for i in range(42)]
    write(folder / "train.csv", "\n".join(["image_id,label,fold", *rows]).encode())
    held = "".join(f"{i},cat\n" for i in (25, 0, 10, 99, 5, 20, 15))
    write(folder / "sample_submission.csv", f"image_id,label\n{held}".encode())
    write(folder / "photos.zip", zip_bytes({f"{i}.jpg": jpeg(seed=i) for i in range(30)}))
    car = "Car 0 0 0 1.0 2.0 20.5 30 1 1 1 1 1 1 1\nDontCare -1 -1 -10 5 5 9 9 1 1 1 1 1 1 1\n"
    images = {
        "kitti/training/image_2/000000.png": png(),
        **{
            f"wider/WIDER_{split}/images/{name}/{split}.jpg": jpeg(seed=i)
            for i, (split, name) in enumerate(
                (a, b) for a in ("train", "val") for b in ("0--Parade", "1--None")
            )
        },
        "dota/train/images/P0.png": png(),
        **{f"mpii/images/{name}.jpg": jpeg(seed=ord(name)) for name in "ab"},
        **{f"celeba/img_align_celeba/{i}.jpg": jpeg(seed=i) for i in (1, 2, 3)},
        **{
            f"CUB_200_2011/images/{line.split()[1]}": jpeg(seed=i)
            for i, line in enumerate(_CUB["images"].splitlines())
        },
        "vott/a.jpg": jpeg(),
        **{f"mot/train/{film}/img1/{i:06}.jpg": jpeg(seed=i) for film in "AB" for i in (1, 2)},
        **{f"coco/train/{i}.jpg": jpeg(seed=i) for i in (1, 2)},
        **{f"scans/{i}.jpg": jpeg(seed=i) for i in range(8)},
    }  # fmt: skip
    documents = {
        "kitti/training/label_2/000000.txt": car,
        **{
            f"wider/wider_face_split/wider_face_{split}_bbx_gt.txt": _WIDER.format(split, split)
            for split in ("train", "val")
        },
        "dota/train/labelTxt/P0.txt": "imagesource:x\ngsd:1\n10 10 30 5 35 20 15 25 ship 0\n",
        "mpii/mpii_human_pose.csv": _MPII,
        "celeba/list_attr_celeba.txt": _CELEBA,
        "celeba/list_eval_partition.txt": "1.jpg 0\n2.jpg 1\n3.jpg 2\n",
        **{f"CUB_200_2011/{name}.txt": text for name, text in _CUB.items()},
        "vott/x-asset.json": json.dumps(_VOTT),
        **{f"mot/train/{film}/gt/gt.txt": _MOT for film in "AB"},
        "coco/annotations/instances_train.json": json.dumps(_COCO),
        "scans/images.csv": "image,patient\n" + "".join(f"{i},p{i // 2}\n" for i in range(8)),
        "scans/patients.csv": "patient,diagnosis,age\n"
        + "".join(f"p{i},{'ill' if i % 2 else 'well'},{40 + i}\n" for i in range(4)),
    }
    write_folder(folder, images | _texts(documents))


@pytest.fixture(name="found", scope="module")
def _found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("items_page")
    _sources(folder)
    with contextlib.chdir(folder):
        found = executed(examples("items"))
    assert found["lost"].image_id.tolist() == [*range(30, 42)]
    assert found["result"].manifest.labels.num_rows_without_image == 12
    return {
        name: folder / value.path for name, value in found.items() if isinstance(value, BuildResult)
    }


def _records(path: Path, split: str = "train") -> dict[str, dict[str, Any]]:
    every = Dataset(path, split, as_supervised=False)
    return {str(record["image/filename"]): record for record in every}


def _classes(path: Path, split: str = "train") -> dict[str, list[str]]:
    """Return the classes of the boxes of each image, by the end of its key."""
    names = Dataset(path, split).class_names
    return {
        key.rpartition("/")[2]: [names[label] for label in record["objects/label"]]
        for key, record in _records(path, split).items()
    }


def _labels(path: Path, split: str = "train") -> dict[str, list[str]]:
    names = Dataset(path, split).class_names
    found = {}
    for key, record in _records(path, split).items():
        if "labels" in record:  # 1 for each class that the image has
            found[key] = [names[i] for i in np.flatnonzero(record["labels"])]
        else:
            found[key] = [names[record["label"]]]
    return found


@pytest.mark.thorough
def test_the_frame_of_the_page_is_built(found: dict[str, Path]) -> None:
    train, held = (_records(found["result"], split) for split in ("train", "validation"))
    numbers = {int(key[:-4]) for key in (*train, *held)}
    assert numbers == {*range(30)} - {17, 23}
    assert {int(key[:-4]) % 5 for key in held} == {0}


@pytest.mark.thorough
def test_predictions_of_the_page_have_the_order_of_the_sample_file(found: dict[str, Path]) -> None:
    lines = (found["result"].parents[2] / "submission.csv").read_text().splitlines()
    wanted = {
        key[:-4]: "dog" if one["image"].mean() > 127 else "cat"
        for key, one in _records(found["result"], "validation").items()
    }
    wanted["99"] = "cat"  # an image that the dataset does not have
    ids = [str(i) for i in (25, 0, 10, 99, 5, 20, 15)]
    assert lines == ["image_id,label", *(f"{one},{wanted[one]}" for one in ids)]
    assert {int(one["fold"]) for one in _records(found["result"]).values()} == {1, 2, 3, 4}


@pytest.mark.thorough
def test_boxes_of_the_layouts_of_the_page_are_stored(found: dict[str, Path]) -> None:
    assert _classes(found["kitti"]) == {"000000.png": ["Car"]}
    for split, file in (("train", "train.jpg"), ("validation", "val.jpg")):
        keys = _records(found["wider"], split)
        assert {key: len(one["objects/bbox"]) for key, one in keys.items()} == {
            f"WIDER_{file[:-4]}/images/0--Parade/{file}": 2,
            f"WIDER_{file[:-4]}/images/1--None/{file}": 0,
        }
    assert _classes(found["vott"]) == {"a.jpg": ["cup"]}
    assert _classes(found["persons"]) == {"1.jpg": ["object"]}
    (ship,) = _records(found["dota"]).values()
    # The picture of 48x64 is padded to a square of 224: 3.5 times as large, and 28 rows down.
    corners = np.array([5 * 3.5 + 28, 10 * 3.5, 25 * 3.5 + 28, 35 * 3.5]) / 224
    np.testing.assert_allclose(ship["objects/bbox"][0], corners, atol=1e-6)
    assert 0.3 < ship["objects/mask"][0].mean() / np.prod(corners[2:] - corners[:2]) < 0.9
    films = [{*_records(found["mot"], split)} for split in ("train", "validation")]
    assert [{key.split("/")[1] for key in one} for one in films] in ([{"A"}, {"B"}], [{"B"}, {"A"}])
    assert [len(one) for one in films] == [2, 2]


@pytest.mark.thorough
def test_labels_and_points_of_the_layouts_of_the_page_are_stored(found: dict[str, Path]) -> None:
    points = {key[-5:]: one["points/visible"] for key, one in _records(found["mpii"]).items()}
    assert {key: [*map(int, one)] for key, one in points.items()} == {
        "a.jpg": [2, 2],
        "b.jpg": [2, 0],
    }
    joints = read_schema(found["mpii"]).features["points"]
    assert (joints.points, joints.mirrored) == (("r ankle", "l ankle"), (1, 0))
    celeba = [_labels(found["celeba"], one) for one in ("train", "validation", "test")]
    folder = "img_align_celeba"
    assert celeba == [
        {f"{folder}/1.jpg": ["Bald"]},
        {f"{folder}/2.jpg": ["Bald", "Smiling"]},
        {f"{folder}/3.jpg": []},
    ]
    assert _labels(found["cub"], "test") == {"images/001.Crow/b.jpg": ["001.Crow"]}
    assert {*_labels(found["cub"])} == {"images/001.Crow/a.jpg", "images/002.Gull/a.jpg"}
    train, held = (_records(found["scans"], split) for split in ("train", "validation"))
    assert len(held) == 2
    assert {int(one["age"]) for one in train.values()}.isdisjoint(
        int(one["age"]) for one in held.values()
    )
    for key, (label,) in {
        **_labels(found["scans"]),
        **_labels(found["scans"], "validation"),
    }.items():
        assert label == ("ill" if int(key[0]) // 2 % 2 else "well")
