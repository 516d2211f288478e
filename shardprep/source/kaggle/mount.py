"""Folders that Kaggle mounts in its notebooks, which are read in place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardprep.source.kaggle.ref import KaggleRef

ROOT = Path("/kaggle/input")
_PARENTS = ("competitions", "datasets", "models")
"""Parent folders of mounts; older notebooks mount directly below `ROOT`."""


def mounted(ref: KaggleRef) -> Path | None:
    """Return the folder where Kaggle has mounted an archive, or None.

    Neither place shows the version of a dataset; the older place does not show its owner either.
    """
    places = [ROOT / "competitions" / ref.name]
    if ref.kind == "dataset":
        places = [ROOT / "datasets" / ref.owner / ref.name]
    if ref.name not in _PARENTS:
        places.append(ROOT / ref.name)
    return next((place for place in places if os.path.isdir(place)), None)  # noqa: PTH112 - never raises
