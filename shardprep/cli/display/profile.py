"""Where the time of a build went: the workers' stages, and the parent's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardprep.cli.display.summary import plain_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

WORKER_STAGES = ("read", "hash", "decode", "resize", "encode", "frame", "other")
"""Stages of an item, in order: bytes, SHA-256, pixels, fit, codec, record, and all between them."""
PARENT_STAGES = ("plan", "wait", "write", "finish")
"""Stages of a build, in order: everything before the first image, waiting for workers, shards, and
everything after the last."""


def print_profile(
    console: Console, seconds: Mapping[str, float], num_items: int, elapsed_s: float
) -> None:
    """Show the seconds of each stage; those of workers are added up over all of them.

    `num_items` is what was encoded in this run.
    """
    busy = sum(seconds.get(name, 0.0) for name in WORKER_STAGES)
    table = plain_table("in workers", "seconds", "share", "µs an image")
    for name in WORKER_STAGES:
        value = seconds.get(name, 0.0)
        share, each = value / (busy or 1.0), value / max(num_items, 1) * 1e6
        table.add_row(name, f"{value:.2f}", f"{share:.0%}", f"{each:,.0f}")
    console.print(table)
    table = plain_table("in the parent", "seconds", "share")
    rest = elapsed_s - sum(seconds.get(name, 0.0) for name in PARENT_STAGES)
    for name in (*PARENT_STAGES, "other"):
        value = seconds.get(name, 0.0) if name != "other" else rest
        table.add_row(name, f"{value:.2f}", f"{value / elapsed_s:.0%}")
    console.print(table)
