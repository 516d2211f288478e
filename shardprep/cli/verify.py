"""`shardprep verify`: whether a dataset is what was built, and the way back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardprep.cli import options as o
from shardprep.cli.streams import EXIT_PROBLEMS, console, picked, print_json
from shardprep.recipe.options import Option

if TYPE_CHECKING:
    from pathlib import Path

    from shardprep.dataset.remote import RemoteDataset
    from shardprep.verifier.problem import Verification

EPILOG = (
    "Examples:\n\nshardprep verify\n\n"
    "shardprep verify tfrecords/dogs_vs_cats --decode\n\n"
    "shardprep verify tfrecords/dogs_vs_cats --repair --source dogs-vs-cats.zip"
)


def verify(
    dataset: o.Dataset = None,
    decode: Annotated[bool, o.switch("--decode", "Decode every image as well.")] = False,
    repair: Annotated[
        bool,
        o.switch("--repair", "Build what is damaged again from the source, with the same bytes."),
    ] = False,
    source: Annotated[
        str | None,
        o.flag(
            Option(
                "Source that the dataset was built from, for --repair.",
                metavar="SOURCE",
                shown="source of ./shardprep.toml",
            )
        ),
    ] = None,
    workers: Annotated[int | None, o.workers("Number of processes that read.")] = None,
    store_timeout: o.StoreTimeout = None,
    as_json: o.Json = False,
) -> None:
    """Check that a dataset is what was built: every byte, record, label and document.

    Exits with 3 where problems are found, or remain after --repair.
    """
    from shardprep.cli.display.verification import print_verification
    from shardprep.cli.resolve import dataset_at, repair_source

    place = dataset_at(dataset, damaged=True)
    origin = ""
    if repair:
        origin = repair_source(str(place), source)
        place = _settled(place)
    found = _verify(place, workers, decode=decode)
    if not as_json:
        print_verification(console(), found, decode=decode, repair=repair)
    was_repaired = bool(repair and found.problems)
    before = found
    if was_repaired:
        _repair(found, origin, workers)
        found = _verify(dataset_at(found.location), workers, decode=decode)
        if not as_json:
            print_verification(console(), found, decode=decode, repair=repair)
    if as_json:
        from shardprep.cli.results import VerifyJson

        more: dict[str, Any] = {"path": found.location, "elapsed_s": round(found.elapsed_s, 3)}
        if was_repaired:
            more["repaired"] = before.problems
        print_json(picked(VerifyJson, found, **more))
    if found.problems:
        raise typer.Exit(EXIT_PROBLEMS)


def _settled(place: Path | RemoteDataset) -> Path | RemoteDataset:
    """Return a dataset after what was begun of publishing it has been ended."""
    from shardprep.dataset.locate import locate
    from shardprep.dataset.remote import RemoteDataset
    from shardprep.verifier.repair import settle

    if not isinstance(place, RemoteDataset):
        return place
    settle(place)
    return locate(str(place), damaged=True)


def _verify(place: Path | RemoteDataset, workers: int | None, *, decode: bool) -> Verification:
    from shardprep.cli.display.transfer import ByteProgress
    from shardprep.machine import usable_cores
    from shardprep.verifier.dataset import verify_dataset

    with ByteProgress(console(stderr=True)) as progress:
        return verify_dataset(
            place, decode=decode, num_workers=workers or usable_cores(), watcher=progress
        )


def _repair(found: Verification, source: str, workers: int | None) -> None:
    from shardprep.cli.display.progress import BuildProgress
    from shardprep.cli.resolve import local_source
    from shardprep.machine import usable_cores
    from shardprep.verifier.repair import repair_dataset

    terminal = console(stderr=True)
    local = local_source(source, terminal, refresh=False)
    with BuildProgress(terminal) as progress:
        repair_dataset(found, local, num_workers=workers or usable_cores(), watcher=progress)
