"""`Dataset.loader`: the batches of a `Dataset` as torch tensors, for PyTorch's training loops."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np

from shardprep.dataset.schema import BOX, IMAGE, MASK, OBJECT_MASK, ROWS, TARGET_IMAGE
from shardprep.errors import DatasetError
from shardprep.reader.arrays.batches import ArrayBatches
from shardprep.reader.config import LoaderOptions
from shardprep.reader.decode.annotations import boxes_as
from shardprep.reader.decode.targets import Target

_WHERE = "Dataset.loader"

try:
    import torch
except ModuleNotFoundError as error:
    raise DatasetError(_WHERE, "needs torch, which is not installed", "install torch") from error


class Loader:
    """The result of `Dataset.loader`, which describes its batches of tensors.

    Each `for` loop yields an epoch: the one given to `set_epoch`, or the one after the last loop.
    After `load_state_dict`, the first loop yields the rest of the epoch of the state.
    """

    batch_sampler = None
    """Lightning reads this attribute of a loader that has a `sampler`."""

    def __init__(self, batches: ArrayBatches, options: LoaderOptions, target: Target) -> None:
        """Take batches with `epochs=None`. The first loop begins with their next batch."""
        self._batches = batches
        self._target = target
        self._transform: Any = options.transform
        if self._transform is not None and find_spec("torchvision") is None:
            what = "transform needs torchvision, which is not installed"
            raise DatasetError(_WHERE, what, "install torchvision")
        pin = options.pin_memory
        self._pin = torch.cuda.is_available() if pin is None else pin
        self.batch_size = options.batch_size
        self._epoch: int | None = None
        """Epoch of the next loop; None if the loop begins with the next batch of `_batches`."""

    def __len__(self) -> int:
        """Return the number of batches that this process takes from an epoch."""
        return self._batches.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        batches = self._batches
        if self._epoch is not None:
            batches.start_epoch(self._epoch)
        self._epoch = batches.epoch + 1
        for element in batches.rest_of_epoch():
            given = element if self._transform is None else self._transformed(element)
            yield self._tensors(given)

    @property
    def sampler(self) -> Loader:
        """Return the loader itself, because Lightning calls `loader.sampler.set_epoch`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Let the next loop yield `epoch`, or its rest if a state of that epoch was loaded."""
        if self._epoch is not None or epoch != self._batches.epoch:
            self._epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the state before the next batch, in values that JSON can store."""
        return self._batches.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; arguments and errors as for `ArrayBatches.load_state_dict`."""
        self._batches.load_state_dict(state)
        self._epoch = None

    def close(self) -> None:
        """Stop the threads and drop batches decoded ahead."""
        self._batches.close()

    def _transformed(self, element: Any) -> Any:
        """Return a batch of transformed samples: stacked, or as two lists if they have boxes."""
        # torch has one generator of random numbers for all threads, and torchvision's transforms
        # draw from it. So they run in the thread of the training loop, each with its own seed.
        images, targets = element if self._target.names else (element, None)
        columns = {IMAGE: images, **self._target.unpacked(targets)}
        samples = []
        with torch.random.fork_rng(devices=()):
            for row, key in enumerate(self._batches.keys()):
                size = images[row].shape[-3:-1]
                values = {name: _typed(name, column[row], size) for name, column in columns.items()}
                sample = self._target.pair(values[IMAGE], values)
                torch.default_generator.manual_seed(key)
                inputs = sample if isinstance(sample, tuple) else (sample,)
                samples.append(self._transform(*inputs))
        if BOX in columns or any(name.startswith(ROWS) for name in columns):
            return tuple(map(list, zip(*samples, strict=True)))
        return torch.utils.data.default_collate(samples)

    def _tensors(self, element: Any) -> Any:
        if isinstance(element, dict):
            return {name: self._tensors(value) for name, value in element.items()}
        if isinstance(element, tuple | list):
            return type(element)(map(self._tensors, element))
        if isinstance(element, np.ndarray) and element.dtype != object:
            element = torch.from_numpy(element)
        if isinstance(element, torch.Tensor):
            return element.pin_memory() if self._pin else element
        return element.tolist() if isinstance(element, np.ndarray) else element


def _typed(name: str, value: Any, size: tuple[int, int]) -> Any:
    """Return a value of a sample in the type that tells torchvision how to transform it."""
    from torchvision import tv_tensors

    if name == BOX:
        boxes = torch.from_numpy(boxes_as(value, "xyxy", size))
        return tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=size)
    if isinstance(value, str) or getattr(value, "dtype", "") == np.object_:
        return value
    tensor = torch.as_tensor(value)
    if name == IMAGE and tensor.ndim == 4:  # a stack
        return tv_tensors.Video(tensor.permute(0, 3, 1, 2))
    if name in {IMAGE, TARGET_IMAGE}:
        return tv_tensors.Image(tensor.permute(2, 0, 1))
    if name in {MASK, OBJECT_MASK}:
        return tv_tensors.Mask(tensor.movedim(-1, -3) if name == MASK else tensor)
    return tensor


def process_of(index: int | None, number: int | None) -> tuple[int, int]:
    """Return (rank, number of processes) from the arguments, the process group or the environment.

    (0, 1) if all of them are missing. DatasetError if only one argument is given.
    """
    if (index is None) != (number is None):
        given = f"num_shards={number}, shard_index={index}"
        raise DatasetError(_WHERE, given, "give both of them, or none")
    if index is not None and number is not None:
        return index, number
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    variables = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    rank, size = (int(value) if value and value.isdecimal() else None for value in variables)
    return (0, 1) if rank is None or size is None else (rank, size)
