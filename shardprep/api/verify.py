"""`shardprep.verify` and `shardprep.repair`: whether a dataset is what was built, the way back."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from shardprep.api.arguments import (
    answering,
    dataset_at,
    files_at,
    local_source,
    num_workers,
    repair_source,
)
from shardprep.api.watched import watched
from shardprep.errors import DatasetError, RecipeError
from shardprep.recipe.options import DATASET, RUN_OPTIONS, Option

if TYPE_CHECKING:
    from shardprep.api.progress import Show, Watch
    from shardprep.dataset.locate import DatasetFiles
    from shardprep.verifier.problem import Verification


OPTIONS = {
    "dataset": DATASET,
    "decode": Option("Decode every image too."),
    "repair": Option("Rebuild damaged files from the source, with the same bytes."),
    "source": Option(
        "Source of the dataset, for --repair.",
        metavar="SOURCE",
        shown="source of ./shardprep.toml",
    ),
    "against": Option(
        "Compare the original images with this source, byte for byte, without decoding.",
        metavar="SOURCE",
    ),
    "workers": replace(RUN_OPTIONS["workers"], help="Number of processes.", panel=""),
    "store_timeout": RUN_OPTIONS["store_timeout"],
}


def verify(
    dataset: str | Path | None = None,
    *,
    decode: bool = False,
    repair: bool = False,
    source: str | Path | None = None,
    against: str | Path | None = None,
    workers: int | None = None,
    store_timeout: float | None = None,
    progress: Show | bool = False,
) -> Verification:
    """Check that a dataset is what was built: every byte, record, label and document.

    Raises:
        DatasetError: there is no such dataset, or its build is not finished.
        RecipeError: nothing says what the dataset was built from.
        BuildError: it cannot be repaired with the same bytes; it is left as it is.
        SourceError: the source to repair from, or to compare with, cannot be read.

    """
    with answering(store_timeout), watched(progress) as watch:
        num = num_workers(workers)
        place, origin = files_at(dataset, damaged=True), None
        if repair:
            origin = repair_source(str(place), None if source is None else str(source))
        other = None if against is None else _other_source(str(against), watch)
        found = _checked(place, origin, watch, decode=decode, num_workers=num)
        return found if other is None else _compared(found, other, watch, num_workers=num)


def repair(
    dataset: str | Path | None = None,
    source: str | Path | None = None,
    *,
    decode: bool = False,
    workers: int | None = None,
    store_timeout: float | None = None,
    progress: Show | bool = False,
) -> Verification:
    """Build what is damaged in a dataset again from its source: `verify` with `repair`."""
    return verify(
        dataset,
        decode=decode,
        repair=True,
        source=source,
        workers=workers,
        store_timeout=store_timeout,
        progress=progress,
    )


def _checked(
    place: DatasetFiles, source: str | None, watch: Watch, *, decode: bool, num_workers: int
) -> Verification:
    """Return the problems of a dataset; with a source, those that are left after a repair."""
    from shardprep.dataset.locate import locate
    from shardprep.dataset.remote_files import RemoteFiles
    from shardprep.verifier.dataset import verify_dataset
    from shardprep.verifier.repair import repair_dataset, settle

    if source is not None and isinstance(place, RemoteFiles):
        settle(place)  # finish what a repair has begun to publish
        place = locate(str(place), damaged=True)
    found = verify_dataset(place, decode=decode, num_workers=num_workers, watcher=watch)
    watch.finish()
    if source is None or not found.problems:
        return found
    local = local_source(source, watch, refresh=False)
    repair_dataset(found, local, num_workers=num_workers, watcher=watch)
    again = files_at(found.location)
    left = verify_dataset(again, decode=decode, num_workers=num_workers, watcher=watch)
    watch.finish()
    return replace(left, before=found)


def repairing(found: Verification) -> str:
    """Return the command line that repairs a dataset, with SOURCE where nothing here names it.

    A copy that lies elsewhere than in NAME/VERSION is moved to such a folder first.
    """
    from shardprep.dataset.manifest import load_manifest

    location, first = found.location, ""
    with contextlib.suppress(DatasetError):  # a damaged manifest: the repair says what to do
        manifest = load_manifest(found.path)
        below = Path(manifest.name, manifest.version)
        if not found.address and found.path.absolute().parts[-2:] != below.parts:
            to = Path(location).parent / "repair" / below
            location = str(to)
            first = (
                f"mkdir -p {quote(str(to.parent))} && mv {quote(found.location)} {quote(location)}"
            )
    command = f"shardprep verify {quote(location)} --repair"
    try:
        repair_source(location, None)
    except RecipeError:
        command += " --source SOURCE"
    return f"{first} && {command}" if first else command


def _other_source(source: str, watch: Watch) -> str:
    """Return a source to compare with, on this machine; SourceError where there is none."""
    from shardprep.source.file_listing import find_files

    local = local_source(source, watch, refresh=False)
    next(iter(find_files(local)), None)
    return local


def _compared(found: Verification, source: str, watch: Watch, *, num_workers: int) -> Verification:
    """Return what a check has found, with the differences from a source on this machine."""
    from shardprep.verifier.source_check import compare_source

    place = dataset_at(found.location)
    difference = compare_source(place, source, num_threads=num_workers, watcher=watch)
    watch.finish()
    return replace(found, against=difference)
