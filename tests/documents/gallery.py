"""docs/gallery.md and its pictures: `python -m tests.documents.gallery` writes them.

The pictures are read from datasets that are built of the miniatures in `tests.support.layouts`,
with drawn images instead of noise.
"""

import contextlib
import dataclasses
import functools
import json
import random
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from shardprep.dataset.annotated_pictures import annotated_picture, legend_of
from shardprep.dataset.open_dataset import open_dataset
from shardprep.image.drawing import INK, draw_contact_sheet
from shardprep.reader import Dataset
from tests.support import layouts
from tests.support.builders import encoded, write_folder
from tests.support.corpus import rows
from tests.support.dicom import dicom
from tests.support.first_contact import stored_statuses
from tests.support.layouts import LAYOUTS, Layout, contents, write_source
from tests.support.paths import ROOT
from tests.support.quick_command import build_command, encode_here

PAGE = ROOT / "docs" / "gallery.md"
FOLDER = ROOT / "docs" / "gallery"
_NUM_PICTURES, _SIDE = 3, 150
Places = Sequence[Sequence[float]]
Objects = Mapping[str, Places]
"""Key of an image → top, left, bottom, right of its objects, 0 to 1."""
_SMALL, _LARGE = (12, 10), (96, 80)
"""Boxes, run lengths and keypoints of the miniatures are made for the small size."""
_MOST_NAMES = 3
"""Files of a folder that a tree lists."""
_HEAD = """# Gallery of layouts

This page shows common layouts of image datasets: their files, the command that builds them, and
three pictures of the result. Find the layout that looks like yours, and change the names in its
command. `shardprep init SOURCE` proposes the flags for your files. [kaggle.md](kaggle.md) lists 55
datasets.

The pictures come from small copies of the datasets with drawn images. A test builds every copy with
the command on this page. Titles are the stored targets.
"""
_MORE = """## Without flags

`shardprep build SOURCE` without flags decides how to read a source, or asks. {number} more layouts
are tested that way: {right} are built as a person wants it, for {question} the answer is among the
proposals, for {refused} no proposal fits, {partly} are built in part with a note, and built wrong
are {wrong}.

| Dataset and files | Without flags | Flags |
|---|---|---|"""
_TOLD = {
    "right": "built",
    "question": "asked",
    "refused": "asked; no proposal fits",
    "partly": "built in part",
    "wrong": "built wrong",
}
_OTHER_FAMILIES = frozenset(("controls", "kaggle", "competitions"))


def _rows(header: str, *rows: str) -> str:
    return "\n".join((header, *rows, ""))


def _voc(name: str, shift: int) -> str:
    box = f"<xmin>{1 + shift}</xmin><ymin>2</ymin><xmax>{7 + shift}</xmax><ymax>8</ymax>"
    size = "<size><width>12</width><height>10</height><depth>3</depth></size>"
    marked = f"<object><name>bike</name><bndbox>{box}</bndbox></object>"
    return f"<annotation><filename>{name}.jpg</filename>{size}{marked}</annotation>"


def _digits() -> str:
    pixels = [f"pixel{number}" for number in range(64)]
    rows = []
    for number in range(6):
        grey = np.asarray(_scene(random.Random(number), (8, 8)).convert("L")).ravel().tolist()
        rows.append(",".join(map(str, (number % 3, *grey))))
    return _rows(",".join(("label", *pixels)), *rows)


def _scene(rng: random.Random, size: tuple[int, int], places: Places = ()) -> Image.Image:
    """Return bright ellipses on a dark ground, in `places` or in a random place."""
    ground, ink = ([rng.randint(*limits) for _ in range(3)] for limits in ((30, 110), (140, 255)))
    image = Image.new("RGB", size, tuple(ground))
    x, y = rng.uniform(0.1, 0.4), rng.uniform(0.1, 0.4)
    for top, left, bottom, right in places or [(y, x, y + 0.5, x + 0.5)]:
        corners = left * size[0], top * size[1], right * size[0] - 1, bottom * size[1] - 1
        ImageDraw.Draw(image).ellipse(corners, fill=tuple(ink))
    return image


def _drawn(
    name: str, mode: str = "RGB", suffix: str = "", *, size: tuple[int, int], objects: Objects
) -> bytes:
    """Return a picture, in the place of the noise of `layouts.image`. Masks and pairs fit."""
    seed = name.rpartition(".")[0].removesuffix("_mask").replace("/high/", "/low/")
    rng = random.Random(seed.replace("_masks", "").replace("/masks/", "/images/"))
    scene = _scene(rng, size, objects.get(name, ()))
    if "/low/" in name:
        scene = scene.point(lambda level: level // 4)
    if mode == "1":
        grey = np.asarray(scene.convert("L"))
        scene = Image.fromarray((grey > (int(grey.min()) + int(grey.max())) / 2).astype(bool))
    elif mode != "RGB":
        scene = scene.convert(mode)
    suffix = suffix or name.rpartition(".")[2].lower()
    if suffix == "dcm":
        return dicom(np.asarray(scene))
    return encoded(scene, layouts._FORMS[suffix], **({"quality": 95} if suffix == "jpg" else {}))


_EXTRA = {
    one.name: one
    for one in (
        Layout(
            row=0, name="human-protein-atlas-image-classification, all channels",
            special="four grey PNGs for each id, stored together as channels",
            like="human-protein-atlas-image-classification",
            source="human-protein-atlas-image-classification.zip",
            flags="--stack '{id}_{red,green,blue,yellow}.png' --labels csv:train.csv:Id:Target"
            " --separator ' '",
            kind="multilabel", classes=("0", "7", "16"), splits={"train": 4, "test": 1},
            unlabelled=("test",), targets={},
        ),
        Layout(
            row=0, name="byu-locating-bacterial-flagellar-motors-2025",
            special="a folder of slices for each volume; numbers in a table",
            files={
                "train/tomo_{a,b,c}/slice_{0000..0004}.jpg": "@image",
                "labels.csv": _rows("tomo_id,motors", "tomo_a,1", "tomo_b,0", "tomo_c,2"),
            },
            flags="--stack 'train/{id}/slice_*.jpg' --labels csv:labels.csv:tomo_id:motors",
            classes=("0", "1", "2"), splits={"train": 3}, targets={},
        ),
        Layout(
            row=0, name="digit-recognizer",
            special="each row of a CSV is an image; the first column is its class",
            files={"train.csv": _digits()},
            classes=("0", "1", "2"), splits={"train": 6}, targets={},
        ),
        Layout(
            row=0, name="facial-keypoints-detection",
            special="columns of x and y; an empty cell is a keypoint that is not labelled",
            files={
                "{a,b,c}.png": "@image",
                "training.csv": _rows(
                    "left_eye_center_x,left_eye_center_y,right_eye_center_x,right_eye_center_y,"
                    "nose_tip_x,nose_tip_y,ImageId",
                    "8,3,4,3,6,6,a", "8.5,4,4,4,6.5,7,b", ",,3,4,5,7,c",
                ),
            },
            flags="--points csv:training.csv", stored="keypoints", kind="none",
            objects={"left_eye_center": 2, "right_eye_center": 3, "nose_tip": 3},
            splits={"train": 3}, targets={},
        ),
        Layout(
            row=0, name="COCO", special="a JSON file lists images, boxes and classes",
            files={
                "images/{a,b,c}.jpg": "@image",
                "annotations/instances.json": json.dumps(
                    {
                        "images": [
                            {"id": i, "file_name": f"{name}.jpg", "width": 12, "height": 10}
                            for i, name in enumerate("abc")
                        ],
                        "annotations": [
                            {"id": i, "image_id": i % 3, "category_id": 1 + i // 3,
                             "bbox": [1 + 6 * (i // 3), 2, 4, 5], "area": 20, "iscrowd": 0}
                            for i in range(4)
                        ],
                        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
                    }
                ),
            },
            source="coco.zip", flags="--boxes coco", stored="boxes", kind="none",
            objects={"cat": 3, "dog": 1}, splits={"train": 3}, targets={},
        ),
        Layout(
            row=0, name="YOLO", special="a text file for each image, and names in `data.yaml`",
            files={
                "images/train/{a,b}.jpg": "@image", "images/val/c.jpg": "@image",
                "labels/train/a.txt": _rows("0 0.3 0.5 0.4 0.6", "1 0.8 0.4 0.3 0.4"),
                "labels/train/b.txt": _rows("1 0.5 0.5 0.6 0.7"),
                "labels/val/c.txt": _rows("0 0.4 0.6 0.5 0.5"),
                "data.yaml": _rows("names: [car, van]", "nc: 2"),
            },
            source="yolo.zip", flags="--boxes yolo", stored="boxes", kind="none",
            objects={"car": 2, "van": 2}, splits={"train": 2, "validation": 1}, targets={},
        ),
        Layout(
            row=0, name="Pascal VOC", special="an XML file for each image",
            files={
                "JPEGImages/{a,b,c}.jpg": "@image",
                **{f"Annotations/{name}.xml": _voc(name, i) for i, name in enumerate("abc")},
            },
            source="voc.zip", flags="--boxes voc", stored="boxes", kind="none",
            objects={"bike": 3}, splits={"train": 3}, targets={},
        ),
        Layout(
            row=0, name="lol-dataset", special="a dark photo and a bright one of equal names",
            files={"our485/{low,high}/{1..3}.png": "@image"},
            flags="--target-image 'high/{name}'", stored="pairs", kind="none",
            objects={"a photo and its target image": 0}, splits={"train": 3}, targets={},
        ),
        Layout(
            row=0, name="flickr8k", special="several captions of each photo, a row each",
            files={
                "Images/{a,b,c}.jpg": "@image",
                "captions.txt": _rows(
                    "image,caption", "a.jpg,A disc on a wall", "a.jpg,A spot of light",
                    "b.jpg,Something round", "c.jpg,An ellipse",
                ),
            },
            flags="--labels csv:captions.txt:image:caption --target texts", kind="text",
            meaning="one or several captions", splits={"train": 3}, targets={},
        ),
    )
}  # fmt: skip

GROUPS = {
    "Classes from folders and file names": (
        "dogs-vs-cats",
        "PetImages",
        "intel-image-classification",
        "UTKFace",
    ),
    "Targets from tables": (
        "dog-breed-identification",
        "plant-pathology-2021-fgvc8",
        "hotel-id-2021-fgvc8",
        "petfinder-pawpularity-score",
        "bms-molecular-translation",
    ),
    "Labels in several columns or rows": ("celeba-dataset", "iwildcam-2020-fgvc7", "flickr8k"),
    "Boxes": ("global-wheat-detection", "rsna-pneumonia-detection-challenge"),
    "Formats of boxes": ("COCO", "YOLO", "Pascal VOC"),
    "Masks": (
        "airbus-ship-detection",
        "tgs-salt-identification-challenge",
        "carvana-image-masking-challenge",
        "data-science-bowl-2018",
    ),
    "Stacks": (
        "human-protein-atlas-image-classification, all channels",
        "byu-locating-bacterial-flagellar-motors-2025",
    ),
    "Arrays": ("digit-recognizer",),
    "Keypoints": ("facial-keypoints-detection",),
    "Pairs of images": ("lol-dataset",),
}  # fmt: skip


def layout_of(name: str) -> Layout:
    return _EXTRA.get(name) or next(one for one in LAYOUTS if one.name == name)


def picture_of(group: str) -> str:
    return f"{group.split(maxsplit=1)[0].lower()}.png"


def source_of(layout: Layout) -> str:
    return layout.source or f"{layout.name}.zip"


def tree_of(layout: Layout) -> str:
    """Return the files of a source as a tree, with a few names of each folder."""
    files = layout.files or layout_of(layout.like).files
    top: dict[str, Any] = {}
    for path in contents(files):
        folder = top
        *parents, name = path.split("/")
        for part in parents:
            folder = folder.setdefault(part, {})
        folder[name] = {}
    return "\n".join([source_of(layout), *_lines(top, "  ")])


def _lines(folder: dict[str, Any], indent: str) -> Iterator[str]:
    shown = [name for name, below in folder.items() if below]
    names = [name for name in folder if name not in shown]
    for name in shown[:_MOST_NAMES]:
        yield f"{indent}{name}/"
        yield from _lines(folder[name], indent + "  ")
    few = names if len(names) <= _MOST_NAMES + 1 else names[:_MOST_NAMES]
    yield from (f"{indent}{name}" for name in few)
    if more := len(names) - len(few) + max(0, len(shown) - _MOST_NAMES):
        yield f"{indent}… {more} more"


def _more_layouts() -> str:
    """Return the table of the layouts that are tested without flags."""
    statuses = stored_statuses()
    shown = [row for row in rows() if row.family not in _OTHER_FAMILIES]
    counts = Counter(statuses[row.id] for row in shown)
    lines = [_MORE.format(number=len(shown), **{one: counts[one] for one in _TOLD})]
    for row in sorted(shown, key=lambda row: (row.origin.casefold(), row.id)):
        name, _, layout = row.origin.partition(": ")
        needed = "" if statuses[row.id] == "right" else f"`{row.flags}`".replace("|", "\\|")
        flags = row.cannot or needed if needed else ""
        cells = (f"{name}<br>{layout}".replace("|", "\\|"), _TOLD[statuses[row.id]], flags)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join((*lines, ""))


def page_text() -> str:
    parts = [_HEAD]
    for group, names in GROUPS.items():
        parts.append(f"## {group}\n\n![{group}: {', '.join(names)}](gallery/{picture_of(group)})\n")
        for name in names:
            layout = layout_of(name)
            command = " ".join(filter(None, ("shardprep build", source_of(layout), layout.flags)))
            parts.append(
                f"### {name}\n\n{layout.special[0].upper()}{layout.special[1:]}.\n\n"
                f"```text\n{tree_of(layout)}\n```\n\n```console\n$ {command}\n```\n\n"
                f"Result: {layout.result}.\n"
            )
    return "\n".join((*parts, _more_layouts()))


def built(layout: Layout, folder: Path, objects: Objects | None = None) -> Path:
    """Build the miniature of a layout, with drawn images, in this process."""
    folder.mkdir()
    is_small = "boxes" in layout.stored or "keypoints" in layout.stored
    draw = functools.partial(_drawn, size=_SMALL if is_small else _LARGE, objects=objects or {})
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
        encode_here(patch)
        patch.setattr(layouts, "image", draw)
        source = write_source(layout, folder)
        done = build_command(source, *shlex.split(layout.flags), "--size", "none")
    return folder / str(done["path"])


def _boxes(path: Path) -> Objects:
    return {
        item["image/filename"]: item["objects/bbox"].tolist()
        for split in open_dataset(path).manifest.splits
        for item in Dataset(path, split, as_supervised=False)
        if "objects/bbox" in item
    }


def row_of(path: Path) -> Image.Image:
    """Return three pictures of a dataset with their targets as titles."""
    dataset = open_dataset(path)
    targets = dict(_targets(path, [*dataset.manifest.splits]))
    number = min(dataset.record_rows(("split",)).num_rows, _NUM_PICTURES)
    payloads = (dataset.read(record) for record in range(number))
    pictures = [
        dataclasses.replace(one, title=targets.get(one.title) or one.title)
        for one in (annotated_picture(payload, dataset.schema) for payload in payloads)
    ]
    return draw_contact_sheet(pictures, legend_of(dataset.schema), columns=3, side=_SIDE)


def _targets(path: Path, splits: list[str]) -> Iterator[tuple[str, str]]:
    for split in splits:
        data = Dataset(path, split, as_supervised=False)
        names = data.class_names
        for item in data:
            key = item["image/filename"]
            if (label := item.get("label", -1)) >= 0:
                yield key, names[label]
            elif "labels" in item:
                yield key, ", ".join(names[i] for i in np.flatnonzero(item["labels"]))
            elif "target" in item:
                yield key, f"{item['target']:g}"
            elif "text" in item:
                yield key, str(item["text"])
            elif "texts" in item:
                yield key, str(item["texts"][0])


def sheet_of(group: str, folder: Path) -> Image.Image:
    rows = []
    for number, name in enumerate(GROUPS[group]):
        layout, here = layout_of(name), folder / f"{picture_of(group)}-{number}"
        path = built(layout, here)
        if "boxes" in layout.stored:  # objects are drawn in the boxes of the first build
            path = built(layout, Path(f"{here}-again"), _boxes(path))
        rows.append((name, row_of(path)))
    width = max(row.width for _, row in rows)
    sheet = Image.new("RGB", (width, sum(row.height + 16 for _, row in rows)), "white")
    top = 0
    for name, row in rows:
        ImageDraw.Draw(sheet).text((8, top + 3), name, INK)
        sheet.paste(row, (0, top + 16))
        top += row.height + 16
    return sheet


def pictures(folder: Path) -> dict[str, bytes]:
    return {
        picture_of(group): encoded(sheet_of(group, folder).quantize(64), "PNG", optimize=True)
        for group in GROUPS
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as below:
        write_folder(FOLDER, pictures(Path(below)))
    PAGE.write_text(page_text(), encoding="utf-8")
