"""`shardprep sample`: write a small archive to try shardprep with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.cli.streams import console, picked, print_json

if TYPE_CHECKING:
    from shardprep.cli.options import Call

EPILOG = "Example:\n\nshardprep sample demo && cd demo && shardprep build --shards 20"


def run(call: Call, *, as_json: bool) -> None:
    """Write a small archive in the layout of a Kaggle competition, to try shardprep offline."""
    found = call()
    if as_json:
        from shardprep.api.json_types import SampleJson

        print_json(picked(SampleJson, found))
        return
    console().notice(f"{found.path} ({found.num_bytes / 1e6:.1f} MB) and {found.recipe}")
    there = "" if found.path.parent == Path() else f"cd {found.path.parent} && "
    console().notice(f"next: {there}shardprep build --shards 20")
