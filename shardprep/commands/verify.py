"""`shardprep.verify` and `shardprep.repair`: whether a dataset is what was built, the way back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shardprep.commands.progress import watched
from shardprep.commands.resolve import (
    answering,
    dataset_at,
    local_source,
    num_workers,
    repair_source,
)
from shardprep.dataset.locate import locate
from shardprep.dataset.remote import RemoteDataset
from shardprep.verifier.dataset import verify_dataset
from shardprep.verifier.repair import repair_dataset, settle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardprep.commands.progress import Show, Watch
    from shardprep.verifier.problem import Verification


def verify(
    dataset: str | Path | None = None,
    *,
    decode: bool = False,
    repair: bool = False,
    source: str | Path | None = None,
    workers: int | None = None,
    store_timeout: float | None = None,
    progress: Show | bool = False,
) -> Verification:
    """Check that a dataset is what was built: every byte, record, label and document.

    Args:
        dataset: its folder or address, or one above it; None: what ./shardprep.toml builds, else
            the one dataset under ./tfrecords.
        decode: decode every image as well.
        repair: build what is damaged again from the source, with the same bytes; `problems` are
            those left then, and `repaired` those before.
        source: what the dataset was built from, for `repair`; None: that of ./shardprep.toml.
        workers: processes that read; None: one a usable core.
        store_timeout: seconds that object storage may be silent.
        progress: takes each `Progress`; True shows them.

    Raises:
        DatasetError: there is no such dataset, or its build is not finished.
        RecipeError: nothing says what the dataset was built from.
        BuildError: it cannot be repaired with the same bytes; it is left as it is.

    """
    with answering(store_timeout), watched(progress) as watch:
        place, origin = dataset_at(dataset, damaged=True), None
        if repair:
            origin = repair_source(str(place), None if source is None else str(source))
        num = num_workers(workers)
        return [*checks(place, origin, watch, decode=decode, num_workers=num)][-1]


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


def checks(
    place: Path | RemoteDataset,
    source: str | None,
    watch: Watch,
    *,
    decode: bool,
    num_workers: int,
) -> Iterator[Verification]:
    """Yield what a check finds, and where there are problems and a source, after the repair."""
    if source is not None and isinstance(place, RemoteDataset):
        settle(place)  # what was begun of publishing it is ended
        place = locate(str(place), damaged=True)
    found = verify_dataset(place, decode=decode, num_workers=num_workers, watcher=watch)
    watch.doing("")
    yield found
    if source is None or not found.problems:
        return
    local = local_source(source, watch, refresh=False)
    repair_dataset(found, local, num_workers=num_workers, watcher=watch)
    again = dataset_at(found.location)
    left = verify_dataset(again, decode=decode, num_workers=num_workers, watcher=watch)
    watch.doing("")
    yield replace(left, repaired=found.problems)
