"""Build the datasets that later versions have to read: `python -m tests.frozen.freeze NAME`.

Run once for each version of the format, with the package as it was then. `NAME.tar.xz` is written
beside this file and never changed again: a folder for each dataset, and in `unfinished/` half of a
build with its source. Names after NAME select datasets of `builds()`: these alone are written.
"""

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


def targets() -> dict[str, bytes]:
    """Return PNGs and tables: numbers, classes and shares, several texts, rows of an image."""
    numbers, shares = ["id,area,side,shape"], ["id,a,b,c"]
    texts, rows = ["id,text"], ["id,x,y,part"]
    found: dict[str, bytes] = {}
    for number in range(9):
        found[f"images/{number}.png"] = encoded(picture(number, (240, 60, 60)), "PNG")
        left, top, right, bottom = corners(number)
        missing = "" if number == 4 else f"{right - left}.5"
        numbers.append(
            f"{number},{(right - left) * (bottom - top) / 7},{missing},{'ox'[number % 2]}"
        )
        shares.append(f"{number},{number},1,{9 - number}")
        texts += [f"{number},a rectangle ä {i} of {number}" for i in range(number % 3)]
        rows += [f"{number},{left + i / 4},{top},{'pq'[i % 2]}" for i in range(1 + number % 3)]
    tables = {"numbers": numbers, "shares": shares, "texts": texts, "rows": rows}
    return {**found, **{f"{name}.csv": "\n".join(one).encode() for name, one in tables.items()}}


def keypoints() -> dict[str, bytes]:
    """Return PNGs and COCO keypoints: visible, hidden and missing ones."""
    found = {name: data for name, data in objects().items() if name.startswith("images/")}
    images, marks = [], list[dict[str, Any]]()
    for number in range(10):
        images.append(
            {"id": number, "file_name": f"{number}.png", "width": SIZE[0], "height": SIZE[1]}
        )
        left, top, right, bottom = corners(number)
        for shift in range(number % 3):
            left += shift
            points = [left, top, 2, right, bottom, 1, 0, 0, 0]
            box = [left, top, right - left, bottom - top]
            mark = {"image_id": number, "category_id": 0, "bbox": box, "area": 9, "iscrowd": 0}
            marks.append({**mark, "id": len(marks), "keypoints": points, "num_keypoints": 2})
    names = {"id": 0, "name": "box", "keypoints": ["first", "last", "none"], "skeleton": [[1, 2]]}
    document = {"images": images, "annotations": marks, "categories": [names]}
    return {**found, "coco.json": json.dumps(document).encode()}


def stacks() -> dict[str, bytes]:
    """Return folders of two to four grey PNGs of 16 bits, a mask for each, and a table."""
    found, rows = {}, ["id,grade"]
    for sample in range(6):
        rows.append(f"s{sample},{'low' if sample % 2 else 'high'}")
        for plane in range(2 + sample % 3):
            grey = np.asarray(picture(sample * 8 + plane, (250, 20, 20)).convert("L"))
            deep = Image.fromarray(grey.astype(np.uint16) * 200)
            found[f"s{sample}/images/{plane}.png"] = encoded(deep, "PNG")
            mask = Image.fromarray((grey < 90).astype(np.uint8))
            found[f"s{sample}/masks/{plane}.png"] = encoded(mask, "PNG")
    return {**found, "table.csv": "\n".join(rows).encode()}


def pairs() -> dict[str, bytes]:
    """Return PNGs, each with a target of 16 bits."""
    found = {}
    for number in range(8):
        drawn = picture(number, (20, 200, 220))
        found[f"photo/{number}.png"] = encoded(drawn, "PNG")
        deep = np.asarray(drawn.convert("L")).astype(np.uint16) * 257
        found[f"depth/{number}.png"] = encoded(Image.fromarray(deep), "PNG")
    return found


def copies() -> dict[str, bytes]:
    """Return JPEGs of three classes, and a mirrored copy of every fourth."""
    found = {}
    for number in range(12):
        name = list(COLOURS)[number % 3]
        drawn = picture(number, COLOURS[name])
        found[f"{name}/{number}.jpg"] = encoded(drawn, "JPEG")
        if number % 4 == 0:
            mirrored = drawn.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            found[f"{name}/{number}_mirrored.jpg"] = encoded(mirrored, "JPEG")
    return found


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
        "numbers": (targets(), {"labels": "csv:numbers.csv:id:area,side,shape", "size": "20x16"}),
        "shares": (targets(), {"labels": "csv:shares.csv:id:a,b,c", "target": "soft", "size": 16}),
        "texts": (targets(), {"labels": "csv:texts.csv:id:text", "target": "texts", "size": 16}),
        "rows": (targets(), {"labels": "none", "rows": "csv:rows.csv:id:x,y,part", "size": 16}),
        "keypoints": (keypoints(), {"points": "coco:coco.json", "format": "png", "size": "40x32"}),
        "stacks": (
            stacks(),
            {"stack": "{id}/images/*.png", "masks": "{id}/masks/*.png", "depth": 16,
             "labels": "csv:table.csv:id:grade", "size": "20x16"},
        ),
        "pairs": (
            pairs(),
            {"target_image": "depth/{name}", "depth": 16, "format": "jpeg", "size": "20x16"},
        ),
        "certified": (
            copies(),
            {"labels": "folder", "group": "near", "split": "train=0.6,test=0.4", "size": "40x32"},
        ),
    }  # fmt: skip


def main(name: str, *titles: str) -> None:
    """Write `NAME.tar.xz`, with all datasets or the ones with these titles."""
    with (
        tempfile.TemporaryDirectory() as place,
        tarfile.open(Path(__file__).with_name(f"{name}.tar.xz"), "w:xz") as tar,
    ):
        for title, (members, options) in builds().items():
            if titles and title not in titles:
                continue
            source = write(Path(place) / f"{title}.zip", zip_bytes(members))
            built = shardprep.build(source, out=f"{place}/out", name=title, shards=2, **options)
            tar.add(built.path, title)
        if titles:
            return
        source = write(Path(place) / "half.zip", zip_bytes(classes()))
        shardprep.build(source, out=f"{place}/half", shards=4, part="1/2", max_rejected=0.5)
        tar.add(source, "unfinished/half.zip")
        tar.add(f"{place}/half", "unfinished/half")


if __name__ == "__main__":
    main(*sys.argv[1:])
