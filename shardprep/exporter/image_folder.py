"""Write images and masks to folders, with `labels.csv`, and objects as COCO or YOLO files.

`folder` has `split/class/name.jpg`, or for stacks `split/class/name/00000.jpg`. `coco` has
`images/train/name.jpg` and `annotations/instances_train.json`. File names in the JSON are relative
to the image folder of the split, as torchvision's CocoDetection and pycocotools expect.

`yolo` has `images/train/name.jpg`, `labels/train/name.txt` and `data.yaml`, as Ultralytics reads
them (https://docs.ultralytics.com/datasets/detect/). A label file has one line per object: class
from 0, then centre, width and height of the box as shares of the image, or a polygon around the
mask. The polygon follows pixel edges, so filling it restores the mask. Parts and holes of a mask
are connected by lines that the polygon follows in both directions. Images without objects have an
empty file. YOLO cannot mark crowds, so crowds are left out and counted in `labels.csv`.

Each shard writes its part of `labels.csv` after its images are on the disk. A shard with such a
part is complete. The parts are joined at the end.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardprep.dataset.card import to_cell
from shardprep.dataset.schema import (
    BOX_LABEL,
    KEYPOINTS,
    LABEL,
    MASK,
    OBJECT_MASK,
    TARGET_IMAGE,
    Schema,
)
from shardprep.exporter.cells import (
    cells_of,
    coco_entry,
    folder_names,
    mask_pixels,
    titles,
    write_coco,
)
from shardprep.exporter.samples import (
    FILE_COLUMNS,
    PARTS,
    Buffer,
    Export,
    ExportSample,
    Layout,
    Objects,
    ShardPlace,
)
from shardprep.storage.atomic_file import DurableFile, write_durably

LABELS_FILE = "labels.csv"
DATA_FILE = "data.yaml"
CROWDS_COLUMN = "crowds_left_out"
_UNLABELLED = "_unlabelled"
_YOLO_SPLITS = {"train": "train", "validation": "val", "test": "test"}
"""Split → its key in `data.yaml`."""


@dataclass(frozen=True, slots=True)
class FolderNames:
    """Path patterns. `{}` is the split, `{images}` the folder of the image; None means no file."""

    images: str
    masks: str
    object_masks: str | None
    document: str | None
    """COCO annotation file of a split."""
    by_class: bool = False
    """Whether each class has an image folder. COCO's `file_name` then includes the folders."""
    columns: tuple[str, ...] = ()
    """Additional last columns of `labels.csv`, also last in `ExportSample.columns`."""


def _part(_: Export, place: ShardPlace, suffix: str = "csv") -> str:
    return f"{PARTS}/{place.split}-{place.index:05d}.{suffix}"


def _write(
    folders: FolderNames, export: Export, place: ShardPlace, samples: Iterable[ExportSample]
) -> Callable[[], None]:
    schema, work = export.schema, export.work
    of_classes = _class_folders(folders, export, place.split)
    (work / PARTS).mkdir(parents=True, exist_ok=True)
    there: dict[str, dict[str, str]] = {}
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    with DurableFile(work / _part(export, place, "jsonl")) as entries:
        for number, sample in enumerate(samples, place.first + 1):
            is_of_class = len(of_classes) > 1 and isinstance(sample.target, int)
            folder = of_classes[sample.target] if is_of_class else of_classes[0]  # type: ignore[index]
            if folder not in there:  # on demand: torchvision rejects empty class folders
                there[folder] = _mask_folders(folders, schema, place.split, folder)
                for one in (folder, *there[folder].values()):
                    (work / one).mkdir(parents=True, exist_ok=True)
            path = f"{folder}/{sample.name}.{sample.suffix}"
            if schema.is_stack:
                path = f"{folder}/{sample.name}"
                _write_stack(work / path, sample.images, schema.image.channels, sample.suffix)
            else:
                (work / path).write_bytes(sample.image)
            _write_masks(work, there[folder], sample, schema)
            rows.writerow(map(to_cell, _row(sample, path, place.split, schema)))
            if folders.document is not None and BOX_LABEL in schema.features:
                named = path if folders.by_class else path.rpartition("/")[2]
                line = json.dumps(coco_entry(sample, named, number), ensure_ascii=False)
                entries.write(line.encode() + b"\n")
        entries.commit()

    def commit() -> None:
        if hasattr(os, "sync"):
            os.sync()  # one call for all images, before the part marks the shard as complete
        write_durably(work / _part(export, place), text.getvalue().encode())

    return commit


def _class_folders(folders: FolderNames, export: Export, split: str) -> list[str]:
    """Return the folders of the classes, then of unlabelled images; or only the split's folder."""
    folder = folders.images.format(split)
    if export.schema.target != LABEL or not folders.by_class:
        return [folder]
    return [f"{folder}/{name}" for name in folder_names([*export.schema.labels, _UNLABELLED])]


def _mask_folders(folders: FolderNames, schema: Schema, split: str, images: str) -> dict[str, str]:
    patterns = {MASK: folders.masks, OBJECT_MASK: folders.object_masks}
    patterns[TARGET_IMAGE] = "{}-target"
    if folders is _YOLO and KEYPOINTS not in schema.features:
        del patterns[OBJECT_MASK]  # the label files have the masks as polygons
    return {
        name: one.format(split, images=images)
        for name, one in patterns.items()
        if one and name in schema.features
    }


def _write_stack(
    folder: Path, images: Sequence[Buffer], channels: Sequence[str], suffix: str
) -> None:
    folder.mkdir(exist_ok=True)
    for number, data in enumerate(images):
        name = channels[number] if number < len(channels) else f"{number:05d}"
        (folder / f"{name}.{suffix}").write_bytes(data)


def _write_masks(
    work: Path, folders: Mapping[str, str], sample: ExportSample, schema: Schema
) -> None:
    if MASK in folders and schema.features[MASK].repeated:
        _write_stack(work / folders[MASK] / sample.name, sample.class_masks, (), "png")
    elif MASK in folders and sample.mask is not None:
        (work / folders[MASK] / f"{sample.name}.png").write_bytes(sample.mask)
    if sample.target_image is not None:
        (work / f"{folders[TARGET_IMAGE]}/{sample.name}.png").write_bytes(sample.target_image)
    if OBJECT_MASK in folders:
        for i, mask in enumerate(sample.objects.masks):
            (work / folders[OBJECT_MASK] / f"{sample.name}.{i}.png").write_bytes(mask)


def _row(sample: ExportSample, path: str, split: str, schema: Schema) -> list[object]:
    height, width = sample.size
    cells = cells_of(sample, schema)
    texts = (json.dumps(one, ensure_ascii=False) if isinstance(one, list) else one for one in cells)
    return [path, split, sample.key, width, height, *texts]


def _join(folders: FolderNames, export: Export) -> None:
    work, schema = export.work, export.schema
    title = io.StringIO()
    named = (one for one, _ in titles(schema, FILE_COLUMNS, folders.columns))
    csv.writer(title, lineterminator="\n").writerow(map(to_cell, (*FILE_COLUMNS, *named)))
    with DurableFile(work / LABELS_FILE) as file:
        file.write(title.getvalue().encode())
        for place in itertools.chain.from_iterable(export.places.values()):
            with (work / _part(export, place)).open("rb") as part:
                shutil.copyfileobj(part, file.stream)
        file.commit()
    if BOX_LABEL in schema.features and folders.document is not None:
        for split, shards in export.places.items():
            document = work / folders.document.format(split)
            document.parent.mkdir(exist_ok=True)
            with DurableFile(document) as file:
                lines, again = _lines(export, shards), _lines(export, shards)
                write_coco(file.stream, lines, again, schema)
                file.commit()


def _lines(export: Export, places: Iterable[ShardPlace]) -> Iterator[bytes]:
    for place in places:
        with (export.work / _part(export, place, "jsonl")).open("rb") as part:
            yield from part


def _write_yolo(
    export: Export, place: ShardPlace, samples: Iterable[ExportSample]
) -> Callable[[], None]:
    folder = export.work / "labels" / place.split
    folder.mkdir(parents=True, exist_ok=True)
    return _write(_YOLO, export, place, _labelled(folder, samples))


def _labelled(folder: Path, samples: Iterable[ExportSample]) -> Iterator[ExportSample]:
    """Write the label file of each sample, and yield the sample with its number of crowds."""
    for sample in samples:
        (folder / f"{sample.name}.txt").write_text("".join(_yolo_lines(sample)), "ascii")
        columns = {**sample.columns, CROWDS_COLUMN: sum(sample.objects.crowds)}
        yield sample._replace(columns=columns)


def _yolo_lines(sample: ExportSample) -> Iterator[str]:
    objects = sample.objects
    crowds = objects.crowds or [0] * len(objects.labels)
    keypoints = objects.keypoints or [()] * len(objects.labels)
    shapes = outlines(sample) if objects.masks and not objects.keypoints else _boxes(objects)
    for shape, label, is_crowd, points in zip(
        shapes, objects.labels, crowds, keypoints, strict=True
    ):
        words = [str(label), *(f"{one:.6f}" for one in shape)]
        words += [f"{x:.6f} {y:.6f} {visible}" for y, x, visible in points]
        if not is_crowd:
            yield f"{' '.join(words)}\n"


def _boxes(objects: Objects) -> Iterator[Sequence[float]]:
    for top, left, bottom, right in objects.boxes:
        yield (left + right) / 2, (top + bottom) / 2, right - left, bottom - top


def _describe_yolo(export: Export) -> None:
    _join(_YOLO, export)
    names = export.schema.features[BOX_LABEL].labels
    lines = [
        f"{key}: images/{split}" for split, key in _YOLO_SPLITS.items() if split in export.places
    ]
    lines += [f"nc: {len(names)}", "names:"]
    # JSON strings and lists are valid YAML.
    lines += [f"  {number}: {json.dumps(name)}" for number, name in enumerate(names)]
    if KEYPOINTS in export.schema.features:
        feature = export.schema.features[KEYPOINTS]
        mirrored = feature.mirrored or range(len(feature.points))
        lines += [f"kpt_shape: [{len(feature.points)}, 3]", f"flip_idx: {[*mirrored]}"]
        points = json.dumps(feature.points)
        lines += ["kpt_names:", *(f"  {number}: {points}" for number in range(len(names)))]
    write_durably(export.work / DATA_FILE, ("\n".join(lines) + "\n").encode())


# Split names have no hyphen, so `{}-object-masks` cannot be the folder of another split.
_FOLDER = FolderNames(
    "{}", "class-masks/{images}", "{}-object-masks", "{}.coco.json", by_class=True
)
_COCO = FolderNames("images/{}", "masks/{}", None, "annotations/instances_{}.json")
_YOLO = FolderNames("images/{}", "masks/{}", "object-masks/{}", None, columns=(CROWDS_COLUMN,))
WRITERS = {
    "folder": Layout(
        partial(_write, _FOLDER), _part, partial(_join, _FOLDER), 12 * 1024, takes_stacks=True
    ),
    "coco": Layout(
        partial(_write, _COCO), _part, partial(_join, _COCO), 12 * 1024, needs_boxes=True
    ),
    "yolo": Layout(_write_yolo, _part, _describe_yolo, 16 * 1024, needs_boxes=True),
}


def outlines(sample: ExportSample) -> list[list[float]]:
    """Return the polygon around each mask as x, y, x, y … in 0..1; for an empty mask, its box."""
    height, width = sample.size
    found = []
    for pixels, (top, left, bottom, right) in zip(
        mask_pixels(sample), sample.objects.boxes, strict=True
    ):
        corners = (_corners(pixels) / (width, height)).ravel().tolist()
        found.append(corners or [left, top, right, top, right, bottom, left, bottom])
    return found


def _corners(pixels: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the corners of one polygon around the set pixels, int64[n, 2]: x and y.

    A grid point is a corner if one or three of its four pixels are set, and two corners if only a
    diagonal pair is set. The rings around parts and holes are joined at their first corners.
    """
    padded = np.pad(pixels, 1)
    parts = padded[:-1, :-1], padded[:-1, 1:], padded[1:, :-1], padded[1:, 1:]
    is_corner = np.bitwise_xor.reduce(parts)
    are_two = (parts[0] == parts[3]) & (parts[1] == parts[2]) & (parts[0] != parts[1])
    y, x = np.nonzero(numbers := is_corner + 2 * are_two)
    corners = np.repeat(np.stack([x, y], 1), numbers[y, x], 0)
    rings = _rings(corners)
    closed = itertools.chain.from_iterable((*ring, ring[0]) for ring in rings)
    places = [*closed, *(ring[0] for ring in rings[-2::-1])]
    places += places[:1] * (len(places) % 3 == 2)  # 4 + 3n numbers could be a box and keypoints
    return corners[places]


def _rings(corners: NDArray[Any]) -> list[list[int]]:
    """Return the rings as lists of corner indices, in drawing order.

    In each row and column, corners 0 and 1 are the ends of an edge, corners 2 and 3 of the next.
    """
    order = np.lexsort((corners[:, 1], corners[:, 0])).reshape(-1, 2)
    ends = np.empty(len(corners), np.int64)
    ends[order] = order[:, ::-1]
    above, is_seen, rings = ends.tolist(), bytearray(len(corners)), []
    for first in range(0, len(corners), 2):
        ring, at = list[int](), first
        while not is_seen[at]:
            ring += (at, at ^ 1)
            is_seen[at] = is_seen[at ^ 1] = True
            at = above[at ^ 1]
        if ring:
            rings.append(ring)
    return rings
