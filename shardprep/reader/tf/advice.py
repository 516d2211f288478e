"""One line for what works, but slower or worse than it need be; a warning, shown once."""

from __future__ import annotations

import inspect
import warnings
from typing import TYPE_CHECKING

from shardprep.machine import free_bytes
from shardprep.reader.options import Advice

if TYPE_CHECKING:
    from shardprep.dataset.schema import Schema
    from shardprep.reader.options import Request
    from shardprep.reader.tf.blocks import Source

_TOO_LARGE = 4  # times as many pixels as are asked for
_WINDOW_SHARE = 0.5


def advise(source: Source, schema: Schema, request: Request) -> None:
    """Warn of each thing that a request would do better without."""
    for line in _lines(source, schema, request):
        warnings.warn(line, Advice, stacklevel=_level_of_caller())


def _level_of_caller() -> int:
    """Return how many calls above `advise` the one stands that is not of this package."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("shardprep."):
        level, frame = level + 1, frame.f_back
    return level


def _lines(source: Source, schema: Schema, request: Request) -> list[str]:
    found = []
    config = request.config
    if schema.image_size and config.image_size:
        (height, width), (asked_height, asked_width) = schema.image_size, config.image_size
        if height * width >= _TOO_LARGE * asked_height * asked_width:
            found.append(
                f"images of {width}x{height} are decoded to be shrunk to "
                f"{asked_width}x{asked_height}; build the set with "
                f"--size {asked_width}x{asked_height}, or cache it"
            )
    if request.window:
        found.extend(_of_window(source, request))
    if config.service and request.is_shuffled and not request.repeat:
        found.append(
            "a service gives every epoch the same order; use repeat=True and steps_per_epoch"
        )
    return found


def _of_window(source: Source, request: Request) -> list[str]:
    found = []
    records = min(request.window or 0, source.num_records)
    needed = records * int(source.records.frames.length.sum()) // source.num_records
    free = free_bytes()
    if needed > _WINDOW_SHARE * free:
        found.append(
            f"shuffle={request.shuffle} holds {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; "
            "use shuffle=True, which holds megabytes and mixes better"
        )
    calls = request.config.num_parallel_calls_for_interleave_files
    if calls and len(source.slices) < calls:
        found.append(
            f"{len(source.slices)} shards for {calls} parallel reads; use shuffle=True, which "
            "reads blocks, or build with more --shards"
        )
    return found
