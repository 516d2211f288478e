"""The build: plan, encode, commit shard by shard, publish. Complete or absent, and resumable.

All work happens in `<version>.incomplete/`. A run that ends early, however it ends, leaves there
what is done; the same command finds it, checks it and goes on.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shardprep import stages
from shardprep.chunk import ChunkEncoder, ChunkTask
from shardprep.dataset import DatasetFolder, locked
from shardprep.durable import sync_folder, write_durably
from shardprep.engine.limits import WorkerLimits
from shardprep.engine.local import run_chunks
from shardprep.errors import BuildError, SourceError
from shardprep.fingerprint import differences, make_fingerprint
from shardprep.finish import finish, seal, write_skipped
from shardprep.manifest import MANIFEST_FILE, Fingerprint, Manifest, load_manifest
from shardprep.plan import chunks
from shardprep.prepare import BuildPlan, make_plan
from shardprep.shard import PARTS_DIR, ShardWriter, is_done
from shardprep.stages import stage

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from shardprep.chunk import EncodedChunk, Outcome
    from shardprep.plan import ShardPlan
    from shardprep.recipe import Recipe

    Engine = Callable[
        [ChunkEncoder, Iterable[ChunkTask], int, WorkerLimits], Generator[EncodedChunk]
    ]

WORK_DIR = ".work"
_BUILD_FILE = ".build.json"
_SPARE_BYTES = 64 << 20
_WORKER_BYTES = 1 << 30
_PIXEL_BYTES = 16
"""What decoding may take for each pixel that an image may have, copies on the way included."""


class Watcher(Protocol):
    """Whoever wants to know how a build goes."""

    def notice(self, line: str) -> None:
        """Take one line about something worth knowing."""

    def planned(self, plan: BuildPlan, num_done: int) -> None:
        """Take the plan, once; `num_done` of its items are done by an earlier run."""

    def encoded(self, outcomes: tuple[Outcome, ...]) -> None:
        """Take the outcomes of one more chunk."""


class TooManyRejectedError(BuildError):
    """The images are all encoded, but more of them are bad than the recipe accepts."""

    def __init__(self, where: str, what: str, hint: str, *, manifest: Manifest) -> None:
        """`where` is the unfinished folder, `manifest` what would have been published."""
        super().__init__(where, what, hint)
        self.manifest = manifest


@dataclass(frozen=True, slots=True)
class Remains:
    """What there is of a dataset that is to be built once more, bit for bit."""

    manifest: Manifest
    """What must come out."""
    restore: Callable[[Path], None]
    """Puts what is whole of it into the folder of the unfinished build."""


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What a build has come to."""

    path: Path
    """The finished dataset folder."""
    manifest: Manifest
    was_there: bool = False
    """It was finished before, with the same inputs and options: nothing was done."""
    num_new_items: int = 0
    """Items that this run has encoded; others were done by an earlier one."""
    elapsed_s: float = 0.0


def build_dataset(
    recipe: Recipe,
    *,
    num_workers: int,
    watcher: Watcher,
    overwrite: bool = False,
    engine: Engine = run_chunks,
    remains: Remains | None = None,
) -> BuildResult:
    """Build the dataset of a recipe, or finish a build that was begun.

    With `remains` it replaces a damaged dataset, and only by one that is as its manifest says.

    Raises:
        ShardprepError: it cannot be built as asked, or too many items are rejected; what is done
            is kept for the next run.

    """
    start = time.monotonic()
    folder = DatasetFolder(Path(recipe.out), recipe.dataset_name, recipe.version)
    fingerprint = make_fingerprint(recipe)
    if folder.is_finished and not overwrite and remains is None:
        return BuildResult(folder.final, _same(folder, fingerprint), was_there=True)
    num_new = 0
    with locked(folder.incomplete):
        work = folder.incomplete
        _begin(work, fingerprint, overwrite=overwrite)
        try:
            if not (work / MANIFEST_FILE).is_file():
                if remains is not None:
                    remains.restore(work)
                plan = make_plan(recipe, work / WORK_DIR, watcher.notice)
                with _writing(work):
                    num_new = _write_shards(
                        work, plan, num_workers, _limits(recipe), watcher, engine
                    )
                _check_source(work, recipe, fingerprint)
                with _writing(work):
                    manifest = finish(work, plan, recipe.version, fingerprint)
                    _check_rejections(work, manifest, recipe.max_rejected)
                    if remains is not None:
                        _check_same(work, manifest, remains.manifest)
                    seal(work, manifest)
        finally:
            shutil.rmtree(work / WORK_DIR, ignore_errors=True)
            if not _has_work(work):
                _remove(folder)
        manifest = load_manifest(work)
        with _writing(work):
            _publish(folder)
    elapsed = time.monotonic() - start
    return BuildResult(folder.final, manifest, num_new_items=num_new, elapsed_s=elapsed)


@contextlib.contextmanager
def _writing(work: Path) -> Iterator[None]:
    """Say in our words what the disk has to say."""
    try:
        yield
    except OSError as error:
        raise BuildError(
            str(error.filename or work),
            f"cannot be written ({error.strerror or error})",
            "what is done is kept: free some space and run the same command again",
        ) from error


def _same(folder: DatasetFolder, fingerprint: Fingerprint) -> Manifest:
    """Return the manifest of the finished dataset if it is what the recipe asks for."""
    manifest = load_manifest(folder.final)
    there = manifest.fingerprint.model_copy(update={"versions": fingerprint.versions})
    if changes := differences(there, fingerprint):
        raise BuildError(
            str(folder.final),
            f"is there already, and was built with other {', '.join(changes)}",
            "add --overwrite to replace it, or give another --version or --name",
        )
    return manifest


def _check_same(work: Path, manifest: Manifest, expected: Manifest) -> None:
    """See that what came out is what the manifest of the damaged dataset says."""
    if manifest.dumps() == expected.dumps():
        return
    hashes = {name: shard.sha256 for name, shard in manifest.shards.items()}
    other = [name for name, s in expected.shards.items() if hashes.get(name) != s.sha256]
    shutil.rmtree(work / PARTS_DIR)  # nothing here is worth going on with
    raise BuildError(
        str(work),
        f"came out other than the manifest says ({', '.join(other) or 'its documents'})",
        "the dataset is left as it is: build it again with --overwrite",
    )


def _begin(work: Path, fingerprint: Fingerprint, *, overwrite: bool) -> None:
    """Take up an unfinished build of the same fingerprint, or start with an empty folder."""
    begun = _begun(work)
    if begun is not None:
        changes = differences(begun, fingerprint)
        if not changes:
            return
        if _has_work(work) and not overwrite:
            raise BuildError(
                str(work),
                f"an unfinished build is here, begun with other {', '.join(changes)}",
                "add --overwrite to start again, or give the former options to go on with it",
            )
    with _writing(work):
        for path in work.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        write_durably(work / _BUILD_FILE, fingerprint.model_dump_json(indent=2).encode())


def _has_work(work: Path) -> bool:
    """Tell whether a run has left anything here that another need not do again."""
    return (work / MANIFEST_FILE).is_file() or any(work.glob(f"{PARTS_DIR}/*.tfrecord-*"))


def _remove(folder: DatasetFolder) -> None:
    """Take back the folders of a build that came to nothing."""
    shutil.rmtree(folder.incomplete, ignore_errors=True)
    with contextlib.suppress(OSError):  # others are in there, or it is not ours
        folder.incomplete.parent.rmdir()
        folder.out.rmdir()


def _begun(work: Path) -> Fingerprint | None:
    """Return the fingerprint of the build that was begun here, None where there is none."""
    if (work / MANIFEST_FILE).is_file():
        return load_manifest(work).fingerprint
    state = work / _BUILD_FILE
    try:
        return Fingerprint.model_validate_json(state.read_bytes()) if state.is_file() else None
    except ValueError as error:
        raise BuildError(str(state), "is damaged", f"remove {work} to start again") from error


def _limits(recipe: Recipe) -> WorkerLimits:
    return WorkerLimits(
        item_s=recipe.timeout, worker_bytes=_WORKER_BYTES + _PIXEL_BYTES * recipe.max_pixels
    )


def _check_source(work: Path, recipe: Recipe, fingerprint: Fingerprint) -> None:
    """See that what was read is what was planned; of a source that changed nothing is kept."""
    with contextlib.suppress(SourceError):
        if make_fingerprint(recipe).inputs == fingerprint.inputs:
            return
    shutil.rmtree(work / PARTS_DIR)
    raise BuildError(
        recipe.source,
        "has changed or gone while it was read",
        "nothing is kept of this build: run it again when the source is at rest",
    )


def _write_shards(
    work: Path,
    plan: BuildPlan,
    num_workers: int,
    limits: WorkerLimits,
    watcher: Watcher,
    engine: Engine,
) -> int:
    """Write the shards that are not done; return how many items that took."""
    write_skipped(work, plan)
    todo = [shard for shard in plan.shards if not is_done(work, plan.shard_name(shard))]
    num_todo = sum(len(shard.items) for shard in todo)
    watcher.planned(plan, plan.num_items - num_todo)
    if not todo:
        return 0
    _check_space(work, plan.estimated_bytes * num_todo // plan.num_items)
    tasks = _tasks(plan, todo)
    num_workers = max(1, min(num_workers, sum(1 for _ in _tasks(plan, todo))))
    encoder = ChunkEncoder(plan.spec, plan.schema, plan.columns, is_timed=stages.is_on())
    with closing(engine(encoder, tasks, num_workers, limits)) as encoded:
        for shard in todo:
            writer = ShardWriter(work, plan.shard_name(shard), shard)
            try:
                while not writer.is_full:
                    chunk = _awaited(encoded)
                    stages.add(chunk.seconds)
                    writer.append(chunk)
                    watcher.encoded(chunk.outcomes)
                writer.commit()
            finally:
                writer.abandon()
    return num_todo


@stage("wait")
def _awaited(encoded: Iterator[EncodedChunk]) -> EncodedChunk:
    return next(encoded)


def _tasks(plan: BuildPlan, todo: Iterable[ShardPlan]) -> Iterator[ChunkTask]:
    record_bytes = plan.estimated_bytes // plan.num_items
    for shard in todo:
        start = 0
        for items in chunks(shard, plan.num_items, record_bytes):
            yield ChunkTask(plan.shard_name(shard), start, items)
            start += len(items)


def _check_space(work: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(work).free
    if free < num_bytes + _SPARE_BYTES:
        raise BuildError(
            str(work),
            f"about {num_bytes / 1e6:,.0f} MB are needed, the disk has {free / 1e6:,.0f} MB left",
            "free some space, give another --out, or a smaller --size",
        )


def _check_rejections(work: Path, manifest: Manifest, limit: float) -> None:
    totals = manifest.totals
    num_items = totals.num_written + totals.num_rejected
    if totals.num_rejected > limit * num_items:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in totals.rejected.items())
        raise TooManyRejectedError(
            str(work),
            f"{totals.num_rejected:,} of {num_items:,} images are rejected "
            f"({totals.num_rejected / num_items:.1%}), the limit is {limit:.1%}: {kinds}",
            "the work is kept: run again with a higher --max-rejected to accept it",
            manifest=manifest,
        )


def _publish(folder: DatasetFolder) -> None:
    """Give the complete dataset its name, in place of one that is there."""
    shutil.rmtree(folder.incomplete / PARTS_DIR, ignore_errors=True)
    (folder.incomplete / _BUILD_FILE).unlink(missing_ok=True)
    old = folder.final.with_name(f"{folder.version}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.final.exists():
        folder.final.rename(old)
    folder.incomplete.rename(folder.final)
    sync_folder(folder.final.parent)
    shutil.rmtree(old, ignore_errors=True)
