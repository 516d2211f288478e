"""Exports, and TFRecords for object detection, are built as the source decides.

The dataset has the same images, splits, labels and objects again.
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shardprep.catalog.survey import recipe_text, survey_source
from shardprep.dataset.open_dataset import open_dataset
from shardprep.dataset.schema import BOX, BOX_LABEL, CROWD, LABEL
from shardprep.exporter.export import LAYOUTS, export_dataset
from tests.support.builders import Told, build, write_folder
from tests.support.object_detection import write_records
from tests.support.scenes import picture
from tests.writer.records import records

CLASSES = ("cat", "traffic light")
SPLITS = ("train", "validation")
OF_BOXES = ("coco", "yolo")
"""Layouts that only sets with boxes have."""
TFOD = "tfod"
"""TFRecords that TensorFlow writes, as its Object Detection API reads them."""
CORNERS = ",".join(f"image/object/bbox/{one}" for one in ("xmin", "ymin", "xmax", "ymax"))


class Content(NamedTuple):
    """What a dataset has of an image, apart from its key."""

    split: str
    label: str
    objects: tuple[tuple[Any, ...], ...]
    """Class, whether it is a crowd, and the box in thousandths."""


def contents(dataset: Path) -> dict[bytes, Content]:
    """Return the content of each image by its stored bytes."""
    opened = open_dataset(dataset)
    features = opened.schema.features
    splits = {row["key"]: row["split"] for row in opened.item_rows(["key", "split"]).to_pylist()}
    found: dict[bytes, Content] = {}
    for key, values in records(dataset).items():
        given: Mapping[str, Any] = values
        label = given[LABEL][0] if LABEL in given else -1
        corners = [round(1000 * one + 0.2) for one in given.get(BOX, ())]  # no tie for these sizes
        objects = (
            (
                features[BOX_LABEL].labels[number],
                bool(given[CROWD][i]) if CROWD in features else False,
                *corners[4 * i : 4 * i + 4],
            )
            for i, number in enumerate(given.get(BOX_LABEL, ()))
        )
        name = opened.schema.labels[label] if label >= 0 else ""
        found[given["image"][0]] = Content(splits[key], name, tuple(objects))
    return found


def again(dataset: Path, layout: str, folder: Path, **options: Any) -> dict[bytes, Content]:
    """Return the contents of an export that is built without an option, and as `init` proposes.

    TFRecords may need `options`: only an export of ours says that labels and boxes are wanted.
    """
    whole = {"size": "none", "fit": "auto", "format": "keep"}
    if layout == TFOD:
        path = write_records(dataset, folder / layout)
        options |= whole
    else:
        path = export_dataset(open_dataset(dataset), layout, folder / layout, watcher=Told()).path
        options = {}
    found = contents(build(path, folder / "again", **(whole | options)).path)
    recipe = tomllib.loads(recipe_text(survey_source(path, folder, lambda _: None)))
    made = build(Path(recipe.pop("source")), folder / "proposed", **(recipe | options)).path
    assert contents(made) == found
    return found


@pytest.mark.parametrize("layout", [TFOD, *(one for one in LAYOUTS if one not in OF_BOXES)])
def test_a_set_with_classes_is_built_again(tmp_path: Path, layout: str) -> None:
    keys = [f"{split}/{name}/{i}.png" for split in SPLITS for name in CLASSES for i in range(3)]
    source = write_folder(tmp_path / "pets", {key: picture("scene", key, key) for key in keys})
    dataset = build(source, tmp_path / "out", size="none").path
    assert again(dataset, layout, tmp_path) == contents(dataset)


@pytest.mark.parametrize("layout", [TFOD, *LAYOUTS])
def test_a_set_with_crowds_is_built_again(tmp_path: Path, layout: str) -> None:
    keys = [f"{split}/{i}.png" for split in SPLITS for i in range(4)]
    members = {key: picture("scene", key, key) for key in keys}
    document = {
        "images": [{"id": i, "file_name": key} for i, key in enumerate(keys)],
        "annotations": [
            {"image_id": i, "category_id": k + 1, "bbox": [4 + k, 3, 20, 30], "iscrowd": k}
            for i in range(len(keys)) for k in range(2)
        ],
        "categories": [{"id": i + 1, "name": name} for i, name in enumerate(CLASSES)],
    }  # fmt: skip
    source = write_folder(tmp_path / "pets", members | {"a.json": json.dumps(document).encode()})
    dataset = build(source, tmp_path / "out", size="none", boxes="coco").path
    expected = contents(dataset)
    if layout == "yolo":  # it leaves crowds out
        for image, one in expected.items():
            others = tuple(each for each in one.objects if not each[1])
            expected[image] = one._replace(objects=others)
    assert again(dataset, layout, tmp_path) == expected


@pytest.mark.parametrize("kind", ["boxes", "one box", "labels and boxes"])
@pytest.mark.parametrize("layout", [TFOD, *LAYOUTS])
def test_a_set_with_boxes_is_built_again(tmp_path: Path, layout: str, kind: str) -> None:
    keys = [f"{split}/{i}.png" for split in SPLITS for i in range(4)]
    members = {key: picture("scene", key, key) for key in keys}
    number = (1,) if kind == "one box" else (1, 2, 0, 3)
    rows = [f"{key},{4 + k},3,{20 + k},{30 - i % 3},{CLASSES[k % 2]}"
            for i, key in enumerate(keys) for k in range(number[i % len(number)])]  # fmt: skip
    members["t.csv"] = "\n".join(["file,xmin,ymin,xmax,ymax,class", *rows]).encode()
    options: dict[str, Any] = {"boxes": "csv:t.csv", "unlisted": "background"}
    of_records: dict[str, str] = {}
    if kind == "labels and boxes":
        labels = [f"{key},{('day', 'night')[i % 2]}" for i, key in enumerate(keys)]
        members["l.csv"] = "\n".join(["file,label", *labels]).encode()
        options["labels"] = "csv:l.csv:file:label"
        of_records = {
            "labels": "column:image/class/text",
            "boxes": f"column:{CORNERS}:image/object/class/text",
        }
    source = write_folder(tmp_path / "pets", members)
    dataset = build(source, tmp_path / "out", size="none", **options).path
    assert again(dataset, layout, tmp_path, **of_records) == contents(dataset)
