"""Export a dataset: complete or absent, and resumable.

Shards written to the working folder stay there; the same export goes on after them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from shardprep.dataset import tally
from shardprep.dataset.card import Card
from shardprep.dataset.folder import INCOMPLETE_SUFFIX
from shardprep.dataset.item_check import check_items
from shardprep.dataset.item_table import (
    ANNOTATION_COLUMNS,
    WRITTEN,
    ShardRows,
    rows_by_shard,
    with_status,
)
from shardprep.dataset.manifest import Manifest
from shardprep.dataset.open_dataset import OpenDataset
from shardprep.dataset.schema import BOX_LABEL, MASK, Schema
from shardprep.errors import BuildError, OptionName, RecipeError
from shardprep.exporter import output
from shardprep.exporter.file_names import file_names
from shardprep.exporter.layout import Export, Layout, ShardPlace
from shardprep.exporter.samples import read_samples
from shardprep.progress import Watcher
from shardprep.storage.lock import locked
from shardprep.storage.space import resumable_writes, shortage

Ints = np.ndarray[Any, np.dtype[np.int64]]

LAYOUTS = {
    "webdataset": "webdataset",
    "parquet": "parquet",
    "folder": "image_folder",
    "tfod": "tfod",
    "coco": "image_folder",
    "yolo": "yolo_folder",
}
"""Layout → the module that writes it; only this one is imported."""


class Chosen(NamedTuple):
    """The records of a dataset to export, if not all."""

    name: str
    """The split or selection, for messages."""
    numbers: Ints
    """int64[records], record numbers through all shards, rising; one or more."""


@dataclass(frozen=True, slots=True, repr=False)
class Exported(Card):
    """A dataset in another layout."""

    path: Path
    """Folder of the export."""
    layout: str
    """The layout: webdataset, parquet, folder, tfod, coco or yolo."""
    was_there: bool
    """True if the export was already complete."""
    splits: dict[str, int]
    """Records by split."""
    num_new_shards: int
    """Number of the dataset's shards exported by this run; earlier runs exported the others."""
    num_files: int
    """Number of files of the export."""
    num_bytes: int
    """Size of all files."""
    elapsed_s: float = 0.0
    """Wall time of this run."""


def export_dataset(
    dataset: OpenDataset,
    layout: str,
    out: Path | None,
    *,
    watcher: Watcher,
    chosen: Chosen | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write a dataset in another layout to a folder.

    Args:
        dataset: the dataset.
        layout: one of `LAYOUTS`.
        out: the folder of the export; None is `exports/<name>-<version>-<layout>`.
        watcher: receives the progress, in bytes of shards.
        chosen: the records to write; None for all.
        overwrite: replace another export, once the new one is complete.

    Raises:
        RecipeError: the layout is unknown, or it needs boxes and the dataset has none.
        BuildError: something else is there, it does not fit, or another export is at work.
        DatasetError: a document or shard is missing, or not what the manifest says.
        RecordError: records are damaged.

    """
    if layout not in LAYOUTS:
        raise RecipeError(OptionName("to"), f"{layout!r} is not one of {', '.join(LAYOUTS)}")
    manifest, schema = dataset.manifest, dataset.schema
    writer: Layout = import_module(f"shardprep.exporter.{LAYOUTS[layout]}").WRITERS[layout]
    if writer.needs_boxes and BOX_LABEL not in schema.features:
        what = f"{layout!r} is a layout of boxes, and {manifest.name} has none"
        raise RecipeError(OptionName("to"), f"{what}; use folder, webdataset, parquet or tfod")
    out = out or Path("exports") / f"{manifest.name}-{manifest.version}-{layout}"
    if out.name in ("", ".."):
        out = out.resolve()
    source, own = _Source(dataset), manifest
    if chosen is not None:
        source, own = _excerpt(dataset, chosen)
    facts = {"shardprep_export": writer.version, "layout": layout, **_facts(own, schema, chosen)}
    if output.finished(out) == facts:
        output.tidy(out)
        return _exported(out, facts, num_new_shards=None)
    output.check_free(out, overwrite=overwrite)
    work = out.with_name(out.name + INCOMPLETE_SUFFIX)
    with resumable_writes(work), locked(work, who="export"):
        output.prepare(work, out, facts)
        num_new = 0
        if output.finished(work) != facts:
            num_new = _write(source, Export(work, own, schema), writer, watcher)
            output.finish(work, facts)
        output.publish(work, out, overwrite=overwrite)
    return _exported(out, facts, num_new_shards=num_new)


class _Source(NamedTuple):
    """A dataset, and the records of it to export."""

    dataset: OpenDataset
    numbers: Ints | slice = slice(None)
    written: pa.Table | None = None
    """Rows of all its records; None if not read yet."""


def _excerpt(dataset: OpenDataset, chosen: Chosen) -> tuple[_Source, Manifest]:
    of_objects = ANNOTATION_COLUMNS.names if dataset.schema.annotations else ()
    written = _written(dataset, (*tally.COLUMNS, *of_objects))
    manifest = tally.excerpt(
        dataset.manifest, dataset.schema, written.take(pa.array(chosen.numbers))
    )
    return _Source(dataset, chosen.numbers, written), manifest


def _written(dataset: OpenDataset, columns: Sequence[str] = ()) -> pa.Table:
    """Return the rows of all records: these columns, and those needed to read them."""
    table = dataset.item_rows([*dict.fromkeys((*_COLUMNS, *columns))])
    check_items(dataset, table)
    return with_status(table, WRITTEN)


def _facts(manifest: Manifest, schema: Schema, chosen: Chosen | None) -> dict[str, Any]:
    """Return the content of `export.json`: what was exported, and its class names."""
    facts: dict[str, Any] = {
        "name": manifest.name,
        "version": manifest.version,
        "manifest_sha256": manifest.sha256,
        "splits": {name: split.num_records for name, split in manifest.splits.items()},
        "labels": list(schema.labels),
    }
    if chosen is not None:
        facts["split"] = chosen.name
        facts["records_sha256"] = hashlib.sha256(chosen.numbers.tobytes()).hexdigest()
    if BOX_LABEL in schema.features:
        facts["object_labels"] = list(schema.features[BOX_LABEL].labels)
    if MASK in schema.features:
        facts["mask_labels"] = list(schema.features[MASK].labels)
        facts["mask_ignored"] = schema.features[MASK].ignored
    return facts


def _write(source: _Source, export: Export, layout: Layout, watcher: Watcher) -> int:
    """Write the missing shards and the documents; return the number of shards written."""
    places = _places(export.manifest)
    whole = source.dataset.manifest.shards
    shards = [
        (place, whole[shard.name])
        for split_name, split in export.manifest.splits.items()
        for place, shard in zip(places[split_name], split.shards, strict=True)
    ]
    left = [(p, s) for p, s in shards if not (export.work / layout.done(export, p)).is_file()]
    num_bytes = sum(s.num_bytes + s.num_records * layout.record_bytes for _, s in left)
    if lacking := shortage(export.work, num_bytes):
        raise BuildError(
            str(export.work), lacking, f"free some space, or choose another {OptionName('out')}"
        )
    rows = _rows(source, dots=layout.dots) if left else {}
    watcher.start("exporting", sum(shard.num_bytes for _, shard in left), "bytes")
    with ThreadPoolExecutor(1, "shardprep-commit") as pool:
        last: Future[None] | None = None
        for place, shard in left:
            its = rows.get(shard.name, (_NO_ROWS, ()))
            samples = read_samples(source.dataset, shard, *its, watcher.advance)
            before, last = last, pool.submit(layout.write_shard(export, place, samples))
            if before is not None:
                before.result()
        if last is not None:
            last.result()
    layout.write_documents(export, places)
    return len(left)


def _places(manifest: Manifest) -> dict[str, list[ShardPlace]]:
    places: dict[str, list[ShardPlace]] = {}
    for name, split in manifest.splits.items():
        first = 0
        places[name] = []
        for index, shard in enumerate(split.shards):
            places[name].append(ShardPlace(name, index, len(split.shards), first))
            first += shard.num_records
    return places


_COLUMNS = ("key", "status", "split", "shard", "offset", "length")
_NO_ROWS = ShardRows((), ())


def _rows(source: _Source, *, dots: bool) -> dict[str, tuple[ShardRows, Sequence[str | None]]]:
    """Return the rows of each shard with the file names of its records, None for others."""
    table = _written(source.dataset) if source.written is None else source.written
    names = np.full(len(table), None, object)
    keys, splits = (_texts(table[one])[source.numbers].tolist() for one in ("key", "split"))
    names[source.numbers] = file_names([key or "" for key in keys], splits, dots=dots)
    table = table.append_column("name", pa.array(names, pa.string()))
    return {
        name: (ShardRows.of(own), own["name"].to_pylist())
        for name, own in rows_by_shard(table).items()
    }


def _texts(column: pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Return texts as Python objects, faster than `to_pylist`."""
    texts: np.ndarray[Any, np.dtype[np.object_]] = column.cast("string").to_numpy()
    return texts


def _exported(out: Path, facts: dict[str, Any], num_new_shards: int | None) -> Exported:
    sizes = [path.stat().st_size for path in out.rglob("*") if path.is_file()]
    return Exported(
        out,
        facts["layout"],
        was_there=num_new_shards is None,
        splits=facts["splits"],
        num_new_shards=num_new_shards or 0,
        num_files=len(sizes),
        num_bytes=sum(sizes),
    )
