"""Records of a dataset, decoded."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from shardprep.dataset import example, tfrecord


def records(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the features of every record by its key."""
    found = {}
    for path in sorted(folder.glob("*.tfrecord-*")):
        with path.open("rb") as file:
            for record in tfrecord.read_records(file, path.name):
                features: Any = example.decode(record.payload)
                found[features["image/filename"][0].decode()] = features
    return found


def boxes(features: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.array(features["objects/bbox"]).reshape(-1, 4)


def png(data: bytes) -> np.ndarray[Any, Any]:
    with Image.open(io.BytesIO(data)) as image:
        assert image.mode in ("L", "I;16")
        return np.array(image)
