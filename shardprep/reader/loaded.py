"""What a dataset of `reader.load` was made of. It goes with the dataset, as `dataset.loaded`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Loaded:
    """The arguments of a call of `load`."""

    path: str | Path
    split: Any
    options: Mapping[str, Any]
    """All further ones."""
