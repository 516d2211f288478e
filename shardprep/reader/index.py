"""Where each record lies in its shard, from the index beside it; and whether all are there."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from shardprep.dataset import index_name
from shardprep.errors import DatasetError
from shardprep.storage.regular_file import read_regular, regular_size
from shardprep.tfrecord import FRAME_BYTES

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from shardprep.manifest import Shard

    Frames = np.ndarray[Any, np.dtype[np.int64]]

_MAX_LINE_BYTES = 41
"""Bytes of a line of an index: two numbers of 64 bits, a space and the end of the line."""


def read_index(folder: Path, shard: Shard) -> Frames:
    """Return offset and length of every frame of a shard, int64[records, 2], bytes.

    Raises:
        DatasetError: the index is missing, its frames do not lie one behind the other, or they
            are not the records that the manifest says, up to the very end of the shard.

    """
    path, hint = folder / index_name(shard.name), way_out(folder)
    try:
        text = read_regular(path, _MAX_LINE_BYTES * shard.num_records)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is no number: too few are left
            numbers = np.fromstring(text, np.int64, sep=" ")
    except FileNotFoundError as error:
        raise DatasetError(str(path), "is missing", hint) from error
    except (OSError, ValueError) as error:
        text_ = getattr(error, "strerror", None) or str(error)
        raise DatasetError(str(path), f"cannot be read ({text_})", hint) from error
    frames = numbers[: len(numbers) // 2 * 2].reshape(-1, 2)
    if len(frames) != shard.num_records:
        what = f"has {len(frames):,} records, the manifest says {shard.num_records:,}"
        raise DatasetError(str(path), what, hint)
    if len(numbers) % 2 or not _is_chain(frames, shard.num_bytes):
        raise DatasetError(str(path), "is damaged: its records do not join", hint)
    return frames


def _is_chain(frames: Frames, num_bytes: int) -> bool:
    """Tell whether frames lie one behind the other from the first byte of a shard to its last."""
    offsets, lengths = frames.T
    if not len(frames):
        return num_bytes == 0
    # Each by itself before any sum: sums of what strangers wrote may pass 64 bits.
    in_range = lengths.min() >= FRAME_BYTES and lengths.max() <= num_bytes and offsets.min() >= 0
    if not in_range or offsets.max() > num_bytes:
        return False
    ends = offsets + lengths
    joined = np.array_equal(offsets[1:], ends[:-1])
    return bool(joined and offsets[0] == 0 and ends[-1] == num_bytes)


def shard_size(path: Path) -> int | None:
    """Return the size of a shard file in bytes, None where it is missing.

    Raises:
        DatasetError: something else than a regular file has its name.

    """
    try:
        return regular_size(path)
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        raise DatasetError(str(path), what, way_out(path.parent)) from error


def way_out(dataset: Path | str) -> str:
    """Return what to do where a shard of a dataset, or its index, is missing or damaged."""
    return f"copy it again, or run `shardprep verify {dataset} --repair`"


def check_size(path: Path, actual: int | None, expected: int) -> None:
    """Compare sizes: a file cut exactly between two records passes every checksum.

    Raises:
        DatasetError: the shard has another size in bytes, or is not there (None).

    """
    if actual != expected:
        what = "is missing" if actual is None else f"has {actual:,} bytes"
        raise DatasetError(
            str(path),
            f"{what}, the manifest says {expected:,}",
            way_out(path.parent),
        )
