"""Every export is built again, as `init` proposes: the same splits and classes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from shardprep.catalog.survey import recipe_text, survey_source
from shardprep.dataset.open_dataset import open_dataset
from shardprep.exporter.export import LAYOUTS, export_dataset
from tests.support.builders import Told, build, write_folder
from tests.support.first_contact import outcome
from tests.support.scenes import picture

CLASSES = ("cat", "dog")
SPLITS = ("train", "validation")


def again(dataset: Path, layout: str, folder: Path, **more: str) -> list[tuple[str, str, str]]:
    """Return split, label and boxes of each image of an export that is planned again, sorted."""
    path = export_dataset(open_dataset(dataset), layout, folder / layout, watcher=Told()).path
    text = recipe_text(survey_source(path, folder, lambda _: None))
    options = {key: value for key, value in tomllib.loads(text).items() if key != "source"}
    assert options["size"] == "none"
    found = outcome(path, {**options, **more})
    assert not found.error
    return sorted(
        (fact["split"], fact.get("label", ""), fact.get("boxes", ""))
        for fact in found.facts.values()
    )


@pytest.mark.parametrize("layout", [one for one in LAYOUTS if one not in ("coco", "yolo")])
def test_a_set_with_classes_is_built_again(tmp_path: Path, layout: str) -> None:
    keys = [(s, c, f"{s}/{c}/{s}{c}{i}.png") for s in SPLITS for c in CLASSES for i in range(3)]
    source = write_folder(tmp_path / "pets", {key: picture("scene", key, key) for *_, key in keys})
    dataset = build(source, tmp_path / "out", size="none").path
    assert again(dataset, layout, tmp_path) == sorted((split, name, "") for split, name, _ in keys)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_set_with_boxes_is_built_again(tmp_path: Path, layout: str) -> None:
    keys = [(split, f"{split}/{split[0]}{i}.png") for split in SPLITS for i in range(4)]
    members = {key: picture("scene", key, key) for _, key in keys}
    rows = [f"{key},{4 + k},3,{20 + k},{30 - i % 3},{CLASSES[k]}"
            for i, (_, key) in enumerate(keys) for k in range(1 + i % 2)]  # fmt: skip
    members["t.csv"] = "\n".join(["file,xmin,ymin,xmax,ymax,class", *rows]).encode()
    source = write_folder(tmp_path / "pets", members)
    dataset = build(source, tmp_path / "out", size="none", boxes="csv:t.csv").path
    # The last three have the boxes as nested values, which are not read, and the build says so.
    has_boxes = layout not in ("parquet", "webdataset", "tfod")
    boxes = ["cat", "cat,dog"] if has_boxes else [""]
    expected = [(split, "", boxes[i % len(boxes)]) for i, (split, _) in enumerate(keys)]
    more = {"labels": "none"} if layout in ("parquet", "webdataset") else {}
    assert again(dataset, layout, tmp_path, **more) == sorted(expected)
