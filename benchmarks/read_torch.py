"""`Dataset.loader` beside a tuned `DataLoader` of PyTorch, which reads the same images as files.

Both yield shuffled batches of the same uint8 tensors. The one decodes with as many threads as the
other has worker processes. Pillow decodes the files, as in torchvision's `ImageFolder`.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from benchmarks import photos
from benchmarks.measure import Measure, Row, built, interleaved
from benchmarks.read import BATCH, of
from benchmarks.table import alone

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardprep import reader

TUNED = Measure("`Dataset.loader` / tuned `DataLoader` on the same images as JPEG files", ">= 3")
MEASURES = (TUNED,)
NUM_WORKERS = 2


class Files:
    """JPEG files and their labels as a map-style dataset of PyTorch."""

    def __init__(self, folder: Path, stored: reader.Dataset) -> None:
        """Write the images of a dataset, opened with `decode=False`, to files."""
        folder.mkdir()
        self._labels = [label for _, label in stored]
        self._paths = [folder / f"{number}.jpg" for number in range(len(stored))]
        for path, (data, _) in zip(self._paths, stored, strict=True):
            path.write_bytes(data)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        with Image.open(self._paths[number]) as image:
            return np.array(image.convert("RGB")), self._labels[number]


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return the ratio of images per second."""
    from shardprep import reader

    batches = 2 if quick else 90
    source = photos.write_folder(folder / "photos", batches // 2 * BATCH)
    path = built(folder / "out", source, "--shards", 8)
    files = Files(folder / "files", reader.Dataset(path, "train", decode=False))
    ways = {"loader": partial(_loader, path), "DataLoader": partial(_data_loader, files)}
    cost = interleaved({name: partial(of, way, batches) for name, way in ways.items()}, rounds)
    ours, theirs = (batches * BATCH / cost[name].wall_s for name in ways)
    return [TUNED.came_to(ours / theirs, f"{ours:,.0f} / {theirs:,.0f} images/s")]


def _loader(path: Path) -> Iterator[Any]:
    from shardprep import reader

    loader = reader.Dataset(path, "train").loader(
        BATCH, drop_remainder=True, num_threads=NUM_WORKERS, pin_memory=False
    )
    return itertools.chain.from_iterable(itertools.repeat(loader))


def _data_loader(files: Any) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(
        files, BATCH, shuffle=True, drop_last=True, num_workers=NUM_WORKERS,
        persistent_workers=True, prefetch_factor=4, multiprocessing_context="forkserver",
    )  # fmt: skip
    return itertools.chain.from_iterable(itertools.repeat(loader))


if __name__ == "__main__":
    alone(rows, __doc__)
