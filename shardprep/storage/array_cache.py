"""Arrays kept in the cache of this machine, which took long to make and can be made again."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from shardprep.errors import StorageError
from shardprep.storage.atomic_file import DurableFile
from shardprep.storage.cache import cache_root, make_cache

if TYPE_CHECKING:
    from pathlib import Path

    Arrays = dict[str, Any]
    """Arrays by name."""

_FORGOTTEN_S = 30 * 24 * 3600.0
"""Seconds after its last use when a kept file is removed."""


def array_file(folder: str, name: str) -> Path:
    """Return the file of a folder of the cache that keeps arrays under a name."""
    return cache_root() / folder / f"{name}.npz"


def kept_arrays(path: Path) -> Arrays | None:
    """Return the arrays of a file by name, None where there is none that is whole."""
    try:
        with np.load(path, allow_pickle=False) as kept:
            found = {name: kept[name] for name in kept.files}
    except Exception:  # numpy raises anything for a damaged file
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return found


def keep_arrays(path: Path, arrays: Arrays) -> None:
    """Keep arrays, and remove files beside that nobody has used for long; without room, neither."""
    with contextlib.suppress(OSError, StorageError):
        folder = make_cache(path.parent)
        before = time.time() - _FORGOTTEN_S
        for one in folder.glob("*.npz"):
            if one.stat().st_mtime < before:
                one.unlink(missing_ok=True)
        with DurableFile(path, is_shared=True) as file:
            np.savez(file.stream, **arrays)
            file.commit()
