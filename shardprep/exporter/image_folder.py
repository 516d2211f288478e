"""Folder: `split/class/name.jpg`, a table `labels.csv`, COCO for objects, masks as PNG beside.

What is written of a shard is known by its part of the table, which is written when its images are
on the disk. The parts are joined at the end.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import shutil
from typing import TYPE_CHECKING

from shardprep.dataset.cells import to_cell
from shardprep.dataset.schema import BOX_LABEL, LABEL, LABELS, OBJECT_MASK
from shardprep.exporter import coco
from shardprep.exporter.layout import Layout
from shardprep.exporter.names import folder_names
from shardprep.exporter.output import PARTS
from shardprep.exporter.samples import table_columns
from shardprep.storage.atomic_file import DurableFile, write_durably

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from shardprep.dataset.schema import Schema
    from shardprep.exporter.layout import Export, Place
    from shardprep.exporter.samples import Sample

LABELS_FILE = "labels.csv"
_UNLABELLED = "_unlabelled"


def coco_name(split: str) -> str:
    """Return the name of a split's COCO document."""
    return f"{split}.coco.json"


def _part(export: Export, place: Place) -> str:
    del export
    return f"{PARTS}/{place.split}-{place.index:05d}.csv"


def _coco_part(place: Place) -> str:
    return f"{PARTS}/{place.split}-{place.index:05d}.jsonl"


def write_files(export: Export, place: Place, samples: Iterable[Sample]) -> Callable[[], None]:
    """Write the images and masks of a shard; return what syncs them and writes its part."""
    schema, work = export.schema, export.work
    folders = _class_folders(export, place.split)
    for name in (*_mask_folders(schema, place.split), PARTS):
        (work / name).mkdir(exist_ok=True)
    made: set[str] = set()
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    with DurableFile(work / _coco_part(place)) as entries:
        for number, sample in enumerate(samples, place.first + 1):
            is_of_class = schema.target == LABEL and isinstance(sample.target, int)
            folder = folders[sample.target] if is_of_class else folders[0]  # type: ignore[index]
            if folder not in made:  # one without an image would be an error to ImageFolder
                (work / folder).mkdir(parents=True, exist_ok=True)
                made.add(folder)
            path = f"{folder}/{sample.name}.{sample.suffix}"
            (work / path).write_bytes(sample.image)
            _write_masks(work, place.split, sample)
            rows.writerow(map(to_cell, _row(sample, path, place.split, schema)))
            if sample.objects is not None:
                line = json.dumps(coco.entry(sample, path, number), ensure_ascii=False)
                entries.write(line.encode() + b"\n")
        entries.commit()

    def commit() -> None:
        if hasattr(os, "sync"):
            os.sync()  # one for thousands of files; the part says that they are there
        write_durably(work / _part(export, place), text.getvalue().encode())

    return commit


def _class_folders(export: Export, split: str) -> list[str]:
    """Return the folders of a split's images: that of each class, last of unlabelled ones."""
    if export.schema.target != LABEL:
        return [split]
    return [f"{split}/{name}" for name in folder_names([*export.schema.labels, _UNLABELLED])]


def _mask_folders(schema: Schema, split: str) -> list[str]:
    """Return the folders of a split's masks; no split has a name with a hyphen."""
    return [f"{split}-{what}" for name, what in _MASKS.items() if name in schema.features]


_MASKS = {"segmentation_mask": "masks", OBJECT_MASK: "object-masks"}


def _write_masks(work: Path, split: str, sample: Sample) -> None:
    if sample.mask is not None:
        (work / f"{split}-masks/{sample.name}.png").write_bytes(sample.mask)
    for i, mask in enumerate(sample.objects.masks if sample.objects else ()):
        (work / f"{split}-object-masks/{sample.name}.{i}.png").write_bytes(mask)


def _titles(schema: Schema) -> list[str]:
    """Return the columns of the table; one of the label table gives way to ours."""
    own = ["file_name", "split", "key", "width", "height"]
    if schema.target is not None:
        own.append(schema.target)
    if schema.target == LABEL:
        own.append("class")
    elif schema.target == LABELS:
        own.append("classes")
    return [*own, *(f"column/{n}" if n in own else n for n in table_columns(schema))]


def _row(sample: Sample, path: str, split: str, schema: Schema) -> list[object]:
    """Return the row of a sample; of several classes their numbers and names, as JSON lists."""
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


def write_documents(export: Export, places: Mapping[str, list[Place]]) -> None:
    """Join the parts: the table of all splits, and COCO's annotations of each."""
    work, schema = export.work, export.schema
    title = io.StringIO()
    csv.writer(title, lineterminator="\n").writerow(map(to_cell, _titles(schema)))
    with DurableFile(work / LABELS_FILE) as file:
        file.write(title.getvalue().encode())
        for place in itertools.chain.from_iterable(places.values()):
            with (work / _part(export, place)).open("rb") as part:
                shutil.copyfileobj(part, file.stream)
        file.commit()
    if BOX_LABEL in schema.features:
        classes = schema.features[BOX_LABEL].labels
        for split, shards in places.items():
            with DurableFile(work / coco_name(split)) as file:
                coco.write_document(
                    file.stream, _lines(work, shards), _lines(work, shards), classes
                )
                file.commit()


def _lines(work: Path, places: Iterable[Place]) -> Iterator[bytes]:
    for place in places:
        with (work / _coco_part(place)).open("rb") as part:
            yield from part


LAYOUT = Layout(write_files, _part, write_documents, record_bytes=12 * 1024)
