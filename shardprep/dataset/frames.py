"""Framed records of a dataset by their place in its shards, on a disk or in object storage."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shardprep.dataset.identity import Identity
from shardprep.dataset.index import way_out
from shardprep.errors import DatasetError
from shardprep.storage import objects
from shardprep.storage.regular_file import read_at, regular_descriptor

if TYPE_CHECKING:
    from pathlib import Path

    from shardprep.dataset.remote import RemoteDataset


def read_frames(found: Identity | RemoteDataset, shard: str, offset: int, num_bytes: int) -> bytes:
    """Return bytes of a shard from an offset on; neither number is trusted.

    Raises:
        ChangedError: the dataset was replaced.
        DatasetError: the shard is missing, or shorter on a store than `offset + num_bytes`.

    """
    place = f"{found}/{shard}"
    try:
        if isinstance(found, Identity):
            with found.unchanged():
                return _read(found.folder / shard, offset, num_bytes)
        facts = found.objects[shard]
        if 0 <= offset <= offset + num_bytes <= facts.num_bytes:
            return bytes(objects.read_range(found.url / facts.name, facts.etag, offset, num_bytes))
    except (OSError, KeyError) as error:
        what = f"cannot be read ({getattr(error, 'strerror', None) or error})"
        raise DatasetError(place, what, way_out(str(found))) from error
    raise DatasetError(place, "is shorter than items.parquet says", way_out(str(found)))


def _read(path: Path, offset: int, length: int) -> bytes:
    """Return bytes of a file, fewer where it is shorter. Raises as `regular_descriptor`."""
    descriptor = regular_descriptor(path)
    try:
        return read_at(descriptor, min(length, os.fstat(descriptor).st_size), max(offset, 0))
    finally:
        os.close(descriptor)
