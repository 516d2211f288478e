"""Reuse the memory of batches, in this process or shared with workers.

A piece of memory is free when its last array is deleted. A copy to a device may still read from the
piece then. So the piece is used again only after all copies that had begun have ended.

Worker processes and this process share memory in slots of one size: a slot for a batch. The
`Ticket` of the batch (`worker_pool`) owns the slot until its values are taken, then their array
does. Slots are in a file without a name, so nothing is left after the processes end, and a small
/dev/shm does not matter. If no slot is free, their number is doubled; unwritten pages take no
memory. Workers map the whole file again when a slot is not in the part they have mapped.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections import deque
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any, Generic, TypeVar

import numpy as np

from shardprep.reader.array_types import Array, Bytes

ALIGNMENT = 64
"""Alignment in bytes of the arrays that TensorFlow uses without a copy."""
_Piece = TypeVar("_Piece")


def _has_ended() -> bool:
    return True


class HostMemory:
    """Allocator of ordinary memory. Subclasses allocate memory that a device can read by itself."""

    def allocate(self, num_bytes: int) -> Bytes:
        """Return uninitialized, aligned memory."""
        memory = np.empty(num_bytes + ALIGNMENT, np.uint8)
        begin = -memory.ctypes.data % ALIGNMENT
        return memory[begin : begin + num_bytes]

    def pin(self, memory: memoryview, num_bytes: int) -> None:
        """Let the device read the first `num_bytes` of shared memory; by default, do nothing."""

    def fence(self) -> Callable[[], bool]:
        """Return a predicate: True when all copies to the device begun so far have ended."""
        return _has_ended

    def release(self) -> None:
        """Wait for copies to the device, then end its access to memory; by default, do nothing."""


class FreePieces(Generic[_Piece]):
    """Pieces of memory that no array uses; copies to a device may still read some of them."""

    def __init__(self, memory: HostMemory, most: int | None = None) -> None:
        """Keep only the latest `most` pieces; None keeps all."""
        self._memory = memory
        self._pieces = deque[tuple[_Piece, Callable[[], bool]]](maxlen=most)

    def __len__(self) -> int:
        return len(self._pieces)

    def add(self, piece: _Piece) -> None:
        """Add a piece whose arrays were deleted."""
        self._pieces.append((piece, self._memory.fence()))

    def add_unread(self, piece: _Piece) -> None:
        """Add a piece that never had an array."""
        self._pieces.append((piece, _has_ended))

    def take(self) -> _Piece | None:
        """Remove and return the latest piece that no copy reads, or return None."""
        read, found = [], None
        while self._pieces and found is None:
            piece, has_ended = self._pieces.pop()
            if has_ended():
                found = piece
            else:
                read.append((piece, has_ended))
        self._pieces.extend(reversed(read))
        return found


class SharedFile:
    """An open file without a name, which a process can receive when it is started."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def new(cls) -> SharedFile:
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("shardprep"))
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self.descriptor),)

    def close(self) -> None:
        os.close(self.descriptor)


def _received(passed: Any) -> SharedFile:
    return SharedFile(passed.detach())


class Slots:
    """Slots in the process that assigns them to workers and reads the arrays in them."""

    def __init__(self, slot_bytes: int, number: int, memory: HostMemory) -> None:
        """Create `number` slots of at least `slot_bytes`; `memory` pins them when they are used."""
        page = mmap.ALLOCATIONGRANULARITY
        self.slot_bytes = -(-slot_bytes // page) * page
        self.file = SharedFile.new()
        self._slots: list[memoryview] = []
        self._memory = memory
        self._free = FreePieces[int](memory)
        weakref.finalize(self, self.file.close)
        self._map(0, number)

    def take(self) -> int:
        """Return a free slot. If none is free, double the number of slots first."""
        while (slot := self._free.take()) is None:
            self._map(len(self._slots), 2 * len(self._slots))
        return slot

    def give_back(self, slot: int) -> None:
        """Free a slot that never had an array."""
        self._free.add_unread(slot)

    def array(self, slot: int, num_bytes: int) -> Bytes:
        """Return the first bytes of a slot, pinned; the slot is freed when no view is left."""
        self._memory.pin(self._slots[slot], num_bytes)
        array = np.asarray(self._slots[slot][:num_bytes])
        weakref.finalize(array, self._free.add, slot).atexit = False
        return array

    def _map(self, first: int, stop: int) -> None:
        size, number = self.slot_bytes, stop - first
        os.ftruncate(self.file.descriptor, stop * size)
        whole = memoryview(mmap.mmap(self.file.descriptor, number * size, offset=first * size))
        self._slots += [whole[i * size : (i + 1) * size] for i in range(number)]
        for slot in range(first, stop):
            self._free.add_unread(slot)


class WorkerSlots:
    """Slots of a shared file, in a worker process."""

    def __init__(self, file: SharedFile, slot_bytes: int) -> None:
        self._file, self._slot_bytes = file, slot_bytes
        self._memory: Array = np.empty(0, np.uint8)

    def array(self, slot: int) -> Bytes:
        start = slot * self._slot_bytes
        if start >= len(self._memory):
            num_bytes = os.fstat(self._file.descriptor).st_size
            self._memory = np.frombuffer(mmap.mmap(self._file.descriptor, num_bytes), np.uint8)
        memory: Bytes = self._memory[start : start + self._slot_bytes]
        return memory
