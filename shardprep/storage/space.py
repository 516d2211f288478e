"""The space of a disk: whether work fits on it, and what is said where it does not."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_KEPT_SHARE = 8
_LEAST_KEPT_BYTES = 1 << 20
_MOST_KEPT_BYTES = 64 << 20
"""Bytes that work leaves free: an eighth of its own, within these bounds."""


def shortage(folder: Path, num_bytes: int, num_written: int = 0) -> str:
    """Return in words the reason for which a disk cannot take `num_bytes` more, "" where it can.

    `num_written` bytes of the same work are there already: the reserve is that of all.
    """
    kept = (num_written + num_bytes) // _KEPT_SHARE
    kept = min(max(kept, _LEAST_KEPT_BYTES), _MOST_KEPT_BYTES)
    free = shutil.disk_usage(folder).free
    if free >= num_bytes + kept:
        return ""
    return (
        f"{megabytes(num_bytes)} are needed and {megabytes(kept)} kept free, "
        f"the disk has {megabytes(free)} left"
    )


def megabytes(num_bytes: float) -> str:
    """Return a size in the decimal unit that fits it: "812 kB", "45.5 MB"."""
    size, unit = num_bytes, "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    digits = 0 if unit == "B" or size >= 100 else 1
    return f"{size:.{digits}f} {unit}"
