"""One line for what works, but slower or worse than it need be; a warning, shown once."""

from __future__ import annotations

import inspect
import math
import warnings
from typing import TYPE_CHECKING

from shardprep.reader.options import Advice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardprep.dataset.schema import Schema
    from shardprep.reader.options import Request

_TOO_LARGE = 4  # times as many pixels as are asked for


def advise(schema: Schema, request: Request) -> None:
    """Warn of each thing that a request would do better without."""
    for line in _lines(schema, request):
        warnings.warn(line, Advice, stacklevel=_level_of_caller())


def _level_of_caller() -> int:
    """Return how many calls above `advise` the one stands that is not of this package."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("shardprep."):
        level, frame = level + 1, frame.f_back
    return level


def _lines(schema: Schema, request: Request) -> Iterator[str]:
    stored, asked = schema.image_size, request.config.image_size
    if stored and asked and math.prod(stored) >= _TOO_LARGE * math.prod(asked):
        size = f"{asked[1]}x{asked[0]}"
        yield (
            f"images of {stored[1]}x{stored[0]} are decoded to be shrunk to {size}; build the set "
            f"with --size {size}, or cache it"
        )
    if request.config.service and request.is_shuffled and not request.repeat:
        yield "a service gives every epoch the same order; use repeat=True and steps_per_epoch"
