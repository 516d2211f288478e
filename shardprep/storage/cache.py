"""The cache folder of this machine: downloads, documents and shards."""

from __future__ import annotations

import os
from pathlib import Path

from shardprep.errors import StorageError


def cache_root() -> Path:
    """Return SHARDPREP_CACHE, or ~/.cache/shardprep. The folder may not exist yet."""
    root = os.environ.get("SHARDPREP_CACHE") or Path.home() / ".cache" / "shardprep"
    return Path(root).expanduser()


def make_cache(folder: Path) -> Path:
    """Create a folder of the cache if it is missing, and return it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            str(folder), f"cannot be created ({error.strerror})", "set SHARDPREP_CACHE to a folder"
        ) from error
    return folder
