"""Build the datasets that later versions have to read: `python -m tests.frozen.freeze NAME`.

Run once for each version of the format, with the package as it was then. `NAME.tar.xz` is written
beside this file and never changed again: a folder for each dataset, and in `unfinished/` half of a
build with its source.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

import shardprep
from tests.support.builders import encoded, write, zip_bytes

COLOURS = {"red": (200, 30, 30), "green": (30, 180, 40), "blue": (30, 40, 210)}
SIZE = (40, 32)
"""Width and height of the drawn images in pixels."""


def picture(number: int, colour: tuple[int, int, int]) -> Image.Image:
    """Return a noisy grey image with a rectangle, whose corners are `corners(number)`."""
    draw = np.random.default_rng(number)
    noise = draw.integers(90, 130, (SIZE[1], SIZE[0], 3), np.uint8)
    image = Image.fromarray(noise)
    ImageDraw.Draw(image).rectangle(corners(number), fill=colour)
    return image


def corners(number: int) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom pixel of the rectangle of an image."""
    left, top = 2 + number % 7, 3 + number % 5
    return left, top, left + 12 + number % 11, top + 9 + number % 6


def classes() -> dict[str, bytes]:
    """Return JPEGs of three classes in two splits, a broken one and a text."""
    found = {}
    for number in range(24):
        name = list(COLOURS)[number % 3]
        split = "test" if number % 6 == 5 else "train"
        found[f"{split}/{name}/{number}.jpg"] = encoded(picture(number, COLOURS[name]), "JPEG")
    whole = found["train/red/0.jpg"]
    found["train/red/broken.jpg"] = whole[: len(whole) // 3]
    found["notes.txt"] = b"nothing to see"
    return found


def multilabel() -> dict[str, bytes]:
    """Return PNGs, a table of their labels and further columns, one image without a row."""
    found, rows = {}, ["id,labels,age,note"]
    for number, (name, colour) in enumerate([*COLOURS.items()] * 4):
        found[f"images/{number}.png"] = encoded(picture(number, colour), "PNG")
        if number:
            rows.append(f"{number},{name} grey,{20 + number},note {number} ä")
    return {**found, "labels.csv": "\n".join(rows).encode()}


def objects() -> dict[str, bytes]:
    """Return PNGs with COCO boxes and outlines, and a mask of classes for each."""
    found: dict[str, bytes] = {}
    images: list[dict[str, Any]] = []
    marks: list[dict[str, Any]] = []
    for number in range(10):
        name = f"{number}.png"
        found[f"images/{name}"] = encoded(picture(number, (240, 240, 60)), "PNG")
        images.append({"id": number, "file_name": name, "width": SIZE[0], "height": SIZE[1]})
        left, top, right, bottom = corners(number)
        mask = np.zeros((SIZE[1], SIZE[0]), np.uint8)
        mask[top : bottom + 1, left : right + 1] = 1 + number % 2
        found[f"masks/{name}"] = encoded(Image.fromarray(mask), "PNG")
        right, bottom = right + 1, bottom + 1
        for shift in range(number % 3):  # every third image has none
            left += shift
            outline = [left, top, right, top, right, bottom, left, bottom]
            marks.append(
                {
                    "id": len(marks),
                    "image_id": number,
                    "category_id": number % 2,
                    "bbox": [left, top, right - left, bottom - top],
                    "segmentation": [outline],
                    "area": (right - left) * (bottom - top),
                    "iscrowd": 0,
                }
            )
    marks[0]["bbox"][2] = 0  # dropped
    names = [{"id": i, "name": name} for i, name in enumerate(("sun", "moon"))]
    document = {"images": images, "annotations": marks, "categories": names}
    return {**found, "coco.json": json.dumps(document).encode()}


def builds() -> dict[str, tuple[dict[str, bytes], dict[str, Any]]]:
    """Return the source and the options of each dataset by its name."""
    coco = {"boxes": "coco:coco.json", "include": "images/*"}
    return {
        "classes": (classes(), {"labels": "folder", "size": "24x24", "max_rejected": 0.5}),
        "kept": (classes(), {"labels": "folder", "format": "keep", "size": "none",
                             "fit": "none", "max_rejected": 0.5}),
        "multilabel": (
            multilabel(),
            {"labels": "csv:labels.csv:id:labels", "columns": "age,note", "format": "raw",
             "size": "16x16", "split": "train=0.75,test=0.25"},
        ),
        "outlines": (
            objects(),
            {**coco, "masks": "coco:coco.json", "instances": True, "format": "png",
             "size": "40x32", "max_dropped": 0.5},
        ),
        "masks": (
            objects(),
            {"masks": "masks/{name}", "include": "images/*", "format": "png", "size": "20x16"},
        ),
    }  # fmt: skip


def main(name: str) -> None:
    """Write `NAME.tar.xz`."""
    with (
        tempfile.TemporaryDirectory() as place,
        tarfile.open(Path(__file__).with_name(f"{name}.tar.xz"), "w:xz") as tar,
    ):
        for title, (members, options) in builds().items():
            source = write(Path(place) / f"{title}.zip", zip_bytes(members))
            built = shardprep.build(source, out=f"{place}/out", name=title, shards=2, **options)
            tar.add(built.path, title)
        source = write(Path(place) / "half.zip", zip_bytes(classes()))
        shardprep.build(source, out=f"{place}/half", shards=4, part="1/2", max_rejected=0.5)
        tar.add(source, "unfinished/half.zip")
        tar.add(f"{place}/half", "unfinished/half")


if __name__ == "__main__":
    main(sys.argv[1])
