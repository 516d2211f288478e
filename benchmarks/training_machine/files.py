"""The rival: a `DataLoader` of the photos as files, as in PyTorch's example of ImageNet.

Pillow decodes, and torchvision's `RandomResizedCrop` crops and resizes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch.utils.data import DataLoader, RandomSampler
from torchvision.transforms import v2

from benchmarks.training_machine.inputs import PHOTOS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.training_machine.figures import Settings

_SIDE = 224
_PREFETCH = 2
"""Batches that a worker prepares in advance: the default of `DataLoader`."""
_NO_END = 1 << 40


class Photos:
    """Files in a folder for each class, as a map-style dataset of PyTorch."""

    def __init__(self, folder: Path) -> None:
        self._paths = sorted(folder.glob("*/*"))
        classes = sorted({path.parent.name for path in self._paths})
        self._labels = [classes.index(path.parent.name) for path in self._paths]
        self._transform = v2.Compose([v2.RandomResizedCrop(_SIDE), v2.PILToTensor()])

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        try:
            with Image.open(self._paths[number]) as image:
                return self._transform(image.convert("RGB")), self._labels[number]
        except OSError:  # a file that no decoder can read: the dataset does not have it either
            return self[(number + 1) % len(self)]


def in_flight(cores: int) -> int:
    """Return the number of batches that the workers prepare in advance."""
    return _PREFETCH * cores


def file_batches(settings: Settings, cores: int) -> Iterator[Any]:
    """Return batches without an end, with a worker for each core: uint8[batch, 3, 224, 224].

    Photos are drawn with replacement, so that no epoch ends: there, the workers would start anew.
    """
    photos: Any = Photos(settings.folder / PHOTOS)
    sampler = RandomSampler(photos, replacement=True, num_samples=_NO_END)
    loader: Any = DataLoader(
        photos, settings.batch_size, sampler=sampler, num_workers=cores, drop_last=True,
        prefetch_factor=_PREFETCH, pin_memory=torch.cuda.is_available(),
    )  # fmt: skip
    return iter(loader)
