"""`Dataset.loader`: the batches of a `Dataset` as torch tensors, for PyTorch's training loops."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from shardprep.errors import DatasetError
from shardprep.reader.arrays.batches import ArrayBatches
from shardprep.reader.config import LoaderOptions

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

    def __init__(self, batches: ArrayBatches, options: LoaderOptions) -> None:
        """Take batches with `epochs=None`. The first loop begins with their next batch."""
        self._batches = batches
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
            yield self._tensors(element)

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

    def _tensors(self, element: Any) -> Any:
        if isinstance(element, dict):
            return {name: self._tensors(value) for name, value in element.items()}
        if isinstance(element, tuple | list):
            return type(element)(map(self._tensors, element))
        if isinstance(element, np.ndarray) and element.dtype != object:
            tensor = torch.from_numpy(element)
            return tensor.pin_memory() if self._pin else tensor
        return element.tolist() if isinstance(element, np.ndarray) else element


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
