"""Batches on a CUDA device: copied on a stream of their own, from memory that the device reads.

Copies run at the same time as the training step, because they are on another stream. Three things
may not happen too early, and each waits for an event of CUDA:

* Training uses a batch after its copy: the stream of training waits for the event of the copy. The
  processor does not wait.
* The memory of the batch in this process is used again after its copy: `Transfers` holds the arrays
  until the event of the copy is reached.
* The same holds for a batch that the user copies (`pin_memory`): when its last array is
  gone, `fence` records an event on the current stream, after the copy.

Slots of workers are registered as pinned memory when they are first used. torch allocates the
memory of batches that threads fill.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from shardprep.reader.array_types import Bytes
from shardprep.reader.arrays.memory import HostMemory
from shardprep.reader.config import warn
from shardprep.reader.torch.transform import mapped

_CUDA: Any = torch.cuda  # which has no types
_PAGE_BYTES = 1 << 20
"""Slots are registered in units of this size, so batches of nearly equal size do it once."""


class Cuda:
    """Functions of CUDA that this module calls."""

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
        """Let the current stream wait for copies, and the allocator keep them until it is done."""
        current = _CUDA.current_stream(self._device)
        current.wait_event(event)
        for copy in copies:
            copy.record_stream(current)

    def event(self) -> Any:
        """Return an event on the current stream, after all that it has to do."""
        event = _CUDA.Event()
        event.record(_CUDA.current_stream(self._device))
        return event

    def pinned(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def register(self, address: int, num_bytes: int) -> int:
        """Register memory as pinned; return 0 or the number of an error."""
        return int(_CUDA.cudart().cudaHostRegister(address, num_bytes, 0))

    def unregister(self, address: int) -> None:
        _CUDA.cudart().cudaHostUnregister(address)

    def synchronize(self) -> None:
        """Wait until the device has done all that was begun."""
        _CUDA.synchronize(self._device)


class PinnedMemory(HostMemory):
    """Memory that a CUDA device reads by itself."""

    def __init__(self, cuda: Cuda, *, by_user: bool) -> None:
        """With `by_user`, the user copies batches to the device, on the current stream."""
        self._cuda, self._by_user = cuda, by_user
        self._registered: dict[int, tuple[int, memoryview]] = {}
        """Address → number of registered bytes, and the memory, which lives as long."""
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
    """Copies of batches to a device."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._held = deque[tuple[Any, Any]]()
        """Events of copies, and the batches in this process that they read."""
        weakref.finalize(self, _drain, self._held).atexit = False

    def begin(self, element: Any) -> Transfer:
        """Begin to copy the tensors of a batch."""
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
        """Return a batch that training may use: its stream waits for the copy."""
        self._cuda.wait(transfer.event, transfer.copies)
        return transfer.element


def _drain(held: deque[tuple[Any, Any]]) -> None:
    while held:
        event, _ = held[0]
        event.synchronize()
        held.popleft()


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
