"""Records and item rows of a dataset, decoded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import shardprep
from shardprep.dataset import example, tfrecord
from shardprep.dataset.item_table import read_items
from shardprep.writer.finalize import BuildResult
from tests.support.arrays import decoded
from tests.support.builders import build, write_folder

Features = dict[str, dict[str, Any]]
"""Key → features of a record by their names."""


def built(folder: Path, members: Mapping[str, Any], **keys: Any) -> tuple[BuildResult, Features]:
    """Build a source and verify the dataset; return the result and its records."""
    data = {key: one.encode() if isinstance(one, str) else one for key, one in members.items()}
    result = build(write_folder(folder / "source", data), folder / "out", **keys)
    assert not shardprep.verify(result.path, decode=True, workers=1).problems
    return result, records(result.path)


def records(folder: Path) -> Features:
    """Return the features of every record by its key."""
    found = {}
    for path in sorted(folder.glob("*.tfrecord-*")):
        with path.open("rb") as file:
            for record in tfrecord.read_records(file, path.name):
                features: Any = example.decode(record.payload)
                found[features["image/filename"][0].decode()] = features
    return found


def rows(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the row of every input by its key."""
    return {row["key"]: row for row in read_items(folder / "items.parquet").to_pylist()}


def boxes(features: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.array(features["objects/bbox"]).reshape(-1, 4)


def png(data: bytes) -> np.ndarray[Any, Any]:
    """Return the pixels of a grey image, such as a mask."""
    pixels = decoded(data)
    assert pixels.ndim == 2
    return pixels
