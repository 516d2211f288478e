"""YOLO: `images/train/name.jpg`, `labels/train/name.txt`, `data.yaml`, as Ultralytics reads them.

https://docs.ultralytics.com/datasets/detect/: a line for each object, with its class from 0 and the
middle, width and height of its box as shares of the image. An image without objects has an empty
file. YOLO has no notation for crowds; they are counted in the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from shardprep.dataset.schema import BOX_LABEL
from shardprep.exporter.image_folder import (
    FolderNames,
    part_name,
    write_documents,
    write_files,
)
from shardprep.exporter.layout import Export, Layout, ShardPlace
from shardprep.exporter.samples import ExportSample, Objects
from shardprep.storage.atomic_file import write_durably

DATA_FILE = "data.yaml"
CROWDS_COLUMN = "crowds_left_out"
_FOLDERS = FolderNames("images/{}", "masks/{}", "object-masks/{}", None, columns=(CROWDS_COLUMN,))
_SPLITS = {"train": "train", "validation": "val", "test": "test"}
"""Split → its key in `data.yaml`."""


def write_labelled(
    export: Export, place: ShardPlace, samples: Iterable[ExportSample]
) -> Callable[[], None]:
    """Write images, labels and masks of a shard; return what syncs them and writes its part."""
    folder = export.work / "labels" / place.split
    folder.mkdir(parents=True, exist_ok=True)
    return write_files(_FOLDERS, export, place, _labelled(folder, samples))


def _labelled(folder: Path, samples: Iterable[ExportSample]) -> Iterator[ExportSample]:
    """Write the label file of each sample; yield it with its number of crowds as a column."""
    for sample in samples:
        lines = _lines(sample.objects) if sample.objects is not None else []
        (folder / f"{sample.name}.txt").write_text("".join(lines), "ascii")
        num_crowds = sum(sample.objects.crowds) if sample.objects is not None else 0
        yield sample._replace(columns={**sample.columns, CROWDS_COLUMN: num_crowds})


def _lines(objects: Objects) -> list[str]:
    crowds = objects.crowds or [0] * len(objects.labels)
    lines = []
    for (top, left, bottom, right), label, is_crowd in zip(
        objects.boxes, objects.labels, crowds, strict=True
    ):
        sides = (left + right) / 2, (top + bottom) / 2, right - left, bottom - top
        if not is_crowd:
            lines.append(f"{label} {' '.join(f'{one:.6f}' for one in sides)}\n")
    return lines


def write_data(export: Export, places: Mapping[str, list[ShardPlace]]) -> None:
    """Write the table, and the document with the folders of the splits and the classes."""
    write_documents(_FOLDERS, export, places)
    folders = {key: f"images/{split}" for split, key in _SPLITS.items() if split in places}
    text = _yaml(folders, export.schema.features[BOX_LABEL].labels)
    write_durably(export.work / DATA_FILE, text.encode())


def _yaml(folders: Mapping[str, str], names: Sequence[str]) -> str:
    """Return the document; JSON texts are valid YAML."""
    lines = [f"{key}: {folder}" for key, folder in folders.items()]
    lines += [f"nc: {len(names)}", "names:"]
    lines += [f"  {number}: {json.dumps(name)}" for number, name in enumerate(names)]
    return "\n".join(lines) + "\n"


WRITERS = {
    "yolo": Layout(write_labelled, part_name, write_data, record_bytes=16 * 1024, needs_boxes=True)
}
