"""Export a dataset: complete or absent, and resumable.

The work is done in `<out>.incomplete/`. A shard that is written there stays, and the same export
run again goes on behind it; `export.json` comes last, and then the folder is renamed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from shardprep.dataset import excerpt
from shardprep.dataset.card import Card
from shardprep.dataset.folder import INCOMPLETE_SUFFIX, ITEMS_FILE
from shardprep.dataset.item_table import (
    ANNOTATION_COLUMNS,
    WRITTEN,
    read_items,
    rows_by_shard,
    with_status,
)
from shardprep.dataset.remote import described, documents_of
from shardprep.dataset.schema import BOX_LABEL, MASK
from shardprep.errors import BuildError, RecipeError
from shardprep.exporter import image_folder, parquet, tfod, webdataset
from shardprep.exporter.layout import Export, Layout, Place
from shardprep.exporter.names import file_names
from shardprep.exporter.samples import read_samples
from shardprep.storage.atomic_file import sync_folder, write_durably
from shardprep.storage.lock import LOCK_FILE, locked
from shardprep.storage.regular_file import read_regular
from shardprep.storage.space import resumable_writes, shortage

if TYPE_CHECKING:
    from shardprep.dataset.fetch import Watcher
    from shardprep.dataset.manifest import Manifest
    from shardprep.dataset.remote import RemoteDataset
    from shardprep.dataset.schema import Schema

    Ints = np.ndarray[Any, np.dtype[np.int64]]

LAYOUTS: dict[str, Layout] = {
    "webdataset": webdataset.WEBDATASET,
    "parquet": parquet.PARQUET,
    "folder": image_folder.FOLDER,
    "tfod": tfod.TFOD,
}
EXPORT_FILE = "export.json"
_STATE_FILE = ".export.json"
_REPLACED = ".replaced"
"""The folder of the export that this one replaces, for the moment in which it does."""
_FORMAT_VERSION = 1
"""Version of what all layouts write: an export of another is begun anew."""
_MOST_FACTS = 64 << 20


class Chosen(NamedTuple):
    """The records of a dataset that are exported, where that is not all."""

    name: str
    """The split or selection, for people."""
    numbers: Ints
    """int64[records], their numbers through all shards, rising; one or more."""


@dataclass(frozen=True, slots=True, repr=False)
class Exported(Card):
    """A dataset in another layout."""

    path: Path
    """Folder of the export."""
    layout: str
    """The layout: webdataset, parquet, folder or tfod."""
    was_there: bool
    """The export was there before: nothing was done."""
    splits: dict[str, int]
    """Records by split."""
    num_new_shards: int
    """Shards of the dataset that this run has written; others were by an earlier one."""
    num_files: int
    """Files of the export."""
    num_bytes: int
    """Size of them all."""
    elapsed_s: float = 0.0
    """Wall time of this run."""


def export_dataset(
    found: Path | RemoteDataset,
    layout: str,
    out: Path | None,
    *,
    watcher: Watcher,
    chosen: Chosen | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write a dataset in another layout to a folder.

    Args:
        found: the dataset.
        layout: one of `LAYOUTS`.
        out: the folder that the export becomes; None is `exports/<name>-<version>-<layout>`.
        watcher: receives the progress, in bytes of shards.
        chosen: the records to write; None for all.
        overwrite: let it take the place of another export, when it is complete.

    Raises:
        RecipeError: there is no such layout.
        BuildError: something else is there, it does not fit, or another export is at work.
        DatasetError: a document or shard is missing, or not what the manifest says.
        RecordError: records are damaged.

    """
    if layout not in LAYOUTS:
        raise RecipeError("--to", f"{layout!r} is not one of {', '.join(LAYOUTS)}")
    manifest, schema = described(found)
    out = out or Path("exports") / f"{manifest.name}-{manifest.version}-{layout}"
    if out.name in ("", ".."):
        out = out.resolve()
    own = manifest if chosen is None else _excerpt(found, manifest, schema, chosen)
    facts = _facts(own, schema, layout, chosen)
    if _read(out / EXPORT_FILE) == facts:
        _tidy(out)
        return _exported(out, facts, num_new_shards=None)
    _check_free(out, overwrite=overwrite)
    work = out.with_name(out.name + INCOMPLETE_SUFFIX)
    with resumable_writes(work), locked(work, who="export"):
        _prepare(work, out, facts)
        num_new = 0
        if _read(work / EXPORT_FILE) != facts:
            source = _Source(found, manifest, chosen)
            num_new = _write(source, Export(work, own, schema), LAYOUTS[layout], watcher)
            write_durably(work / EXPORT_FILE, _text(facts))
        _publish(work, out, overwrite=overwrite)
    return _exported(out, facts, num_new_shards=num_new)


class _Source(NamedTuple):
    """A dataset, and the records of it that are exported."""

    dataset: Path | RemoteDataset
    manifest: Manifest
    chosen: Chosen | None


def _excerpt(
    found: Path | RemoteDataset, manifest: Manifest, schema: Schema, chosen: Chosen
) -> Manifest:
    """Return the manifest of the chosen records alone."""
    columns = (*excerpt.COLUMNS, *(ANNOTATION_COLUMNS.names if schema.annotations else ()))
    table = read_items(documents_of(found, (ITEMS_FILE,)) / ITEMS_FILE, columns)
    rows = with_status(table, WRITTEN).take(pa.array(chosen.numbers))
    return excerpt.excerpt(manifest, schema, rows)


def _facts(
    manifest: Manifest, schema: Schema, layout: str, chosen: Chosen | None
) -> dict[str, Any]:
    """Return what `export.json` says: what was exported, and the names of its numbers."""
    facts: dict[str, Any] = {
        "shardprep_export": _FORMAT_VERSION,
        "layout": layout,
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


def _text(facts: dict[str, Any]) -> bytes:
    return (json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode()


def _read(path: Path) -> Any:
    """Return the facts in a file, None where there is none or it is something else."""
    try:
        return json.loads(read_regular(path, _MOST_FACTS))
    except (OSError, ValueError):
        return None


def _check_free(out: Path, *, overwrite: bool) -> None:
    """Check that nothing is lost when the export takes its place; BuildError where it would."""
    if not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir())):
        return
    facts = _read(out / EXPORT_FILE)
    if not _is_export(facts):
        raise BuildError(str(out), "is there already, and is no export", "choose another --out")
    if not overwrite:
        what = "is another export"
        raise BuildError(str(out), what, "choose another --out, or add --overwrite")


def _is_export(facts: Any) -> bool:
    return isinstance(facts, dict) and "shardprep_export" in facts


def _prepare(work: Path, out: Path, facts: dict[str, Any]) -> None:
    """Leave in the working folder only what an earlier run of the same export has finished."""
    if (work / _REPLACED).is_dir() and not os.path.lexists(out):
        (work / _REPLACED).rename(out)
    complete = _read(work / EXPORT_FILE)
    if complete == facts:
        return
    if _read(work / _STATE_FILE) == facts:
        for path in work.rglob(".*.tmp"):
            path.unlink()
        return
    begun = (LOCK_FILE, f".{_STATE_FILE}.tmp")
    others = [path for path in work.iterdir() if path.name not in begun]
    if others and not (_is_export(_read(work / _STATE_FILE)) or _is_export(complete)):
        raise BuildError(str(work), "is there already, and is no export", "choose another --out")
    for path in sorted(others, key=lambda one: one.name in (_STATE_FILE, EXPORT_FILE)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    write_durably(work / _STATE_FILE, _text(facts))


def _write(source: _Source, export: Export, layout: Layout, watcher: Watcher) -> int:
    """Write the shards that are not written yet, and the documents; return the number of those."""
    places = _places(export.manifest)
    whole = source.manifest.shards
    shards = [
        (place, whole[shard.name])
        for name, split in export.manifest.splits.items()
        for place, shard in zip(places[name], split.shards, strict=True)
    ]
    left = [(p, s) for p, s in shards if not (export.work / layout.done(export, p)).is_file()]
    num_bytes = sum(s.num_bytes + s.num_records * layout.record_bytes for _, s in left)
    if lacking := shortage(export.work, num_bytes):
        raise BuildError(str(export.work), lacking, "free some space, or choose another --out")
    rows = _rows(source, dots=layout.dots) if left else {}
    watcher.begin("exporting", sum(shard.num_bytes for _, shard in left))
    num_done = 0

    def moved(number: int) -> None:
        nonlocal num_done
        num_done += number
        watcher.progress(num_done)

    for place, shard in left:
        its = rows.get(shard.name, _NO_ROWS)
        samples = read_samples(source.dataset, shard, its, export.schema, moved)
        layout.write_shard(export, place, samples)
    layout.write_documents(export, places)
    return len(left)


def _places(manifest: Manifest) -> dict[str, list[Place]]:
    found: dict[str, list[Place]] = {}
    for name, split in manifest.splits.items():
        first = 0
        found[name] = []
        for index, shard in enumerate(split.shards):
            found[name].append(Place(name, index, len(split.shards), first))
            first += shard.num_records
    return found


_COLUMNS = ("key", "status", "split", "shard", "offset", "length")
_NO_ROWS = pa.table(
    {"key": pa.array([], pa.string()), "name": pa.array([], pa.string())}
    | {name: pa.array([], pa.int64()) for name in ("offset", "length")}
)


def _rows(source: _Source, *, dots: bool) -> dict[str, pa.Table]:
    """Return key, file name, offset and length of the records of each shard.

    The name is null for those that are not chosen.
    """
    path = documents_of(source.dataset, (ITEMS_FILE,)) / ITEMS_FILE
    table = with_status(read_items(path, _COLUMNS), WRITTEN)
    chosen = slice(None) if source.chosen is None else source.chosen.numbers
    names = np.full(len(table), None, object)
    keys, splits = (np.array(table[one].to_pylist(), object)[chosen] for one in ("key", "split"))
    names[chosen] = file_names([key or "" for key in keys], splits.tolist(), dots=dots)
    return rows_by_shard(table.append_column("name", pa.array(names, pa.string())))


def _publish(work: Path, out: Path, *, overwrite: bool) -> None:
    """Give the export its name; what it replaces is removed behind that."""
    for name in (image_folder.PARTS, _STATE_FILE):
        with contextlib.suppress(FileNotFoundError):
            if (work / name).is_dir():
                shutil.rmtree(work / name)
            else:
                (work / name).unlink()
    _check_free(out, overwrite=overwrite)
    if out.is_dir() and any(out.iterdir()):
        out.rename(work / _REPLACED)
    work.rename(out)
    sync_folder(out.parent)
    _tidy(out)


def _tidy(out: Path) -> None:
    """Remove what an export has no use for once it has its name."""
    (out / LOCK_FILE).unlink(missing_ok=True)  # not before: until then it keeps others out
    if (out / _REPLACED).is_dir():
        shutil.rmtree(out / _REPLACED)


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
