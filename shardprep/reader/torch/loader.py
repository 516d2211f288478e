"""`Dataset.loader`: the batches of a `Dataset` as torch tensors, for PyTorch's training loops."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch

from shardprep.dataset.schema import MASK, TARGET_IMAGE
from shardprep.errors import DatasetError
from shardprep.reader.arrays.batch_maker import BatchSource
from shardprep.reader.arrays.batches import AheadBatches, ArrayBatches
from shardprep.reader.config import LoaderOptions, warn
from shardprep.reader.decode.targets import target_of
from shardprep.reader.torch.device import Cuda, PinnedMemory, Transfer, Transfers
from shardprep.reader.torch.transform import Transform, mapped, received, tensor_of
from shardprep.reader.validators import short_repr

_WHERE = "Dataset.loader"


class TensorBatches(ArrayBatches):
    """Batches of tensors that use the memory of the arrays; images have their channels first."""

    device: torch.device | None = None
    """A device other than CUDA to copy batches to."""

    def _element(self, values: Any) -> Any:
        source, element = self._source, values
        if source.transform is None:
            first = {source.schema.image_name, TARGET_IMAGE, MASK}
            tensors = {
                name: mapped(_channels_first if name in first else tensor_of, value)
                for name, value in values.items()
            }
            element = super()._element(tensors)
        else:
            element = mapped(received, values)
        return element if self.device is None else mapped(self._on_device, element)

    def _on_device(self, value: Any) -> Any:
        return value.to(self.device) if isinstance(value, torch.Tensor) else value


class DeviceBatches(AheadBatches, TensorBatches):
    """Batches of tensors on a CUDA device."""

    def __init__(self, *arguments: Any, transfers: Transfers) -> None:
        super().__init__(*arguments)
        self._transfers = transfers

    def __next__(self) -> Any:
        transfer: Transfer = super().__next__()
        return self._transfers.finish(transfer)

    def _moved(self, element: Any) -> Any:
        return self._transfers.begin(element)


def batches_of(source: BatchSource, digest: str, options: LoaderOptions) -> ArrayBatches:
    """Return the batches of a loader, as tensors on the device that the options name."""
    device = _device(options)
    arguments = _with_transform(source, options), digest
    if device is not None and device.type == "cuda":
        cuda = Cuda(device)
        memory = PinnedMemory(cuda, by_user=False)
        return DeviceBatches(*arguments, memory, transfers=Transfers(cuda))
    if device is None and _pins(options):
        cuda = Cuda(torch.device("cuda", torch.cuda.current_device()))
        return TensorBatches(*arguments, PinnedMemory(cuda, by_user=True))
    batches = TensorBatches(*arguments)
    batches.device = device
    return batches


def _device(options: LoaderOptions) -> torch.device | None:
    if options.device is None:
        return None
    try:
        device = torch.empty(0, device=options.device).device
    except (AssertionError, NotImplementedError, RuntimeError, TypeError) as error:
        what = f"device={short_repr(options.device)}: {str(error).splitlines()[0]}"
        raise DatasetError(_WHERE, what, "give a device that torch can use here") from error
    return None if device.type == "cpu" else device


def _pins(options: LoaderOptions) -> bool:
    if options.pin_memory and not torch.cuda.is_available():
        what = "pin_memory=True, but torch sees no CUDA device"
        raise DatasetError(_WHERE, what, "leave it out")
    return torch.cuda.is_available() if options.pin_memory is None else options.pin_memory


def _with_transform(source: BatchSource, options: LoaderOptions) -> BatchSource:
    """Return the source with the transform, if any; without workers if it cannot be sent."""
    if options.transform is None:
        return source
    if find_spec("torchvision") is None:
        what = "transform needs torchvision, which is not installed"
        raise DatasetError(_WHERE, what, "install torchvision")
    schema = source.schema
    transform = Transform(options.transform, target_of(schema), schema.image_name)
    if options.num_workers != 0 and (problem := transform.problem()):
        what = f"transform cannot be sent to worker processes ({problem})"
        if options.num_workers:
            raise DatasetError(_WHERE, what, "give num_workers=0, or create such things in it")
        warn(f"{what}, so the thread of the training loop runs it")
        source = replace(source, options=replace(source.options, num_workers=0))
    return replace(source, transform=transform)


def _channels_first(value: Any) -> Any:
    tensor = tensor_of(value)
    return tensor.movedim(-1, -3) if isinstance(tensor, torch.Tensor) else tensor


class Loader:
    """The result of `Dataset.loader`, which describes its batches of tensors.

    Each `for` loop yields an epoch: the one given to `set_epoch`, or the one after the last loop.
    After `load_state_dict`, the first loop yields the rest of the epoch of the state.
    """

    batch_sampler = None
    """Lightning reads this attribute of a loader that has a `sampler`."""

    def __init__(self, batches: ArrayBatches, batch_size: int) -> None:
        """Take batches with `epochs=None`. The first loop begins with their next batch."""
        self._batches = batches
        self.batch_size = batch_size
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
        yield from batches.rest_of_epoch()

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
