"""The folder of this machine's copies: downloads, documents and shards."""

from __future__ import annotations

import os
from pathlib import Path

from shardprep.errors import StorageError


def cache_root() -> Path:
    """Return SHARDPREP_CACHE, else ~/.cache/shardprep; it need not exist."""
    root = os.environ.get("SHARDPREP_CACHE") or Path.home() / ".cache" / "shardprep"
    return Path(root).expanduser()


def make_cache(folder: Path) -> Path:
    """Return a folder of the cache, made if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            str(folder), f"cannot be made ({error.strerror})", "set SHARDPREP_CACHE to a folder"
        ) from error
    return folder
