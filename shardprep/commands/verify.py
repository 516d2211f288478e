"""`shardprep verify`: whether a dataset is what was built, and the way back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from shardprep import options as o
from shardprep.commands.terminal import console

if TYPE_CHECKING:
    from pathlib import Path

    from shardprep.remote import RemoteDataset
    from shardprep.verify.problem import Verification

EXIT_PROBLEMS = 3
EPILOG = (
    "Examples:\n\nshardprep verify\n\n"
    "shardprep verify tfrecords/dogs_vs_cats --decode\n\n"
    "shardprep verify tfrecords/dogs_vs_cats --repair --source dogs-vs-cats.zip"
)


def verify(
    dataset: o.Dataset = None,
    decode: Annotated[bool, typer.Option("--decode", help="Decode every image as well.")] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Build what is damaged again from the source, with the same bytes."
        ),
    ] = False,
    source: Annotated[
        str | None,
        typer.Option(
            help="What the dataset was built from, for --repair.",
            show_default="what ./shardprep.toml says",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that read.", show_default="usable cores"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check that a dataset is what was built: every byte, record, label and document.

    Exits with 3 where problems are found, and remain.
    """
    from shardprep.arguments import dataset_at
    from shardprep.remote import local_only
    from shardprep.report.verification import print_verification

    place = dataset_at(dataset, damaged=True)
    if repair:
        local_only(place, "--repair")
    found = _verify(place, workers, decode=decode)
    if not as_json:
        print_verification(console(), found, decode=decode, repair=repair)
    was_repaired = bool(repair and found.problems)
    before = found
    if was_repaired:
        _repair(found, source, workers)
        found = _verify(place, workers, decode=decode)
        if not as_json:
            print_verification(console(), found, decode=decode, repair=repair)
    if as_json:
        facts = found.as_json() | (
            {"repaired": before.as_json()["problems"]} if was_repaired else {}
        )
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    if found.problems:
        raise typer.Exit(EXIT_PROBLEMS)


def _verify(place: Path | RemoteDataset, workers: int | None, *, decode: bool) -> Verification:
    from shardprep.engine.cores import usable_cores
    from shardprep.report.transfer import ByteProgress
    from shardprep.verify.dataset import verify_dataset

    with ByteProgress(console(stderr=True)) as progress:
        return verify_dataset(
            place, decode=decode, num_workers=workers or usable_cores(), watcher=progress
        )


def _repair(found: Verification, source: str | None, workers: int | None) -> None:
    from shardprep.arguments import repair_source
    from shardprep.engine.cores import usable_cores
    from shardprep.repair import repair_dataset
    from shardprep.report.progress import BuildProgress

    terminal = console(stderr=True)
    local = repair_source(found.path, source, terminal)
    with BuildProgress(terminal) as progress:
        repair_dataset(found, local, num_workers=workers or usable_cores(), watcher=progress)
