"""The functions that check, repair or compare datasets: verify, leaks and diff."""

from __future__ import annotations

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
from shardprep.api.display import watched
from shardprep.errors import BuildError, DatasetError, OptionError, OptionName, RecipeError
from shardprep.progress import Show, Watch
from shardprep.recipe.options import ARGUMENTS, DATASET, RUN_OPTIONS, Option

if TYPE_CHECKING:
    from shardprep.dataset.diff import Difference
    from shardprep.dataset.locate import DatasetFiles
    from shardprep.dataset.open_dataset import OpenDataset
    from shardprep.reporter.leaks import ComparedImages, Overlap
    from shardprep.verifier.problem import Verification


OPTIONS: dict[str, dict[str, Option]] = {
    "verify": {
        "dataset": DATASET,
        "decode": Option("Decode every image too."),
        "repair": Option("Rebuild damaged files from the source, with the same bytes."),
        "source": Option(
            "Source of the dataset, for a repair.",
            metavar="SOURCE",
            shown="source of ./shardprep.toml",
        ),
        "leaks": Option(
            "Search for copies of an image in different splits, and check the certificate of the "
            "build."
        ),
        "workers": replace(RUN_OPTIONS["workers"], help="Number of processes.", panel=""),
        "store_timeout": RUN_OPTIONS["store_timeout"],
    },
    "leaks": {
        "first": Option("Folder or address of the dataset.", ARGUMENTS),
        "second": Option("Folder or address of the dataset to search in.", ARGUMENTS),
        "store_timeout": RUN_OPTIONS["store_timeout"],
    },
    "diff": {
        "before": Option("Folder or address of the first dataset.", ARGUMENTS),
        "after": Option("Folder or address of the second dataset.", ARGUMENTS),
        "store_timeout": RUN_OPTIONS["store_timeout"],
    },
}


def verify(
    dataset: str | Path | None = None,
    *,
    decode: bool = False,
    repair: bool = False,
    source: str | Path | None = None,
    leaks: bool = False,
    workers: int | None = None,
    store_timeout: float | None = None,
    progress: Show | bool = False,
) -> Verification:
    """Check every byte, record, label and document of a dataset, and return its problems.

    With `repair`, also rebuild damaged files, and return the problems that remain. With `leaks`,
    also search a dataset without problems for copies of images in different splits.

    Raises:
        DatasetError: the dataset does not exist, or its build is not finished.
        RecipeError: a number is out of bounds, the source for the repair is unknown, or a source is
            given without `repair`.
        BuildError: the repair would not give the same bytes. The dataset is left unchanged.
        SourceError: the source for the repair cannot be read.
        StorageError: object storage does not answer, or refuses a request.
    """
    if source is not None and not repair:
        hint = f"add {OptionName('repair')}, or leave it out"
        raise OptionError(OptionName("source"), "is read only for a repair", hint)
    with answering(store_timeout), watched(progress) as watch:
        num = num_workers(workers)
        place, origin = files_at(dataset, damaged=True), None
        if repair:
            origin = repair_source(str(place), None if source is None else str(source))
        result = _checked(place, origin, watch, decode=decode, num_workers=num)
        if leaks and not result.problems:
            from shardprep.reporter.leaks import find_leaks

            result = replace(result, leaks=find_leaks(dataset_at(result.location), watch))
            watch.finish()
        return result


def _checked(
    place: DatasetFiles, source: str | None, watch: Watch, *, decode: bool, num_workers: int
) -> Verification:
    """Return the problems of a dataset; with `source`, the problems that remain after a repair."""
    from shardprep.dataset.locate import locate
    from shardprep.dataset.remote_files import RemoteFiles
    from shardprep.verifier.dataset import verify_dataset

    if source is not None and isinstance(place, RemoteFiles):
        from shardprep.verifier.repair import settle

        settle(place)  # finish the publication of an interrupted repair
        place = locate(str(place), damaged=True)
    found = verify_dataset(place, decode=decode, num_workers=num_workers, watcher=watch)
    watch.finish()
    if source is None or not found.problems:
        return found
    from shardprep.verifier.repair import repair_dataset

    local = local_source(source, watch, refresh=False)
    repair_dataset(found, local, num_workers=num_workers, watcher=watch)
    again = files_at(found.location)
    left = verify_dataset(again, decode=decode, num_workers=num_workers, watcher=watch)
    watch.finish()
    return replace(left, before=found)


def repairing(found: Verification) -> str:
    """Return how to repair a dataset, with the word SOURCE for an unknown source.

    If the folder is not called NAME/VERSION, a command first moves it to a folder with this name.
    """
    from shardprep.verifier.repair import repairable

    location, first = found.location, ""
    try:
        manifest = repairable(found)
    except (BuildError, DatasetError) as error:
        return f"{error.hint}: the dataset {error.what}"
    below = Path(manifest.name, manifest.version)
    if not found.address and found.path.absolute().parts[-2:] != below.parts:
        to = Path(location).parent / "repair" / below
        location = str(to)
        first = f"mkdir -p {quote(str(to.parent))} && mv {quote(found.location)} {quote(location)}"
    command = f"shardprep verify {quote(location)} --repair"
    try:
        repair_source(location, None)
    except RecipeError:
        command += " --source SOURCE"
    command = f"{first} && {command}" if first else command
    return f"{command} rebuilds the damaged files from the source"


def leaks(
    first: str | Path,
    second: str | Path,
    *,
    store_timeout: float | None = None,
    progress: Show | bool = False,
) -> Overlap:
    """Return the images of `first` that have a copy in `second`, such as a public set.

    Raises:
        RecipeError: both have the same path or address.
        DatasetError: a dataset is missing or damaged.
        StorageError: object storage does not answer, or refuses a request.
    """
    from shardprep.reporter.leaks import compare_images, images_of

    def images(dataset: OpenDataset, watch: Watch) -> ComparedImages:
        found = images_of(dataset, watch)
        watch.finish()
        return found

    with answering(store_timeout), watched(progress) as watch:
        opened = [dataset_at(place) for place in (first, second)]
        places = [str(one) if "://" in str(one) else Path(str(one)).resolve() for one in opened]
        if places[0] == places[1]:
            raise RecipeError(str(first), "is given twice", "name two different datasets")
        return compare_images(*(images(one, watch) for one in opened))


def diff(
    before: str | Path, after: str | Path, *, store_timeout: float | None = None
) -> Difference:
    """Return the differences between two datasets: items, splits, targets, classes, options.

    Reads the manifests and item tables. If they do not decide whether records are equal, reads
    the records of shards that differ.

    Raises:
        DatasetError: a dataset, or one of its documents or shards, is missing or damaged.
        RecordError: a record is damaged.
        StorageError: object storage does not answer, or refuses a request.
    """
    from shardprep.dataset.diff import compare

    with answering(store_timeout):
        return compare(dataset_at(before), dataset_at(after))
