"""The folder of this machine's copies: downloads, documents and shards."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """Return SHARDPREP_CACHE, else ~/.cache/shardprep; it need not exist."""
    root = os.environ.get("SHARDPREP_CACHE") or Path.home() / ".cache" / "shardprep"
    return Path(root).expanduser()
