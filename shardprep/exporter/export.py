"""Export a dataset to a folder. The folder is complete or absent, and an export can be resumed.

Files are written to `<out>.incomplete/`, where `.export.json` identifies the export. If the same
export runs again, it continues after the finished shards. `export.json`, with the build options
that read the export, is written last. Then the folder is renamed to `<out>`.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
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
from shardprep.dataset.item_table import WRITTEN, ShardRows, rows_by_shard, with_status
from shardprep.dataset.manifest import Manifest
from shardprep.dataset.open_dataset import OpenDataset
from shardprep.dataset.schema import (
    BOX_LABEL,
    CROWD,
    KEYPOINTS,
    LABEL,
    LABELS,
    MASK,
    OBJECT_MASK,
    POINTS,
    ROWS,
    TARGET_FEATURES,
    TARGET_IMAGE,
    TARGETS,
    Schema,
)
from shardprep.errors import BuildError, OptionError, OptionName, RecipeError, some_of
from shardprep.exporter.cells import TAKEN, VISIBLE, Role, file_names, skeleton, titles
from shardprep.exporter.samples import FILE_COLUMNS, PARTS, Export, Layout, read_samples
from shardprep.progress import Watch
from shardprep.storage.atomic_file import sync_folder, write_durably
from shardprep.storage.lock import LOCK_FILE, locked
from shardprep.storage.regular_file import read_regular
from shardprep.storage.space import resumable_writes, shortage

Ints = np.ndarray[Any, np.dtype[np.int64]]

LAYOUTS = {
    "webdataset": "webdataset",
    "parquet": "parquet",
    "folder": "image_folder",
    "coco": "image_folder",
    "yolo": "image_folder",
}
"""Layout → name of the module that writes it, which is imported on demand."""
_EXPORT_FILE, _STATE_FILE = "export.json", ".export.json"
_REPLACED = ".replaced"
"""Folder in the new export for the old export, which is deleted after the replacement."""
_MOST_FACTS = 64 << 20


class Chosen(NamedTuple):
    """Records of a dataset to export."""

    name: str
    """Name of the split or selection, as written to `export.json`."""
    numbers: Ints
    """Record numbers in the dataset, int64[records], ascending; at least one."""


@dataclass(frozen=True, slots=True, repr=False)
class Exported(Card):
    """Result of an export: a dataset in another layout, or its Croissant description."""

    path: Path
    """Folder of the export, or the file croissant.json."""
    layout: str
    """webdataset, parquet, folder, coco, yolo or croissant."""
    was_there: bool
    """True if the export was already complete."""
    splits: dict[str, int]
    """Number of records by split."""
    num_new_shards: int
    """Number of shards that this run exported. Interrupted earlier runs exported the others."""
    num_files: int
    """Number of files of the export, also in subfolders."""
    num_bytes: int
    """Total size of the files in bytes."""
    elapsed_s: float = 0.0
    """Wall time of this run in seconds."""


def export_dataset(
    dataset: OpenDataset,
    layout: str,
    out: Path | None,
    *,
    watcher: Watch,
    chosen: Chosen | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write a dataset, or its `chosen` records, in another layout. Return what was written.

    `out` is `exports/<name>-<version>-<layout>` by default. With `overwrite`, another export in
    `out` is replaced when the new export is complete. RecipeError if the layout does not support
    the dataset, BuildError if `out` is in use or the disk is full, RecordError for damaged records.
    """
    if layout not in LAYOUTS:
        raise OptionError.of(OptionName("to"), layout, LAYOUTS)
    manifest, schema = dataset.manifest, dataset.schema
    writer: Layout = import_module(f"shardprep.exporter.{LAYOUTS[layout]}").WRITERS[layout]
    noun = "target images" if TARGET_IMAGE in schema.features else "stacks"
    if (schema.is_stack or TARGET_IMAGE in schema.features) and not writer.takes_stacks:
        what = f"{layout!r} is a layout of single images, but {manifest.name} has {noun}"
        raise RecipeError(OptionName("to"), what, "use folder")
    if writer.needs_boxes and BOX_LABEL not in schema.features:
        what = f"{layout!r} is a layout of boxes, but {manifest.name} has no boxes"
        raise RecipeError(OptionName("to"), what, "use folder, webdataset or parquet")
    out = out or Path("exports") / f"{manifest.name}-{manifest.version}-{layout}"
    if out.name in ("", ".."):
        out = out.resolve()
    source, own = _Source(dataset), manifest
    if chosen is not None:
        source, own = _excerpt(dataset, chosen)
    facts = {"shardprep_export": writer.version, **_facts(layout, own, schema, chosen)}
    if _facts_in(out / _EXPORT_FILE) == facts:
        _tidy(out)
        return _exported(out, facts, num_new_shards=None)
    _check_free(out, overwrite=overwrite)
    work = out.with_name(out.name + INCOMPLETE_SUFFIX)
    with resumable_writes(work), locked(work, who="export", flag=OptionName("out")):
        _prepare(work, out, facts)
        num_new = 0
        if lost := facts.get("not_built_again"):
            watcher.notice(f"a dataset built from this export lacks {some_of(lost)}")
        if _facts_in(work / _EXPORT_FILE) != facts:
            num_new = _write(source, Export(work, own, schema), writer, watcher)
            write_durably(work / _EXPORT_FILE, _text(facts))
        _publish(work, out, overwrite=overwrite)
    return _exported(out, facts, num_new_shards=num_new)


class _Source(NamedTuple):
    dataset: OpenDataset
    numbers: Ints | slice = slice(None)
    written: pa.Table | None = None
    """Item rows of all records, or None if not read yet."""


def _excerpt(dataset: OpenDataset, chosen: Chosen) -> tuple[_Source, Manifest]:
    written = _written(dataset, tally.counted_columns(dataset.schema))
    rows = written.take(pa.array(chosen.numbers))
    manifest = tally.excerpt(dataset.manifest, dataset.schema, rows)
    return _Source(dataset, chosen.numbers, written), manifest


def _written(dataset: OpenDataset, columns: Sequence[str] = ()) -> pa.Table:
    """Return the checked item rows of all records, with `_COLUMNS` and `columns`."""
    table = dataset.item_rows([*dict.fromkeys((*_COLUMNS, *columns))])
    check_items(dataset, table)
    return with_status(table, WRITTEN)


def _facts(
    layout: str, manifest: Manifest, schema: Schema, chosen: Chosen | None
) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "layout": layout,
        "name": manifest.name,
        "version": manifest.version,
        "manifest_sha256": manifest.sha256,
        "splits": {name: split.num_records for name, split in manifest.splits.items()},
        "labels": list(schema.labels),
    }
    facts["build"] = options_of(layout, schema)
    if lost := lost_in(layout, schema):
        facts["not_built_again"] = lost
    if manifest.leaks is not None:
        facts["leaks"] = manifest.leaks.model_dump(mode="json")
    if chosen is not None:
        facts["split"] = chosen.name
        facts["records_sha256"] = hashlib.sha256(chosen.numbers.tobytes()).hexdigest()
    if BOX_LABEL in schema.features:
        facts["object_labels"] = list(schema.features[BOX_LABEL].labels)
    if KEYPOINTS in schema.features:
        points = schema.features[KEYPOINTS]
        facts["keypoints"] = {**skeleton(points), "flip_idx": [*points.mirrored]}
    if MASK in schema.features:
        facts["mask_labels"] = list(schema.features[MASK].labels)
        facts["mask_ignored"] = schema.features[MASK].ignored
    return facts


def _write(source: _Source, export: Export, layout: Layout, watcher: Watch) -> int:
    """Write the missing shards, then the documents. Return the number of shards written."""
    whole = source.dataset.manifest.shards
    places = [place for places in export.places.values() for place in places]
    shards = zip(places, export.manifest.shards, strict=True)
    left = [
        (place, whole[name])
        for place, name in shards
        if not (export.work / layout.done(export, place)).is_file()
    ]
    num_bytes = sum(s.num_bytes + s.num_records * layout.record_bytes for _, s in left)
    if lacking := shortage(export.work, num_bytes):
        hint = f"free some space, or choose another {OptionName('out')}"
        raise BuildError(str(export.work), lacking, hint)
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
    if layout.write_documents is not None:
        layout.write_documents(export)
    return len(left)


_COLUMNS = ("key", "status", "split", "shard", "offset", "length")
_NO_ROWS = ShardRows((), ())


def _rows(source: _Source, *, dots: bool) -> dict[str, tuple[ShardRows, Sequence[str | None]]]:
    """Return the item rows and file names of each shard. The name of a left-out record is None."""
    table = _written(source.dataset) if source.written is None else source.written
    names = np.full(len(table), None, object)
    # numpy is faster than `to_pylist`.
    keys, splits = (
        table[name].cast("string").to_numpy()[source.numbers].tolist() for name in ("key", "split")
    )
    names[source.numbers] = file_names([key or "" for key in keys], splits, dots=dots)
    table = table.append_column("name", pa.array(names, pa.string()))
    return {
        name: (ShardRows.of(own), own["name"].to_pylist())
        for name, own in rows_by_shard(table).items()
    }


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


def _text(facts: dict[str, Any]) -> bytes:
    return (json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode()


def _facts_in(path: Path) -> Any:
    try:
        return json.loads(read_regular(path, _MOST_FACTS))
    except (OSError, ValueError):
        return None


def _is_export(facts: Any) -> bool:
    return isinstance(facts, dict) and "shardprep_export" in facts


def _taken(folder: Path) -> BuildError:
    what = "already exists, and is not an export"
    return BuildError(str(folder), what, f"choose another {OptionName('out')}")


def _check_free(out: Path, *, overwrite: bool) -> None:
    if not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir())):
        return
    if not _is_export(_facts_in(out / _EXPORT_FILE)):
        raise _taken(out)
    if not overwrite:
        hint = f"choose another {OptionName('out')}, or add {OptionName('overwrite')} to replace it"
        raise BuildError(str(out), "already contains another export", hint)


def _prepare(work: Path, out: Path, facts: dict[str, Any]) -> None:
    """Undo an interrupted replacement of `out`, and delete another export's files from `work`."""
    if (work / _REPLACED).is_dir() and not os.path.lexists(out):
        (work / _REPLACED).rename(out)
    complete, begun = _facts_in(work / _EXPORT_FILE), _facts_in(work / _STATE_FILE)
    if complete == facts:
        return
    if begun == facts:
        for path in work.rglob(".*.tmp"):
            path.unlink()
        return
    own = (LOCK_FILE, f".{_STATE_FILE}.tmp")
    others = [path for path in work.iterdir() if path.name not in own]
    if others and not (_is_export(begun) or _is_export(complete)):
        raise _taken(work)
    for path in sorted(others, key=lambda one: one.name in (_STATE_FILE, _EXPORT_FILE)):
        _remove(path)
    write_durably(work / _STATE_FILE, _text(facts))


def _publish(work: Path, out: Path, *, overwrite: bool) -> None:
    for name in (PARTS, _STATE_FILE):
        with contextlib.suppress(FileNotFoundError):
            _remove(work / name)
    _check_free(out, overwrite=overwrite)
    if out.is_dir() and any(out.iterdir()):
        out.rename(work / _REPLACED)
    work.rename(out)
    sync_folder(out.parent)
    _tidy(out)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _tidy(out: Path) -> None:
    (out / LOCK_FILE).unlink(missing_ok=True)  # last, because it locks out other runs
    if (out / _REPLACED).is_dir():
        shutil.rmtree(out / _REPLACED)


_KINDS = {feature: kind for kind, feature in TARGET_FEATURES.items() if feature != TARGETS}
_NO_MARK = frozenset(",:;{}|\n")
"""Characters with a meaning in build options, so names in options cannot have them."""
_ROWS_OF = {"parquet": "column:", "webdataset": "csv:{folder}/{id}.json:{folder}/{id}:"}
_TABLE = "csv:labels.csv:file_name:"
_MASKS = {
    "folder": "class-masks/{dir}/{stem}.png",
    "coco": "masks/{folder}/{stem}.png",
    "yolo": "masks/{folder}/{stem}.png",
    "webdataset": "{folder}/{stem}.segmentation_mask.png",
    "parquet": f"{{folder:(.+):image}}:{MASK}/{{name}}",
}
_OBJECTS = {
    "folder": "coco",
    "coco": "coco",
    "yolo": "yolo",
    "parquet": "column:xywh(objects.bbox):objects.category",
    "webdataset": f"{_ROWS_OF['webdataset']}yxyx(objects.bbox):objects.class",
}


def options_of(layout: str, schema: Schema) -> dict[str, Any]:
    """Return the build options that read an export; {} if options cannot describe the export."""
    if schema.is_stack or TARGET_IMAGE in schema.features:
        return {}
    start = _ROWS_OF.get(layout, _TABLE)
    roles = _titles(layout, schema)
    targets, points, columns = (
        [title for title, role in roles if role == one] for one in ("target", "points", "column")
    )
    columns = [one for one in columns if not one.startswith(ROWS)]
    mask = schema.features.get(MASK)
    names = [*targets, *points, *columns, *(mask.labels if mask else ())]
    if any(_NO_MARK & set(name) or not name for name in names):
        return {}
    made: dict[str, Any] = {"labels": start + ",".join(targets) if targets else "none"}
    if targets:
        made["target"] = _kind(schema)
    elif columns and layout != "parquet":
        made |= {"labels": f"{start}key", "target": "none"}
    if classes := _classes(layout, schema):
        made["classes"] = [*classes]
    made |= {"columns": columns} if columns else {}
    if mask is not None:
        values = dict(enumerate(mask.labels)) | {mask.ignored: "ignore"}
        made["masks"] = _MASKS[layout]
        if layout == "parquet":
            made["images"] = ["*.parquet:image", f"*.parquet:{MASK}"]
        made["mask_values"] = ",".join(f"{value}={name}" for value, name in values.items())
    if points:
        made["points"] = start + ",".join(one for one in points if not one.endswith(VISIBLE))
    return made | (_objects(layout, schema) if BOX_LABEL in schema.features else {})


def lost_in(layout: str, schema: Schema) -> list[str]:
    """Return the features of a dataset that a build from its export cannot restore."""
    lost = {one for one in schema.features if one.startswith(ROWS)}
    if layout == "yolo":
        lost |= {CROWD, *([OBJECT_MASK] if KEYPOINTS in schema.features else ())}
    return sorted(lost & schema.features.keys())


def _kind(schema: Schema) -> str:
    if schema.class_features:
        return "auto" if TARGETS in schema.features else "classes"
    if schema.target == TARGETS:
        return "soft" if schema.features[TARGETS].soft else "vector"
    return _KINDS[schema.target or ""]


def _classes(layout: str, schema: Schema) -> tuple[str, ...]:
    """Return the class names for `--classes`, in order; () if objects or masks share a name."""
    parts = [one for one in (BOX_LABEL, MASK) if one in schema.features]
    has_more = parts or POINTS in schema.features
    labels: tuple[str, ...] = schema.labels if schema.target in (LABEL, LABELS) else ()
    if layout == "parquet" and schema.target == TARGETS and not has_more:
        labels = schema.features[TARGETS].labels
    others = (schema.features[one].labels for one in parts)
    return labels if {*labels}.isdisjoint(itertools.chain(*others)) else ()


def _titles(layout: str, schema: Schema) -> list[tuple[str, Role]]:
    """Return the name and role of each column or field that the layout has for an image."""
    found = titles(schema, TAKEN.get(layout, FILE_COLUMNS))
    if layout == "parquet":  # Parquet has one column per class, one list per vector
        own = [*schema.class_features, *filter(None, [schema.target])]
        others = [one for one in found if one[1] in ("points", "column")]
        return [*((one, "target") for one in own), *others]
    return found


def _objects(layout: str, schema: Schema) -> dict[str, Any]:
    kind, features = _OBJECTS[layout], schema.features
    made: dict[str, Any] = {"boxes": kind}
    made |= {"unlisted": "background"} if layout not in _ROWS_OF else {}
    made |= {"crowds": "objects"} if kind == "coco" and CROWD not in features else {}
    made |= {"points": kind} if KEYPOINTS in features else {}
    if OBJECT_MASK in features and OBJECT_MASK not in lost_in(layout, schema):
        made |= {"masks": kind, "instances": True}
    if OBJECT_MASK in features and (layout == "folder" or "masks" not in made):
        made["exclude"] = ["*object-masks/*"]
    return made
