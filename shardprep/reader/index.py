"""Where each record lies in its shard, from the index beside it; and whether all are there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shardprep.dataset import index_name
from shardprep.errors import DatasetError

if TYPE_CHECKING:
    from pathlib import Path


def read_index(folder: Path, shard: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return offset and length of every frame of a shard, int64[records, 2], bytes.

    Raises:
        DatasetError: the index is missing, or its frames do not lie one behind the other.

    """
    path = folder / index_name(shard)
    hint = "copy it again, or build the set again"
    try:
        numbers = np.fromstring(path.read_bytes(), np.int64, sep=" ")
    except FileNotFoundError as error:
        raise DatasetError(str(path), "is missing", hint) from error
    except (OSError, ValueError) as error:
        raise DatasetError(str(path), f"cannot be read ({error})", hint) from error
    frames = numbers[: len(numbers) // 2 * 2].reshape(-1, 2)
    ends = frames.sum(axis=1)
    if len(numbers) % 2 or not np.array_equal(frames[:, 0], np.append(0, ends[:-1])[: len(frames)]):
        raise DatasetError(str(path), "is damaged: its records do not join", hint)
    return frames


def check_size(path: Path | str, actual: int | None, expected: int) -> None:
    """Compare sizes: a file cut exactly between two records passes every checksum.

    Raises:
        DatasetError: the shard has another size in bytes, or is not there (None).

    """
    if actual != expected:
        what = "is missing" if actual is None else f"has {actual:,} bytes"
        raise DatasetError(
            str(path),
            f"{what}, the manifest says {expected:,}",
            "copy it again, or build the set again",
        )
