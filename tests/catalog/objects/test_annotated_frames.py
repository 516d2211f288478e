"""Annotations of images with an EXIF orientation: upright, or of the pixels as stored."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shardprep.reader import Dataset
from shardprep.writer.finalize import BuildResult
from tests.support.annotated import grey_png
from tests.support.builders import Quiet, build, encoded, write_folder
from tests.support.odd_images import as_stored, oriented

HEIGHT, WIDTH = 32, 48
LEFT, TOP, RIGHT, BOTTOM = 4, 6, 20, 14
NOTE = "with annotations have an EXIF orientation"


def picture() -> np.ndarray[Any, Any]:
    """Return an upright black picture with a white rectangle."""
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    pixels[TOP:BOTTOM, LEFT:RIGHT] = 255
    return pixels


def annotated(orientation: int, frame: str) -> np.ndarray[Any, Any]:
    """Return the pixels that somebody saw who annotated the image in this frame."""
    return as_stored(picture(), orientation) if frame == "stored" else picture()


def source(
    folder: Path, orientations: Iterable[int], frame: str, form: str, kind: str = "JPEG"
) -> Path:
    """Return images in one orientation each, and their annotations as boxes or masks."""
    members: dict[str, bytes] = {}
    images, things = [], []
    for i, turn in enumerate(orientations):
        name = f"{i}.{kind.lower()}"
        file = Image.fromarray(np.ascontiguousarray(as_stored(picture(), turn)))
        members[f"images/{name}"] = encoded(file, kind, exif=oriented(turn))
        seen = annotated(turn, frame)[..., 0] > 0
        members |= {f"masks/{i}.png": grey_png(seen.astype(np.uint8))} if form == "masks" else {}
        (height, width), (y, x) = seen.shape, (np.flatnonzero(seen.any(axis)) for axis in (1, 0))
        box = [int(x[0]), int(y[0]), len(x), len(y)]
        images.append({"id": i, "file_name": name, "height": height, "width": width})
        things.append({"image_id": i, "category_id": 1, "bbox": box})
        if form == "yolo":
            shares = [(box[0] + box[2] / 2) / width, (box[1] + box[3] / 2) / height]
            shares += [box[2] / width, box[3] / height]
            members[f"labels/{i}.txt"] = " ".join(map(str, (0, *shares))).encode()
    document = {"images": images, "annotations": things, "categories": [{"id": 1, "name": "a"}]}
    members |= {"a.json": json.dumps(document).encode()} if form == "coco" else {}
    return write_folder(folder / "set", members)


def built(path: Path, form: str, **keys: Any) -> BuildResult:
    rules = {"masks": "masks/{stem}.png"} if form == "masks" else {"boxes": form}
    keys = {"size": "none", "format": "png", **rules, **keys}
    return build(path, path.parent / "out", **keys)


def num_wrong(result: BuildResult) -> int:
    """Return the number of images whose object is not the white rectangle in their pixels."""
    wanted = [TOP / HEIGHT, LEFT / WIDTH, BOTTOM / HEIGHT, RIGHT / WIDTH]
    wrong = 0
    for one in Dataset(result.path, "train", as_supervised=False):
        assert (np.abs(one["image"].astype(int) - picture()) < 100).all()
        if "segmentation_mask" in one:
            is_object = np.asarray(one["segmentation_mask"]).squeeze() == 1
            wrong += (is_object != (picture()[..., 0] > 0)).any()
        else:
            wrong += not np.allclose(one["objects/bbox"][0], wanted, atol=0.01)
    return wrong


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
@pytest.mark.parametrize("form", ["coco", "masks"])
@pytest.mark.parametrize("frame", ["stored", "upright"])
def test_one_image_whose_size_proves_the_frame_decides_for_all(
    tmp_path: Path, frame: str, form: str, kind: str
) -> None:
    watcher = Quiet()
    result = built(source(tmp_path, (3, 2, 4, 1, 3, 6), frame, form, kind), form, watcher=watcher)
    assert num_wrong(result) == 0
    assert NOTE not in str(watcher.lines)


@pytest.mark.parametrize("form", ["coco", "masks", "yolo"])
@pytest.mark.parametrize("frame", ["stored", "upright"])
def test_a_frame_that_nothing_proves_is_a_note_whose_flags_decide(
    tmp_path: Path, frame: str, form: str
) -> None:
    turns = (3, 2, 1, 6) if form == "yolo" else (3, 2, 1)
    path = source(tmp_path, turns, frame, form)
    watcher = Quiet()
    built(path, form, watcher=watcher)
    wanted = f"{len(turns) - 1} of {len(turns)} images {NOTE}, and no size shows"
    assert wanted in str(watcher.lines)
    assert "upright is assumed: set --annotated to upright or stored" in str(watcher.lines)
    watcher = Quiet()
    result = built(path, form, annotated=frame, version="2.0.0", watcher=watcher)
    assert num_wrong(result) == 0
    assert NOTE not in str(watcher.lines)


def test_sizes_that_disagree_are_a_note(tmp_path: Path) -> None:
    path = source(tmp_path, (6, 8, 3), "stored", "coco")
    document = json.loads((path / "a.json").read_bytes())
    document["images"][1].update(height=HEIGHT, width=WIDTH)
    document["annotations"][1]["bbox"] = [LEFT, TOP, RIGHT - LEFT, BOTTOM - TOP]
    (path / "a.json").write_text(json.dumps(document))
    watcher = Quiet()
    result = built(path, "coco", watcher=watcher)
    assert num_wrong(result) == 1
    assert f"1 of 3 images {NOTE}, and their sizes disagree" in str(watcher.lines)
