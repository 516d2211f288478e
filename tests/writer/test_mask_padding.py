"""The padding of masks of classes: one rule from every source to both readers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import shardprep
from shardprep import reader
from shardprep.reader import augment
from tests.support.builders import build, encoded, write_folder
from tests.writer.records import png, records


def beside(*, files: str = "") -> dict[str, bytes]:
    """Return four images of 80x40 pixels whose objects are in a table and a COCO document.

    An object is the 20 columns that begin at ten times the number of its image; `files` is the
    folder of masks in files, of two values or of classes.
    """
    members: dict[str, bytes] = {}
    rows, images, objects = ["id,runs"], [], []
    for i in range(4):
        mask = np.zeros((40, 80), np.uint8)
        mask[:, 10 * i : 10 * i + 20] = 255 if files == "masks" else 1
        members[f"images/{i}.png"] = encoded(Image.new("RGB", (80, 40), (9, 9, 9)), "PNG")
        if files:
            members[f"{files}/{i}.png"] = encoded(Image.fromarray(mask), "PNG")
        rows.append(f"{i},{400 * i + 1} 800")
        images.append({"id": i, "file_name": f"images/{i}.png", "width": 80, "height": 40})
        left, right = 10 * i, 10 * i + 20
        ring = [left, 0, right, 0, right, 40, left, 40]
        one = {"id": i, "image_id": i, "category_id": 1, "bbox": [left, 0, 20, 40]}
        objects.append({**one, "segmentation": [ring], "iscrowd": 0})
    document = {"images": images, "annotations": objects, "categories": [{"id": 1, "name": "o"}]}
    return {
        **members,
        "runs.csv": "\n".join(rows).encode(),
        "coco.json": json.dumps(document).encode(),
    }


SOURCES: list[dict[str, Any]] = [
    {"masks": "masks/{stem}.png"},
    {"masks": "classes/{stem}.png", "mask_values": "0=background,1=object"},
    {"masks": "classes/{stem}.png", "mask_values": "1=object,0=other"},
    {"masks": "rle:runs.csv:id:runs", "rle": "column"},
    {"masks": "coco:coco.json"},
    {"masks": "coco:coco.json", "boxes": "coco:coco.json"},
]
PADDED: dict[str, Any] = {"size": "40x40", "fit": "pad", "name": "set", "shards": 2}


@pytest.mark.parametrize("keys", SOURCES)
def test_padding_is_ignored_by_both_readers_and_in_an_export(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    folder, slash, _ = keys["masks"].partition("/")
    source = write_folder(tmp_path / "source", beside(files=folder if slash else ""))
    result = build(source, tmp_path / "out", **keys, **PADDED)
    (counts,) = [one.masks for one in result.manifest.annotations.values()]
    assert counts is not None
    assert counts.num_ignored == 4 * 20 * 40
    names = list(counts.pixels)
    stored = records(result.path)
    for key, features in stored.items():
        mask = png(features["segmentation_mask"][0])
        assert (mask[:10] == 255).all()
        assert (mask[30:] == 255).all()
        number = int(key.split("/")[-1][0])
        wanted = np.ones((20, 40)) if names[0] == "object" else np.zeros((20, 40))
        wanted[:, 5 * number : 5 * number + 10] = 0 if names[0] == "object" else 1
        np.testing.assert_array_equal(mask[10:30], wanted)
    options: dict[str, Any] = {"batch_size": 4, "shuffle": False}
    for _, found in (
        next(reader.load(result.path, **options).as_numpy_iterator()),
        next(iter(reader.Dataset(result.path).batches(4, shuffle=False))),
    ):
        masks = found["segmentation_mask"] if isinstance(found, dict) else found
        assert (masks[:, :10] == 255).all()
        assert (masks[:, 30:] == 255).all()
        assert masks[:, 10:30].max() == 1
    shardprep.export(result.path, to="folder", out=tmp_path / "export")
    files = sorted((tmp_path / "export").glob("class-masks/**/*.png"))
    assert sorted(file.read_bytes() for file in files) == sorted(
        one["segmentation_mask"][0] for one in stored.values()
    )


def test_letterbox_augmentation_pads_class_masks_as_a_build_does(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", beside(files="masks"))
    keys = {**PADDED, "masks": "masks/{stem}.png"}
    padded = build(source, tmp_path / "padded", **keys).path
    whole = build(source, tmp_path / "whole", **{**keys, "size": "80x40", "fit": "stretch"}).path
    options: dict[str, Any] = {"batch_size": 4, "shuffle": False}
    _, wanted = next(reader.load(padded, **options).as_numpy_iterator())
    framed = augment.Compose([augment.Letterbox((40, 40))])
    _, found = next(reader.load(whole, augment=framed, **options).as_numpy_iterator())
    np.testing.assert_array_equal(found == 255, wanted == 255)
