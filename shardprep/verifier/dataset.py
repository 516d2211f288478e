"""Verify a dataset, shard by shard on all cores; all problems are reported, not the first."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.dataset.folder import index_name
from shardprep.dataset.remote import RemoteDataset
from shardprep.verifier.documents import index_problem, read_document
from shardprep.verifier.examples import ExampleCheck
from shardprep.verifier.folder import read_contents
from shardprep.verifier.problem import Problem, Verification
from shardprep.verifier.rows import index_rows, written_rows
from shardprep.verifier.shard import ShardTask, StoredObject
from shardprep.verifier.workers import check_shards

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardprep.dataset.fetch import Watcher
    from shardprep.verifier.folder import Contents
    from shardprep.verifier.shard import ShardReport

_ROW_COLUMNS = ("key", "status", "offset", "length", "label", "labels", "target", "text")


def verify_dataset(
    found: Path | RemoteDataset, *, decode: bool, num_workers: int, watcher: Watcher
) -> Verification:
    """Return every problem of a dataset; nothing is changed.

    Args:
        found: the dataset, as `locate` finds it. Of one in object storage each worker has one
            shard at a time in the folder for temporary files.
        decode: decode every image too.
        num_workers: processes that read shards, at least 1; small datasets take fewer.
        watcher: receives the progress.

    Raises:
        DatasetError: there is no such folder, its build is not finished, or a worker died.
        StorageError: object storage does not answer, or a shard changed while it was read.

    """
    start = time.monotonic()
    remote = found if isinstance(found, RemoteDataset) else None
    folder = found if isinstance(found, Path) else found.documents()
    contents = read_contents(folder, remote)
    check = ExampleCheck(contents.schema, decode=decode)
    files = {name: _file(found, name) for name in contents.shards}
    tasks = [_task(folder, file, name, contents, check) for name, file in files.items()]
    reports = dict(zip(contents.shards, check_shards(tasks, num_workers, watcher), strict=True))
    holds = _holdings(contents, reports)
    moved = {name: of for name, of in holds.items() if of != name}
    again = [_task(folder, files[name], of, contents, check) for name, of in moved.items()]
    checked = check_shards(again, num_workers, watcher) if again else []
    rechecked = dict(zip(moved, checked, strict=True))
    intact = {of: name for name, of in moved.items()}
    intact.update({name: name for name, of in holds.items() if of == name})
    problems = [_in_another(problem, intact) for problem in contents.problems]
    for name, report in reports.items():
        problems += _shard_problems(name, report, contents, intact, moved, rechecked)
    problems += _index_problems(folder, contents, reports)
    return Verification(
        path=folder,
        problems=tuple(problems),
        unknown=contents.unknown,
        num_shards=len(reports),
        num_records=sum(len(report.places) for report in reports.values()),
        num_bytes=sum(report.num_bytes for report in reports.values()),
        intact=intact,
        marks={name: file.etag for name, file in files.items() if isinstance(file, StoredObject)},
        elapsed_s=time.monotonic() - start,
        address=remote.url if remote else None,
    )


def _file(found: Path | RemoteDataset, name: str) -> Path | StoredObject:
    if isinstance(found, Path):
        return found / name
    facts = found.objects[name]
    return StoredObject(found.url / facts.name, facts.etag, facts.num_bytes)


def _task(
    folder: Path, file: Path | StoredObject, shard: str, contents: Contents, check: ExampleCheck
) -> ShardTask:
    """Return the task to check a file as a shard, which need not be that of its name."""
    expected = contents.manifest.shards.get(shard) if contents.manifest else None
    table = contents.rows.get(shard)
    if table is not None:
        table = table.select(_ROW_COLUMNS).take(list(range(len(table))))  # what pickles small
    index = None
    if table is None:
        text = read_document(folder, index_name(shard), None, [])
        index = None if text is None else index_rows(text)
    return ShardTask(file, expected, table, index, check, contents.most_shard_bytes)


def _holdings(contents: Contents, reports: dict[str, ShardReport]) -> dict[str, str]:
    """Return the shards that files hold, whatever their names: file → shard of the manifest."""
    if contents.manifest is None:
        return {}
    shards = contents.manifest.shards
    by_hash = {shard.sha256: name for name, shard in shards.items()}
    found = {}
    for name, report in reports.items():
        if name in shards and shards[name].sha256 == report.sha256:
            found[name] = name
        elif report.sha256 in by_hash:
            found[name] = by_hash[report.sha256]
    return found


def _shard_problems(
    name: str,
    report: ShardReport,
    contents: Contents,
    intact: dict[str, str],
    moved: dict[str, str],
    rechecked: dict[str, ShardReport],
) -> list[Problem]:
    if name in moved:
        of = moved[name]
        if intact[of] == name:
            first = Problem("misplaced", name, f"holds what the manifest calls {of}")
        else:
            first = Problem("extra", name, f"is a copy of {of}")
        return [first, *rechecked[name].problems]
    if contents.manifest is not None and name not in contents.manifest.shards:
        return [Problem("extra", name, "the manifest names no such shard"), *report.problems]
    return list(report.problems)


def _in_another(problem: Problem, intact: dict[str, str]) -> Problem:
    """Return the problem of a missing shard, naming the file that has its bytes, if any."""
    if problem.kind != "missing" or problem.file not in intact:
        return problem
    what = f"is not there; its bytes are in {intact[problem.file]}"
    return Problem("missing", problem.file, what)


def _index_problems(
    folder: Path, contents: Contents, reports: dict[str, ShardReport]
) -> Iterator[Problem]:
    target = contents.schema.target if contents.schema else None
    names = contents.manifest.shards if contents.manifest else contents.shards
    for name in names:
        rows = written_rows(contents.rows[name], target) if name in contents.rows else None
        places: tuple[tuple[int, int], ...] | None
        if name in reports and not reports[name].problems:
            places = reports[name].places
        elif rows is not None:
            places = tuple(zip(rows.offsets, rows.lengths, strict=True))
        else:
            places = None
        if problem := index_problem(folder, name, places, rows):
            yield problem
