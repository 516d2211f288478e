"""Seconds of a build by stage, in tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardprep.cli.show.console import plain_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardprep.cli.show.console import Terminal

ANNOTATE = "annotate"
"""Stage of boxes and masks: a build that stores none of them does not have it."""
WORKER_STAGES = ("read", "hash", "decode", "resize", "encode", ANNOTATE, "frame", "store", "other")
"""Stages of an item, in order: bytes of image and masks, SHA-256, pixels, fit, codec, boxes and
masks, record, the shard where a worker writes it, and all between them."""
PARENT_STAGES = ("plan", "wait", "write", "finish")
"""Stages of a build, in order: everything before the first image, waiting for workers, shards, and
everything after the last."""


def print_profile(
    terminal: Terminal, seconds: Mapping[str, float], num_items: int, elapsed_s: float
) -> None:
    """Print the seconds of each stage; those of workers are added up over all of them."""
    stages = [name for name in WORKER_STAGES if name != ANNOTATE or name in seconds]
    busy = sum(seconds.get(name, 0.0) for name in stages)
    table = plain_table("in workers", "seconds", "share", "µs an image")
    for name in stages:
        value = seconds.get(name, 0.0)
        share, each = value / (busy or 1.0), value / num_items * 1e6
        table.add_row(name, f"{value:.2f}", f"{share:.0%}", f"{each:,.0f}")
    terminal.print(table)
    table = plain_table("in the parent", "seconds", "share")
    spent = {name: seconds.get(name, 0.0) for name in PARENT_STAGES}
    for name, value in {**spent, "other": elapsed_s - sum(spent.values())}.items():
        table.add_row(name, f"{value:.2f}", f"{value / elapsed_s:.0%}")
    terminal.print(table)
