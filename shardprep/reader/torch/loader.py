"""`Dataset.loader`: the batches of a `Dataset` as torch tensors, for PyTorch's training loops.

Batches are copied to a CUDA device from pinned memory on a separate stream, at the same time as the
training step. Three things may not happen too early, and each waits for a CUDA event:

* Training uses a batch after its copy: the stream of training waits for the event of the copy. The
  processor does not wait.
* The memory of a batch in this process is reused after its copy: `Transfers` holds the arrays until
  the event of the copy is reached.
* The memory of a batch that the user copies (`pin_memory`) is reused after that copy: when the last
  array is deleted, `fence` records an event on the current stream.

Slots of workers are registered as pinned memory when they are first used. torch allocates the
memory of batches that threads fill.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from shardprep.dataset.schema import MASK, TARGET_IMAGE
from shardprep.errors import DatasetError
from shardprep.reader.array_types import Bytes
from shardprep.reader.arrays.batch_maker import BatchSource
from shardprep.reader.arrays.batches import AheadBatches, ArrayBatches
from shardprep.reader.arrays.memory import HostMemory
from shardprep.reader.config import LoaderOptions, warn
from shardprep.reader.decode.targets import target_of
from shardprep.reader.torch.transform import Transform, mapped, received, tensor_of
from shardprep.reader.validators import position_of, short_repr

_CUDA: Any = torch.cuda  # untyped
_PAGE_BYTES = 1 << 20
"""Unit, in bytes, of registered sizes: a slightly larger batch does not register its slot again."""


class Cuda:
    """The CUDA functions that this module calls, for one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = _CUDA.Stream(device)

    def copies(self, tensors: list[torch.Tensor]) -> tuple[list[torch.Tensor], Any]:
        """Begin to copy tensors to the device; return the copies and the event of their end."""
        with _CUDA.stream(self._stream):
            copies = [tensor.to(self._device, non_blocking=True) for tensor in tensors]
            event = _CUDA.Event()
            event.record(self._stream)
        return copies, event

    def wait(self, event: Any, copies: list[torch.Tensor]) -> None:
        """Let the current stream wait for `event`, and tell the allocator that it uses `copies`."""
        current = _CUDA.current_stream(self._device)
        current.wait_event(event)
        for copy in copies:
            copy.record_stream(current)

    def event(self) -> Any:
        """Return an event that is reached when the current stream has done its pending work."""
        event = _CUDA.Event()
        event.record(_CUDA.current_stream(self._device))
        return event

    def pinned(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def register(self, address: int, num_bytes: int) -> int:
        """Pin memory at `address`; return 0 or the number of a CUDA error."""
        return int(_CUDA.cudart().cudaHostRegister(address, num_bytes, 0))

    def unregister(self, address: int) -> None:
        _CUDA.cudart().cudaHostUnregister(address)

    def synchronize(self) -> None:
        _CUDA.synchronize(self._device)


class PinnedMemory(HostMemory):
    """Page-locked memory, which a CUDA device reads by itself."""

    def __init__(self, cuda: Cuda, *, by_user: bool) -> None:
        """With `by_user`, the user copies batches to the device, on the current stream."""
        self._cuda, self._by_user = cuda, by_user
        self._registered: dict[int, tuple[int, memoryview]] = {}
        """Address → number of registered bytes, and the memory, so that it is not freed."""
        self._can_register = True
        weakref.finalize(self, _unregister, cuda, self._registered).atexit = False

    def allocate(self, num_bytes: int) -> Bytes:
        memory: Bytes = self._cuda.pinned(num_bytes).numpy()
        return memory

    def pin(self, memory: memoryview, num_bytes: int) -> None:
        address = np.frombuffer(memory, np.uint8).ctypes.data
        known, _ = self._registered.get(address, (0, memory))
        if num_bytes <= known or not self._can_register:
            return
        if known:
            self._cuda.unregister(address)
        size = min(-(-num_bytes // _PAGE_BYTES) * _PAGE_BYTES, len(memory))
        self._registered[address] = size, memory
        if code := self._cuda.register(address, size):
            del self._registered[address]
            self._can_register = False
            warn(f"batches cannot be pinned (CUDA error {code}), so copies of them take longer")

    def fence(self) -> Callable[[], bool]:
        if not self._by_user:  # `Transfers` holds the arrays
            return super().fence()
        has_ended: Callable[[], bool] = self._cuda.event().query
        return has_ended

    def release(self) -> None:
        _unregister(self._cuda, self._registered)


def _unregister(cuda: Cuda, registered: dict[int, tuple[int, memoryview]]) -> None:
    if registered:
        cuda.synchronize()
    while registered:
        address, _ = registered.popitem()
        cuda.unregister(address)


class Transfer(NamedTuple):
    """A batch whose copy to the device has begun."""

    element: Any
    copies: list[torch.Tensor]
    event: Any


class Transfers:
    """Copies of batches to a CUDA device that may be in progress."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._held = deque[tuple[Any, Any]]()
        """(event of a copy, batch that the copy reads), the oldest first."""
        weakref.finalize(self, _drain, self._held).atexit = False

    def begin(self, element: Any) -> Transfer:
        while self._held and self._held[0][0].query():
            self._held.popleft()
        tensors: list[torch.Tensor] = []
        mapped(lambda value: tensors.append(value) if _is_tensor(value) else None, element)
        copies, event = self._cuda.copies(tensors)
        self._held.append((event, element))
        rest = iter(copies)
        moved = mapped(lambda value: next(rest) if _is_tensor(value) else value, element)
        return Transfer(moved, copies, event)

    def finish(self, transfer: Transfer) -> Any:
        """Let the current stream wait for the copy; return the copied batch."""
        self._cuda.wait(transfer.event, transfer.copies)
        return transfer.element


def _drain(held: deque[tuple[Any, Any]]) -> None:
    while held:
        event, _ = held[0]
        event.synchronize()
        held.popleft()


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


_WHERE = "Dataset.loader"


class TensorBatches(ArrayBatches):
    """Batches of tensors that share the memory of the arrays; images have channels first."""

    device: torch.device | None = None
    """Device other than CUDA to copy batches to; None to leave them on the CPU."""

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
    """Return the batches of a loader on the device of `options`. Errors as in `Dataset.loader`."""
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
        raise DatasetError(_WHERE, what, "leave out pin_memory")
    return torch.cuda.is_available() if options.pin_memory is None else options.pin_memory


def _with_transform(source: BatchSource, options: LoaderOptions) -> BatchSource:
    """Return the source with the transform, if any; without workers if pickling it fails."""
    if options.transform is None:
        return source
    try:
        import torchvision  # noqa: F401 - images, boxes and masks become its tensors
    except (ImportError, OSError, RuntimeError) as error:  # RuntimeError: of another torch
        what = f"transform needs torchvision, whose import fails ({' '.join(str(error).split())})"
        hint = f"install the torchvision for torch {torch.__version__}"
        hint += ", or use random_resized_crop=reader.RandomResizedCrop(size, flip=0.5) without it"
        raise DatasetError(_WHERE, what, hint) from error
    schema = source.schema
    transform = Transform(options.transform, target_of(schema), schema.image_name)
    if options.num_workers != 0 and (problem := transform.problem()):
        what = f"transform cannot be sent to worker processes ({problem})"
        if options.num_workers:
            hint = "give num_workers=0, or create the object inside of the transform"
            raise DatasetError(_WHERE, what, hint)
        hint = "create the object inside of the transform to use workers"
        warn(f"{what}, so the thread of the training loop runs it; {hint}")
        source = replace(source, options=replace(source.options, num_workers=0))
    return replace(source, transform=transform)


def _channels_first(value: Any) -> Any:
    tensor = tensor_of(value)
    return tensor.movedim(-1, -3) if isinstance(tensor, torch.Tensor) else tensor


class Loader:
    """Iterable of batches of tensors, as described in `Dataset.loader`.

    Each `for` loop yields an epoch: the one given to `set_epoch`, or the one after the last loop.
    After `load_state_dict`, the first loop yields the rest of the epoch of the state.
    """

    batch_sampler = None
    """Lightning reads this attribute of a loader that has a `sampler`."""

    def __init__(self, batches: ArrayBatches, batch_size: int) -> None:
        """Take batches with `epochs=None`. The first loop begins at the next batch of `batches`."""
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
        """Let the next loop yield `epoch`, or the rest of `epoch` if a state of it was loaded."""
        if self._epoch is not None or epoch != self._batches.epoch:
            self._epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the state before the next batch, in values that JSON can store."""
        return self._batches.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; errors as for `ArrayBatches.load_state_dict`."""
        self._batches.load_state_dict(state)
        self._epoch = None

    def close(self) -> None:
        """Stop threads and worker processes, and drop batches decoded ahead."""
        self._batches.close()


def process_of(options: LoaderOptions) -> tuple[int, int]:
    """Return (rank, number of processes) from the options, the process group or the environment.

    Return (0, 1) if none of these has both numbers. DatasetError if only one option is given.
    """
    if (options.shard_index, options.num_shards) != (None, None):
        return position_of(_WHERE, options.shard_index, options.num_shards)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    variables = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    rank, size = (int(value) if value and value.isdecimal() else None for value in variables)
    return (0, 1) if rank is None or size is None else (rank, size)
