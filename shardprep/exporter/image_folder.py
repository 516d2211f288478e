"""Images as files in folders, a table `labels.csv`, COCO for objects, and masks as PNG.

The layouts `folder` (`split/class/name.jpg`) and `coco`: `images/train/name.jpg` and
`annotations/instances_train.json`, whose file names are relative to the images of the split, as
torchvision's CocoDetection and pycocotools expect. YOLO has `FolderNames` of its own.

A shard is known to be written by its part of the table, which is written when its images are on the
disk. The parts are joined at the end.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from shardprep.dataset.card import to_cell
from shardprep.dataset.schema import BOX_LABEL, LABEL, LABELS, MASK, OBJECT_MASK, Schema
from shardprep.exporter import coco
from shardprep.exporter.file_names import folder_names
from shardprep.exporter.layout import Export, Layout, ShardPlace
from shardprep.exporter.output import PARTS
from shardprep.exporter.samples import ExportSample, table_columns
from shardprep.storage.atomic_file import DurableFile, write_durably

LABELS_FILE = "labels.csv"
_UNLABELLED = "_unlabelled"


@dataclass(frozen=True, slots=True)
class FolderNames:
    """Where a layout has its files; {} is the split."""

    images: str
    masks: str
    object_masks: str | None
    document: str | None
    """COCO's annotations, or None."""
    by_class: bool = False
    """Whether images are in a folder of their class, below the split's folder. COCO's file names
    then start with these folders, else they are names only."""
    columns: tuple[str, ...] = ()
    """Further columns of the table, which the samples have last."""


def part_name(export: Export, place: ShardPlace) -> str:
    """Return the file of a shard's part of the table."""
    del export
    return f"{PARTS}/{place.split}-{place.index:05d}.csv"


def _coco_part(place: ShardPlace) -> str:
    return f"{PARTS}/{place.split}-{place.index:05d}.jsonl"


def write_files(
    folders: FolderNames, export: Export, place: ShardPlace, samples: Iterable[ExportSample]
) -> Callable[[], None]:
    """Write images and masks of a shard; return what syncs them and writes its part."""
    schema, work = export.schema, export.work
    of_classes = _class_folders(folders, export, place.split)
    mask_folders = _mask_folders(folders, schema, place.split)
    for folder in (*mask_folders.values(), PARTS):
        (work / folder).mkdir(parents=True, exist_ok=True)
    there: set[str] = set()
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    with DurableFile(work / _coco_part(place)) as entries:
        for number, sample in enumerate(samples, place.first + 1):
            is_of_class = len(of_classes) > 1 and isinstance(sample.target, int)
            folder = of_classes[sample.target] if is_of_class else of_classes[0]  # type: ignore[index]
            if folder not in there:  # one without an image would be an error to ImageFolder
                (work / folder).mkdir(parents=True, exist_ok=True)
                there.add(folder)
            path = f"{folder}/{sample.name}.{sample.suffix}"
            (work / path).write_bytes(sample.image)
            _write_masks(work, mask_folders, sample)
            rows.writerow(map(to_cell, _row(sample, path, place.split, schema)))
            if sample.objects is not None and folders.document is not None:
                named = path if folders.by_class else path.rpartition("/")[2]
                line = json.dumps(coco.entry(sample, named, number), ensure_ascii=False)
                entries.write(line.encode() + b"\n")
        entries.commit()

    def commit() -> None:
        if hasattr(os, "sync"):
            os.sync()  # one for thousands of files; the part says that they are there
        write_durably(work / part_name(export, place), text.getvalue().encode())

    return commit


def _class_folders(folders: FolderNames, export: Export, split: str) -> list[str]:
    """Return the folder of each class of a split, and last the one for unlabelled images."""
    folder = folders.images.format(split)
    if export.schema.target != LABEL or not folders.by_class:
        return [folder]
    return [f"{folder}/{name}" for name in folder_names([*export.schema.labels, _UNLABELLED])]


def _mask_folders(folders: FolderNames, schema: Schema, split: str) -> dict[str, str]:
    patterns = {MASK: folders.masks, OBJECT_MASK: folders.object_masks}
    return {
        name: one.format(split) for name, one in patterns.items() if one and name in schema.features
    }


def _write_masks(work: Path, folders: Mapping[str, str], sample: ExportSample) -> None:
    if MASK in folders and sample.mask is not None:
        (work / folders[MASK] / f"{sample.name}.png").write_bytes(sample.mask)
    if OBJECT_MASK in folders and sample.objects is not None:
        for i, mask in enumerate(sample.objects.masks):
            (work / folders[OBJECT_MASK] / f"{sample.name}.{i}.png").write_bytes(mask)


def _titles(folders: FolderNames, schema: Schema) -> list[str]:
    """Return the columns of the table; a label table column gives way to ours."""
    own = ["file_name", "split", "key", "width", "height"]
    if schema.target is not None:
        own.append(schema.target)
    if schema.target == LABEL:
        own.append("class")
    elif schema.target == LABELS:
        own.append("classes")
    columns = (*table_columns(schema), *folders.columns)
    return [*own, *(f"column/{n}" if n in own else n for n in columns)]


def _row(sample: ExportSample, path: str, split: str, schema: Schema) -> list[object]:
    """Return the row of a sample; several classes are JSON lists of numbers and names."""
    height, width = sample.size
    row: list[object] = [path, split, sample.key, width, height]
    target = sample.target
    if isinstance(target, tuple):
        names = json.dumps([schema.labels[one] for one in target], ensure_ascii=False)
        row += [json.dumps(target), names]
    elif schema.target == LABEL and isinstance(target, int):
        row += [target, schema.labels[target] if target >= 0 else ""]
    elif schema.target is not None:
        row.append(target)
    return [*row, *sample.columns.values()]


def write_documents(
    folders: FolderNames, export: Export, places: Mapping[str, list[ShardPlace]]
) -> None:
    """Join the parts: the table of all splits, and COCO's annotations of each."""
    work, schema = export.work, export.schema
    title = io.StringIO()
    csv.writer(title, lineterminator="\n").writerow(map(to_cell, _titles(folders, schema)))
    with DurableFile(work / LABELS_FILE) as file:
        file.write(title.getvalue().encode())
        for place in itertools.chain.from_iterable(places.values()):
            with (work / part_name(export, place)).open("rb") as part:
                shutil.copyfileobj(part, file.stream)
        file.commit()
    if BOX_LABEL in schema.features and folders.document is not None:
        classes = schema.features[BOX_LABEL].labels
        for split, shards in places.items():
            document = work / folders.document.format(split)
            document.parent.mkdir(exist_ok=True)
            with DurableFile(document) as file:
                coco.write_document(
                    file.stream, _lines(work, shards), _lines(work, shards), classes
                )
                file.commit()


def _lines(work: Path, places: Iterable[ShardPlace]) -> Iterator[bytes]:
    for place in places:
        with (work / _coco_part(place)).open("rb") as part:
            yield from part


def layout_of(folders: FolderNames, **more: Any) -> Layout:
    """Return the layout with these folders; `more` are fields of `Layout`."""
    write, describe = partial(write_files, folders), partial(write_documents, folders)
    return Layout(write, part_name, describe, **{"record_bytes": 12 * 1024, **more})


WRITERS = {
    "folder": layout_of(  # no split has a name with a hyphen
        FolderNames("{}", "{}-masks", "{}-object-masks", "{}.coco.json", by_class=True)
    ),
    "coco": layout_of(
        FolderNames("images/{}", "masks/{}", None, "annotations/instances_{}.json"),
        needs_boxes=True,
    ),
}
