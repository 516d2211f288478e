"""The cache folder of this machine: downloads, documents, shards, and arrays for reuse."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Any

from shardprep.errors import StorageError
from shardprep.storage.atomic_file import DurableFile

Arrays = dict[str, Any]

DATA_FRAME, ITEMS = "the data frame", "items"
"""Names, in messages, of tables that were passed as Python objects."""
FRAME = re.compile(r"(?<!/)items/[0-9a-f]{64}\.(?:csv|jsonl|parquet)")
"""Matches the path below `cache_root()` of the copy of a table that was passed as an object."""
_FORGOTTEN_S = 30 * 24 * 3600.0


def cache_root() -> Path:
    """Return the cache folder: $SHARDPREP_CACHE, or ~/.cache/shardprep. It may not exist yet."""
    root = os.environ.get("SHARDPREP_CACHE") or Path.home() / ".cache" / "shardprep"
    return Path(root).expanduser()


def without_cache(text: Any) -> Any:
    """Return a text without the path of the cache folder; other values are unchanged."""
    return text.replace(f"{cache_root()}/", "") if isinstance(text, str) and "/" in text else text


def with_cache(value: Any) -> Any:
    """Return a text with the cache folder before each `FRAME`; other values are unchanged."""
    is_text = isinstance(value, str)
    return FRAME.sub(lambda it: str(cache_root() / it[0]), value) if is_text else value


def make_cache(folder: Path) -> Path:
    """Create a folder of the cache if it is missing, and return it; StorageError on failure."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        hint = "set SHARDPREP_CACHE to a folder that you can write"
        raise StorageError(str(folder), f"cannot be created ({error.strerror})", hint) from error
    return folder


def array_file(folder: str, name: str) -> Path:
    """Return the path of the file `name` for `keep_arrays`, in a folder of the cache."""
    return cache_root() / folder / f"{name}.npz"


def kept_arrays(path: Path) -> Arrays | None:
    """Return the arrays of a file by name, or None if it is missing or damaged.

    Marks the file as used, because `keep_arrays` removes unused files.
    """
    import numpy as np  # noqa: PLC0415 - a download does not need it

    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception:  # numpy raises anything for a damaged file
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return arrays


def keep_arrays(path: Path, arrays: Arrays) -> None:
    """Write arrays by name; remove files of the folder unused for 30 days. Ignore disk errors."""
    import numpy as np  # noqa: PLC0415 - a download does not need it

    with contextlib.suppress(OSError, StorageError):
        folder = make_cache(path.parent)
        before = time.time() - _FORGOTTEN_S
        for old in folder.glob("*.npz"):
            if old.stat().st_mtime < before:
                old.unlink(missing_ok=True)
        with DurableFile(path, is_shared=True) as file:
            np.savez(file.stream, **arrays)
            file.commit()
