"""The index of a shard: offset and length of each record, checked against the manifest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from shardprep.dataset.folder import index_name
from shardprep.dataset.manifest import Shard
from shardprep.dataset.tfrecord import FRAME_BYTES
from shardprep.errors import DatasetError
from shardprep.storage.regular_file import opened_regular, read_regular, regular_size

ShardIndex = np.ndarray[Any, np.dtype[np.int64]]

_MAX_LINE_BYTES = 41
"""Bytes of a line of an index: two numbers of 64 bits, a space and the end of the line."""
_NUMERALS = b"0123456789 \n"


def read_index(folder: Path, shard: Shard) -> ShardIndex:
    """Return offset and length in bytes of every frame of a shard, int64[records, 2].

    DatasetError if the index is missing, its frames are not adjacent, or do not match the
    manifest up to the end of the shard.
    """
    path = f"{folder}/{index_name(shard.name)}"  # a Path for each of a thousand takes its time
    try:
        text = read_regular(path, _MAX_LINE_BYTES * shard.num_records)
    except FileNotFoundError as error:
        raise DatasetError(path, "is missing", way_out(folder)) from error
    except OSError as error:
        raise _unreadable(path, error, folder) from error
    if text.translate(None, _NUMERALS):
        raise DatasetError(path, "is damaged: it holds more than numbers", way_out(folder))
    numbers = np.fromstring(text, np.int64, sep=" ") if text else np.empty(0, np.int64)
    frames = numbers[: len(numbers) // 2 * 2].reshape(-1, 2)
    if len(frames) != shard.num_records:
        what = f"has {len(frames):,} records, the manifest says {shard.num_records:,}"
        raise DatasetError(path, what, way_out(folder))
    if len(numbers) % 2 or not _is_chain(frames, shard.num_bytes):
        raise DatasetError(path, "is damaged: its records do not join", way_out(folder))
    return frames


def _is_chain(frames: ShardIndex, num_bytes: int) -> bool:
    """Return whether frames are adjacent from the first byte of a shard to its last."""
    if not len(frames):
        return num_bytes == 0
    offsets, lengths = frames[:, 0], frames[:, 1]
    # Before any sum, which of what strangers wrote may pass 64 bits.
    if frames.max() > num_bytes or lengths.min() < FRAME_BYTES:
        return False
    ends = offsets + lengths
    joined = (offsets[1:] == ends[:-1]).all()
    return bool(joined and offsets[0] == 0 and ends[-1] == num_bytes)


def check_shard(folder: Path, shard: Shard) -> None:
    """Raise DatasetError unless a shard is a regular file of the manifest's size."""
    path = f"{folder}/{shard.name}"
    try:
        size = regular_size(path)
    except OSError as error:
        raise _unreadable(path, error, folder) from error
    check_size(path, size, shard.num_bytes, folder)


def open_shard(folder: Path, shard: Shard) -> int:
    """Open a shard for reading; the caller closes the descriptor.

    DatasetError if the shard is missing or not of the manifest's size.
    """
    path = f"{folder}/{shard.name}"
    try:
        descriptor, num_bytes = opened_regular(path)
    except FileNotFoundError:
        check_size(path, None, shard.num_bytes, folder)
        raise
    except OSError as error:
        raise _unreadable(path, error, folder) from error
    try:
        check_size(path, num_bytes, shard.num_bytes, folder)
    except DatasetError:
        os.close(descriptor)
        raise
    return descriptor


def _unreadable(path: str, error: OSError, dataset: Path) -> DatasetError:
    return DatasetError(path, f"cannot be read ({error.strerror or error})", way_out(dataset))


def way_out(dataset: Path | str) -> str:
    """Return the hint of an error on a missing or damaged shard or index."""
    return f"copy it again, or run `shardprep verify {dataset} --repair`"


def check_size(path: str, actual: int | None, expected: int, dataset: Path) -> None:
    """Compare sizes, because a file cut between two records passes every checksum.

    Raises:
        DatasetError: the size in bytes differs, or the shard is missing (None).

    """
    if actual != expected:
        what = "is missing" if actual is None else f"has {actual:,} bytes"
        raise DatasetError(path, f"{what}, the manifest says {expected:,}", way_out(dataset))
