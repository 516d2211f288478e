"""Folders that Kaggle mounts in its notebooks, which are read in place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardprep.source.kaggle.ref import KaggleRef

ROOT = Path("/kaggle/input")
_PARENTS = ("competitions", "datasets", "models")
"""Folders of mounts; older notebooks have the mounts themselves in their place."""


def mounted(ref: KaggleRef) -> Path | None:
    """Return the folder in which Kaggle has mounted an archive, None if it has not.

    Neither place tells the version of a dataset, and the older one not even its owner.
    """
    places = [ROOT / "competitions" / ref.name]
    if ref.kind == "dataset":
        places = [ROOT / "datasets" / ref.owner / ref.name]
    if ref.name not in _PARENTS:
        places.append(ROOT / ref.name)
    return next((place for place in places if os.path.isdir(place)), None)  # noqa: PTH112 - it never raises
