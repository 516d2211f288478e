"""`shardprep build`: build a dataset, build one part of its shards, or print the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from shardprep.cli.streams import console, picked, print_json

if TYPE_CHECKING:
    from shardprep.api.build import Plan
    from shardprep.api.json_types import PartResult
    from shardprep.cli.options import Call

EPILOG = (
    "Examples:\n\n"
    "shardprep build dogs-vs-cats.zip --shards 20\n\n"
    "shardprep build photos/ --size 256x256 --fit pad --split validation=0.1\n\n"
    "shardprep build kaggle:dog-breed-identification --labels csv:labels.csv:id:breed\n\n"
    "shardprep build photos-v2.zip --name photos --version 1.1.0 --reuse tfrecords/photos\n\n"
    "shardprep build photos.zip --out /shared/tfrecords --part 3/16\n\n"
    "shardprep build /shared/photos.zip --out /shared/tfrecords --engine ray --ray-address auto"
)


def run(call: Call, *, as_json: bool) -> None:
    """Turn raw images into TFRecord shards.

    If a build is interrupted, the same command continues it.
    """
    from shardprep.cli.show.summary import show_refused, show_result
    from shardprep.writer.finalize import TooManyRejectedError

    try:
        result = call()
    except TooManyRejectedError as error:
        show_refused(error)
        raise
    if call.options.get("dry_run"):
        _show_plan(result, as_json=as_json)
    elif "part" in call.options:
        _show_part(result, as_json=as_json)
    else:
        show_result(result, as_json=as_json)


def _show_part(result: PartResult, *, as_json: bool) -> None:
    from shardprep.cli.show.summary import print_part

    if as_json:
        from shardprep.api.json_types import PartJson

        print_json(picked(PartJson, result, path=result.location, part=str(result.part)))
        return
    print_part(console(), result)


def _show_plan(found: Plan, *, as_json: bool) -> None:
    from shardprep.api.json_types import PlanJson
    from shardprep.cli.show.summary import print_plan

    if as_json:
        only_of_parts = {"part", "num_all_shards"}
        only_annotated = {
            "annotations_from", "object_classes", "num_objects", "dropped", "unmatched",
            "num_masks",
        }  # fmt: skip
        summary = picked(PlanJson, found, part=str(found.part))
        lacking = only_of_parts if found.part is None else set()
        lacking |= only_annotated if found.plan.annotations is None else set()
        print_json({key: value for key, value in summary.items() if key not in lacking})
        return
    plan = found.plan
    if found.part is not None:
        shards = f"{len(plan.shards):,} of {found.num_all_shards:,} shards"
        typer.echo(f"part {found.part}: {shards}")
    print_plan(console(), plan)
