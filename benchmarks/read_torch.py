"""`Dataset.loader` beside a tuned `DataLoader` of PyTorch, which reads the same images as files.

Both yield shuffled batches of uint8 tensors of one size. The one decodes with as many threads as
the other has worker processes. Pillow decodes the files, as in torchvision's `ImageFolder`: the
stored images, or the photos that the dataset was built from, which it also resizes.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageOps

from benchmarks import photos
from benchmarks.measure import Measure, Row, built, interleaved
from benchmarks.read import BATCH, of
from benchmarks.table import alone

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STORED = Measure("`Dataset.loader` / tuned `DataLoader` on the stored images as JPEG files", "")
PHOTOS = Measure("the same on the original photos, resized by Pillow", ">= 3")
MEASURES = (STORED, PHOTOS)
NUM_WORKERS = 2
SIZE = 224
"""Height and width of the images in pixels: the default of a build."""


class Files:
    """Image files as a map-style dataset of PyTorch."""

    def __init__(self, folder: Path) -> None:
        """Take the JPEG files in a folder per class."""
        self._paths = sorted(folder.glob("*/*.jpg"))
        self._labels = [int(path.parent.name == "dog") for path in self._paths]

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        with Image.open(self._paths[number]) as image:
            fitted = image.convert("RGB")
        if fitted.size != (SIZE, SIZE):
            fitted = ImageOps.fit(fitted, (SIZE, SIZE), Image.Resampling.BICUBIC)
        return np.array(fitted), self._labels[number]


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return the ratios of images per second."""
    from shardprep import reader

    batches = 2 if quick else 90
    source = photos.write_folder(folder / "photos", batches // 2 * BATCH)
    path = built(folder / "out", source, "--shards", 8)
    stored = folder / "stored"
    for number, (data, label) in enumerate(reader.Dataset(path, "train", decode=False)):
        file = stored / ("cat", "dog")[label] / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    ways = {
        "loader": partial(_loader, path),
        "stored": partial(_data_loader, Files(stored)),
        "photos": partial(_data_loader, Files(source)),
    }
    cost = interleaved({name: partial(of, way, batches) for name, way in ways.items()}, rounds)
    rates = {name: batches * BATCH / one.wall_s for name, one in cost.items()}
    ours = rates["loader"]
    return [
        measure.came_to(ours / rates[name], f"{ours:,.0f} / {rates[name]:,.0f} images/s")
        for measure, name in ((STORED, "stored"), (PHOTOS, "photos"))
    ]


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
