"""Boxes and masks from source to record, against other programs and against the drawn pixels."""

import io
import json
import re
import tarfile
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from PIL import Image, ImageDraw

from shardprep.dataset.folder import ITEMS_FILE
from shardprep.dataset.item_table import read_items
from shardprep.errors import BuildError
from tests.support.annotated import outlined
from tests.support.builders import (
    SHARED_DATA,
    build,
    encoded,
    write_folder,
)
from tests.writer.records import boxes, png, records

BCCD, CAMVID, TASKS = (SHARED_DATA / name for name in ("bccd.zip", "camvid.zip", "tasks.tar"))
real = pytest.mark.skipif(not SHARED_DATA.is_dir(), reason="the real archives are not here")


# --- drawn images --------------------------------------------------------------------------------


def drawn(number: int = 24) -> dict[str, bytes]:
    """Return images with bright objects in COCO's outlines; every sixth has no object."""
    draw = np.random.default_rng(14)
    images = {
        f"images/{i}.png": encoded(
            Image.fromarray(draw.integers(0, 90, (60, 80, 3), np.uint8)), "PNG"
        )
        for i in range(number)
    }
    found = outlined(images)
    document = json.loads(found["annotations.json"])
    for entry in document["images"]:
        with Image.open(io.BytesIO(images[entry["file_name"]])) as image:
            pen = ImageDraw.Draw(image)
            for one in document["annotations"]:
                if one["image_id"] == entry["id"]:
                    x, y, width, height = one["bbox"]
                    pen.rectangle((x, y, x + width - 1, y + height - 1), (255, 255, 255))
            found[entry["file_name"]] = encoded(image, "PNG")
    return found


KEYS: dict[str, Any] = {
    "boxes": "coco",
    "masks": "coco",
    "instances": True,
    "size": "40x40",
    "shards": 3,
    "name": "cells",
    "split": "train=0.7,test=0.3",
}


def test_boxes_and_masks_match_the_drawn_objects(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "cells", drawn())
    for fit in ("pad", "stretch", "within", "none"):
        size = "none" if fit == "none" else "160x160"
        keys = {**KEYS, "fit": fit, "size": size, "format": "png"}
        found = records(build(source, tmp_path / fit, **keys).path)
        assert len(found) == 24
        for features in found.values():
            with Image.open(io.BytesIO(features["image"][0])) as image:
                bright = np.array(image.convert("L")) > 127
            height, width = bright.shape
            union = np.zeros_like(bright)
            for box, data in zip(boxes(features), features["objects/mask"], strict=True):
                mask = png(data) == 1
                union |= mask
                rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
                edges = (rows[0], columns[0], rows[-1] + 1, columns[-1] + 1)
                sides = (height, width, height, width)
                np.testing.assert_allclose(box * sides, edges, atol=1.01)
            if fit != "pad" and union.any():  # the padding is white
                both = np.count_nonzero(bright & union) / np.count_nonzero(bright | union)
                assert both > 0.9


def test_dropped_clipped_and_missing_objects_are_counted(tmp_path: Path) -> None:
    rows = (
        "image,xmin,ymin,xmax,ymax,label\n"
        "0.png,2,2,20,20,cell\n0.png,2,2,20,20,cell\n0.png,5,5,5,9,cell\n"
        "1.png,70,50,99,99,dust\n1.png,90,70,99,99,dust\n2.png,,,,,\n3.png,1,1,inf,9,cell\n"
    )
    members = {key: data for key, data in drawn(5).items() if key.endswith(".png")}
    source = write_folder(tmp_path / "cells", {**members, "boxes.csv": rows.encode()})
    box = "csv:boxes.csv:image:xmin,ymin,xmax,ymax:label"
    keys: dict[str, Any] = {"boxes": box, "name": "cells", "max_clipped": 1}
    for share in (0.05, 0.6):
        with pytest.raises(BuildError, match=r"4 of 6 objects are invalid .*, above the limit of"):
            build(source, tmp_path / "out", **keys, max_dropped=share)
    with pytest.raises(BuildError, match=r"\(66.67%\), above the limit of 66.66%: "):
        build(source, tmp_path / "out", **keys, max_dropped=0.6666)
    assert not (tmp_path / "out/cells/1.0.0").exists()
    result = build(source, tmp_path / "out", **keys, max_dropped=0.7)
    counts = result.manifest.annotations["train"]
    assert counts.objects is not None
    assert counts.objects.objects == {"cell": 1, "dust": 1}
    assert result.facts()["objects"] == {"cell": 1, "dust": 1}
    assert counts.num_clipped == 1
    reasons = {"not finite": 1, "outside": 1, "repeated": 1, "zero size": 1}
    assert counts.dropped == reasons
    assert result.manifest.totals.skipped == {"no annotation": 1}
    table = read_items(result.path / ITEMS_FILE)
    assert sum(table["num_objects"].drop_null().to_pylist()) == 2
    assert sum(table["num_dropped"].drop_null().to_pylist()) == 4


def test_objects_outside_of_a_crop_are_not_bad(tmp_path: Path) -> None:
    rows = "image,xmin,ymin,xmax,ymax\n" + "".join(f"{i}.png,0,0,6,60\n" for i in range(4))
    members = {key: data for key, data in drawn(4).items() if key.endswith(".png")}
    source = write_folder(tmp_path / "cells", {**members, "boxes.csv": rows.encode()})
    box = "csv:boxes.csv:image:xmin,ymin,xmax,ymax"
    result = build(source, tmp_path / "out", boxes=box, fit="crop", size="40x40")
    assert result.manifest.annotations["train"].dropped == {"cut away": 4}


# --- real sets -----------------------------------------------------------------------------------


def of_tfds(archive: zipfile.ZipFile) -> dict[str, list[tuple[float, ...]]]:
    """Return the boxes as TFDS's own builder makes them (datasets/bccd/bccd_dataset_builder.py)."""
    found = {}
    for name in archive.namelist():
        if not name.endswith(".xml"):
            continue
        root = ET.fromstring(archive.read(name))
        height, width = (float(root.findtext(f"size/{side}", "")) for side in ("height", "width"))
        rows = []
        for one in root.findall("object"):
            side = {
                edge: float(one.findtext(f"bndbox/{edge}", ""))
                for edge in ("xmin", "ymin", "xmax", "ymax")
            }
            rows.append((
                one.findtext("name"),
                min(side["ymin"] / height, 1.0), min(side["xmin"] / width, 1.0),
                min(side["ymax"] / height, 1.0), min(side["xmax"] / width, 1.0),
            ))  # fmt: skip
        found[name.rpartition("/")[2].removesuffix(".xml")] = rows
    return found  # type: ignore[return-value]


@real
def test_bccd_has_the_boxes_of_tfds_by_voc_and_by_its_table(tmp_path: Path) -> None:
    with zipfile.ZipFile(BCCD) as archive:
        expected = of_tfds(archive)
    voc = build(BCCD, tmp_path / "voc", boxes="voc", fit="none", size="none", format="keep")
    table = "csv:test.csv:filename:xmin,ymin,xmax,ymax:cell_type"
    csv_ = build(BCCD, tmp_path / "csv", boxes=table, fit="none", size="none", format="keep")
    counts = voc.manifest.annotations
    assert sum(one.objects.num_objects for one in counts.values() if one.objects) == 4886
    assert [dict(one.dropped) for one in counts.values() if one.dropped] == [{"zero size": 1}] * 2
    names = voc.path / "objects-label.labels.txt"
    classes = names.read_text().split()
    assert classes == ["Platelets", "RBC", "WBC"]
    found, by_table = records(voc.path), records(csv_.path)
    assert found.keys() == by_table.keys()
    for key, features in found.items():
        sound = [
            row
            for row in expected[key.rpartition("/")[2].removesuffix(".jpg")]
            if row[1] < row[3] and row[2] < row[4]
        ]
        assert [classes[label] for label in features["objects/label"]] == [row[0] for row in sound]
        np.testing.assert_allclose(
            boxes(features), np.array([row[1:] for row in sound]).reshape(-1, 4), atol=1e-6
        )
        one, two = (
            sorted(zip(each["objects/label"], boxes(each).tolist(), strict=True))
            for each in (features, by_table[key])
        )
        assert one == two


@pytest.mark.thorough
@real
def test_camvid_has_the_masks_of_the_files(tmp_path: Path) -> None:
    with zipfile.ZipFile(CAMVID) as archive:
        masks = {
            name.replace("annot/", "/"): png(archive.read(name))
            for name in archive.namelist()
            if "annot/" in name and name.endswith(".png")
        }
    manifests = []
    both: list[dict[str, Any]] = [
        {"size": "96x80", "fit": "stretch"},
        {"size": "none", "fit": "none"},
    ]
    for keys in both:
        result = build(CAMVID, tmp_path / keys["fit"], masks="{dir}annot/{name}", **keys)
        manifests.append(result.manifest)
        found = records(result.path)
        assert len(found) == 60
        for key, features in found.items():
            (mask,) = [one for name, one in masks.items() if name.endswith(key)]
            whole = Image.fromarray(mask)
            if keys["fit"] == "stretch":
                whole = whole.resize((96, 80), Image.Resampling.NEAREST)
            np.testing.assert_array_equal(png(features["segmentation_mask"][0]), np.array(whole))
    pixels = [one.masks.pixels for one in manifests[-1].annotations.values() if one.masks]
    assert sum(one["0"] for one in pixels) == 1576517
    assert sum(one["11"] for one in pixels) == 350452


@real
@pytest.mark.thorough
def test_nuclei_keep_every_mask_and_every_pixel(tmp_path: Path) -> None:
    sources: dict[str, Any] = {}
    with tarfile.open(TASKS) as archive:
        for member in archive.getmembers():
            if match := re.search(r"stage1_train/(\w+)/masks/", member.name):
                file = archive.extractfile(member) if member.isfile() else None
                if file is not None:
                    mask = png(file.read()) > 127
                    sources.setdefault(match[1], []).append(mask)
    keys: dict[str, Any] = {"root": "nuclei16", "size": "none", "fit": "none"}
    result = build(TASKS, tmp_path / "out", masks="{id}/masks/*.png", instances=True, **keys)
    found = records(result.path)
    assert len(found) == len(sources)
    for key, features in found.items():
        expected = sources[key.split("/")[-3]]
        masks = [png(data) == 1 for data in features["objects/mask"]]
        assert len(masks) == len(expected)
        np.testing.assert_array_equal(np.any(masks, axis=0), np.any(expected, axis=0))


COCO40: dict[str, Any] = {"root": "coco40", "size": "none", "fit": "none", "format": "keep"}
WHOLE: dict[str, Any] = {**COCO40, "unlisted": "background"}  # six photos have no file


@pytest.fixture(name="by_boxes", scope="module")
def _by_boxes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of forty photos of COCO with YOLO's boxes."""
    out = tmp_path_factory.mktemp("boxes")
    return build(TASKS, out, boxes="yolo:object_detection/config.yaml", **WHOLE).path


@real
@pytest.mark.thorough
def test_forms_of_the_same_objects_agree(by_boxes: Path, tmp_path: Path) -> None:
    """YOLO's boxes and polygons, and masks of classes, of forty photos of COCO.

    The set's polygons run through the centres of pixels: boxes are up to 3 px smaller, masks a rim.
    """
    outlines = "yolo:instance_segmentation/config.yaml"
    by_outlines = build(
        TASKS, tmp_path / "p", boxes=outlines, masks=outlines, instances=True, **WHOLE
    )
    by_masks = build(
        TASKS, tmp_path / "m", masks="semantic_segmentation/masks/train2017/{stem}.png", **COCO40
    )
    found = [records(one) for one in (by_boxes, by_outlines.path, by_masks.path)]
    distances, shares = [], []
    for key, features in found[1].items():
        masks = [png(data) == 1 for data in features["objects/mask"]]
        if not masks:
            continue
        height, width = masks[0].shape
        sides = (height, width, height, width)
        others = boxes(found[0][key]) * sides
        distances += [
            np.abs(others - box).max(axis=1).min() for box in boxes(features) * sides if len(others)
        ]
        if key in found[2]:
            classes = png(found[2][key]["segmentation_mask"][0])
            objects = np.any(masks, axis=0)
            values = np.unique(classes[objects])
            things = [value for value in values if np.mean(objects[classes == value]) > 0.5]
            same = np.isin(classes, things)
            shares.append(np.count_nonzero(same & objects) / np.count_nonzero(same | objects))
    assert len(distances) > 200
    assert np.mean(np.array(distances) <= 3) > 0.9
    assert len(shares) > 25
    assert np.median(shares) > 0.96


@real
@pytest.mark.thorough
def test_panoptic_masks_agree_with_masks_of_classes_and_with_boxes(
    by_boxes: Path, tmp_path: Path
) -> None:
    """The same forty photos: every pixel of 34 masks, and boxes that both forms have."""
    document = "coco:panoptic_segmentation/annotations/panoptic_train2017.json"
    files = "semantic_segmentation/masks/train2017/{stem}.png"
    table = tmp_path / "classes.yaml"
    with tarfile.open(TASKS) as archive:
        config = archive.extractfile("coco40/semantic_segmentation/config.yaml")
        assert config is not None
        table.write_bytes(config.read())
    keys: dict[str, Any] = {"mask_values": str(table)}
    by_segments = build(TASKS, tmp_path / "p", masks=document, **COCO40).path
    by_files = build(TASKS, tmp_path / "m", masks=files, **keys, **COCO40).path
    by_object = build(TASKS, tmp_path / "i", masks=document, instances=True, **COCO40).path
    names = [
        (one / name).read_text().splitlines()
        for one, name in (
            (by_segments, "segmentation_mask.labels.txt"),
            (by_files, "segmentation_mask.labels.txt"),
            (by_object, "objects-label.labels.txt"),
            (by_boxes, "objects-label.labels.txt"),
        )
    ]
    assert len(names[0]) == 133
    assert len(names[2]) == 80
    index = np.full(256, 255)
    for value, name in enumerate(names[0]):
        index[value] = names[1].index(name) if name in names[1] else 254
    index[255] = names[1].index("unlabeled")
    found, others = records(by_segments), records(by_files)
    assert len(found) == len(others) == 34
    for key, features in found.items():
        mask = index[png(features["segmentation_mask"][0])]
        np.testing.assert_array_equal(mask, png(others[key]["segmentation_mask"][0]))
    distances = []
    yolo = records(by_boxes)
    for key, features in records(by_object).items():
        masks = [png(data) == 1 for data in features["objects/mask"]]
        sides = (masks[0].shape * 2) if masks else ()
        of_yolo = yolo.get(key, {"objects/bbox": [], "objects/label": []})
        near = boxes(of_yolo) * sides if masks else boxes(of_yolo)
        rows = zip(boxes(features), masks, features["objects/label"], strict=True)
        for box, mask, label in rows:
            down, across = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
            edges = (down[0], across[0], down[-1] + 1, across[-1] + 1)
            np.testing.assert_allclose(box * sides, edges, atol=1e-3)
            same = [names[3][at] == names[2][label] for at in of_yolo["objects/label"]]
            if any(same):
                distances.append(np.abs(near[same] - box * sides).max(axis=1).min())
    assert len(distances) > 250
    assert np.mean(np.array(distances) <= 1.5) > 0.85
