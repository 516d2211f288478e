"""Find all problems of a dataset, in several processes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.dataset.documents import SHARD, shard_name
from shardprep.dataset.folder import (
    DOCUMENT_FILES,
    FETCHING_SUFFIX,
    INCOMPLETE_SUFFIX,
    INDEX_DIR,
    OLD_SUFFIX,
    index_name,
)
from shardprep.dataset.item_table import TARGET_COLUMNS, WRITTEN, ShardRows, with_status
from shardprep.dataset.locate import DatasetFiles, unfinished_error
from shardprep.dataset.manifest import Shard
from shardprep.dataset.remote_files import DRAFT_PREFIX, RemoteFiles
from shardprep.errors import DatasetError, OptionName, counted
from shardprep.processes import SpawnedContext, begin_worker, interrupts_blocked
from shardprep.progress import Watch
from shardprep.verifier.documents import CheckedDocuments, index_problem, read_document
from shardprep.verifier.examples import ExampleCheck
from shardprep.verifier.problem import Problem, Verification
from shardprep.verifier.record_rows import index_rows
from shardprep.verifier.shard import ShardReport, ShardTask, StoredObject, check_shard

if TYPE_CHECKING:
    import pyarrow as pa

_LABELS = re.compile(r"[^.].*\.labels\.txt")
_WORKER_BYTES = 128 << 20
"""Minimum bytes of shards per process: fewer bytes are checked faster than a process starts."""
_ROW_COLUMNS = (
    "key", "status", "offset", "length", "label", "labels", "target", "text", "object_labels",
    "mask_pixels", "labelled_points", *TARGET_COLUMNS.names,
)  # fmt: skip


def verify_dataset(
    files: DatasetFiles, *, decode: bool, num_workers: int, watcher: Watch
) -> Verification:
    """Return every problem of a dataset, without changing the dataset.

    With `decode`, every image and mask is decoded. In object storage, each worker copies one shard
    at a time to the folder for temporary files. DatasetError if the folder does not exist, the
    build is not finished, or a worker died. ChangedError if the dataset was replaced.
    """
    start = time.monotonic()
    with files.unchanged():
        contents = read_contents(files)
        documents, shards = contents.documents, contents.shards
        check = ExampleCheck(documents.schema, decode=decode)
        tasks = [_task(documents, file, name, check) for name, file in shards.items()]
        reports = dict(zip(shards, _check_shards(tasks, num_workers, watcher), strict=True))
        problems = [
            *contents.problems,
            *_shard_problems(documents.shards, reports),
            *_index_problems(documents, reports),
        ]
    return Verification(
        path=documents.folder,
        problems=tuple(problems),
        unknown=contents.unknown,
        num_shards=len(reports),
        num_records=sum(len(report.places) for report in reports.values()),
        num_bytes=sum(report.num_bytes for report in reports.values()),
        intact={
            name: getattr(shards[name], "etag", "")
            for name, shard in documents.shards.items()
            if name in reports and reports[name].sha256 == shard.sha256
        },
        elapsed_s=time.monotonic() - start,
        address=files.url if isinstance(files, RemoteFiles) else None,
    )


@dataclass(frozen=True, slots=True)
class FolderContents:
    """Documents and files of a dataset, and the problems that are known without reading shards."""

    documents: CheckedDocuments
    shards: Mapping[str, Path | StoredObject]
    unknown: tuple[str, ...]
    """Names of files that no build writes, and of unfinished or old folders next to the dataset."""
    problems: tuple[Problem, ...]


def read_contents(stored: DatasetFiles) -> FolderContents:
    """Return the documents and files of a dataset, without opening a shard.

    DatasetError if the folder does not exist, or the build is not finished.
    """
    files: Mapping[str, Path | StoredObject]
    if isinstance(stored, RemoteFiles):
        folder = stored.copies()
        files = {
            name: StoredObject(stored.url / facts.name, facts.etag, facts.num_bytes)
            for name, facts in sorted(stored.objects.items())
        }
        beside = [stored.url.name + INCOMPLETE_SUFFIX] if stored.has_unfinished_build() else []
    else:
        folder = stored.folder
        files = _files(folder)
        names = [folder.name + end for end in (OLD_SUFFIX, INCOMPLETE_SUFFIX, FETCHING_SUFFIX)]
        beside = [name for name in names if (folder.parent / name).exists()]
    documents = CheckedDocuments(folder)
    shards = {
        name: file
        for name, file in files.items()
        if ".tfrecord" in name and name[0] != "." and "/" not in name
    }
    gone = _gone(set(shards), documents.shards)
    problems = (*documents.problems, *[Problem("missing", name, "is not there") for name in gone])
    unknown = (*_unknown(files, {*shards, *gone}), *(f"../{name}" for name in beside))
    return FolderContents(documents, shards, unknown, problems)


def _files(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise DatasetError(str(folder), "is not a folder", "give the folder of a dataset")
    if folder.name.endswith(INCOMPLETE_SUFFIX):
        raise unfinished_error(folder)
    paths = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return dict(sorted((path.relative_to(folder).as_posix(), path) for path in paths))


def _gone(there: set[str], shards: Mapping[str, Shard]) -> list[str]:
    """Return the names of missing shards. Without a manifest, file names give the shard count."""
    if shards:
        return sorted(shards.keys() - there)
    matches = [match for name in there if (match := SHARD.fullmatch(name))]
    wanted = {
        shard_name(match["name"], match["split"], index, int(match["count"]))
        for match in matches
        for index in range(int(match["count"]))
    }
    return sorted(wanted - there)


def _unknown(files: Iterable[str], shards: set[str]) -> list[str]:
    """Return the files that no build writes. A draft folder is listed once, without its files."""
    known = {*DOCUMENT_FILES, INDEX_DIR, *shards, *map(index_name, shards)}
    names = [name for name in files if name not in known and not _LABELS.fullmatch(name)]
    drafts = [
        f"{name.partition('/')[0]}/" if name.startswith(DRAFT_PREFIX) else name for name in names
    ]
    return list(dict.fromkeys(drafts))


def _task(
    documents: CheckedDocuments, file: Path | StoredObject, shard: str, check: ExampleCheck
) -> ShardTask:
    table, index = documents.rows.get(shard), None
    if table is not None:
        names = [name for name in _ROW_COLUMNS if name in table.schema.names]
        table = table.select(names).take(list(range(len(table))))  # pickle only these rows
    else:
        text = read_document(documents.folder, index_name(shard))
        index = None if isinstance(text, Problem) else index_rows(text)
    expected = documents.shards.get(shard)
    return ShardTask(file, expected, table, index, check, documents.most_shard_bytes)


def _shard_problems(
    shards: Mapping[str, Shard], reports: Mapping[str, ShardReport]
) -> Iterator[Problem]:
    name_of = {shard.sha256: name for name, shard in shards.items()}
    for name, report in reports.items():
        if shards and name not in shards:
            yield Problem("extra", name, "is not in the manifest")
        other = name_of.get(report.sha256, name)
        if name in shards and report.sha256 != shards[name].sha256 and other != name:
            number = counted(shards[other].num_records, "record")
            yield Problem("hash", name, f"is {other} under another name, with its {number}")
            continue
        yield from report.problems


def _index_problems(
    documents: CheckedDocuments, reports: Mapping[str, ShardReport]
) -> Iterator[Problem]:
    for name in documents.shards or reports:
        table: pa.Table | None = documents.rows.get(name)
        rows = None if table is None else ShardRows.of(with_status(table, WRITTEN))
        places: Sequence[tuple[int, int]] | None = None
        if name in reports and not reports[name].problems:
            places = reports[name].places
        elif rows is not None:
            places = list(zip(rows.offsets, rows.lengths, strict=True))
        if problem := index_problem(documents.folder, name, places, rows):
            yield problem


def _check_shards(tasks: list[ShardTask], num_workers: int, watcher: Watch) -> list[ShardReport]:
    num_bytes = sum(task.num_bytes for task in tasks)
    watcher.start("checking", num_bytes, "bytes")
    num_workers = min(num_workers, len(tasks), num_bytes // _WORKER_BYTES)
    if num_workers > 1:
        return side_by_side(tasks, num_workers, watcher)
    return [check_shard(task, watcher.advance) for task in tasks]


def side_by_side(tasks: list[ShardTask], num_workers: int, watcher: Watch) -> list[ShardReport]:
    """Return the report of each task, from worker processes. DatasetError if a worker is killed."""
    with ProcessPoolExecutor(num_workers, SpawnedContext(), begin_worker) as pool:
        try:
            with interrupts_blocked():
                jobs = [pool.submit(check_shard, task) for task in tasks]
            for job in as_completed(jobs):
                watcher.advance(job.result().num_bytes)
            return [job.result() for job in jobs]
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            if not isinstance(error, BrokenProcessPool):
                raise
            what = "a process that read the shards was killed"
            hint = f"free some memory, or give fewer {OptionName('workers')}"
            raise DatasetError(tasks[0].folder, what, hint) from error
