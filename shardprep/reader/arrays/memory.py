"""Memory of batches that is used again and again.

A piece of memory is free when the last array in it is gone. A copy to a device may still be reading
it then, if the device reads memory by itself. So a piece is used again only when the copies that
had begun have ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from shardprep.reader.array_types import Bytes

ALIGNMENT = 64
"""Alignment in bytes of the arrays that TensorFlow uses without a copy."""
_Piece = TypeVar("_Piece")


def _has_ended() -> bool:
    return True


class HostMemory:
    """Ordinary memory. Subclasses have memory that a device reads by itself."""

    def allocate(self, num_bytes: int) -> Bytes:
        """Return uninitialized, aligned memory."""
        memory = np.empty(num_bytes + ALIGNMENT, np.uint8)
        begin = -memory.ctypes.data % ALIGNMENT
        return memory[begin : begin + num_bytes]

    def pin(self, memory: memoryview, num_bytes: int) -> None:
        """Let the device read the first bytes of shared memory by itself."""

    def fence(self) -> Callable[[], bool]:
        """Return a function: whether all copies to the device that have begun have ended."""
        return _has_ended

    def release(self) -> None:
        """Let the device read this memory no longer; wait for its copies."""


class FreePieces(Generic[_Piece]):
    """Pieces of memory without arrays; some may still be read by copies."""

    def __init__(self, memory: HostMemory, most: int | None = None) -> None:
        """Keep `most` pieces, and drop others."""
        self._memory = memory
        self._pieces = deque[tuple[_Piece, Callable[[], bool]]](maxlen=most)

    def __len__(self) -> int:
        return len(self._pieces)

    def add(self, piece: _Piece) -> None:
        """Free a piece whose arrays are gone."""
        self._pieces.append((piece, self._memory.fence()))

    def add_unread(self, piece: _Piece) -> None:
        """Free a piece that never had an array."""
        self._pieces.append((piece, _has_ended))

    def take(self) -> _Piece | None:
        """Return the last free piece that no copy reads; None if every piece is used or read."""
        read, found = [], None
        while self._pieces and found is None:
            piece, has_ended = self._pieces.pop()
            if has_ended():
                found = piece
            else:
                read.append((piece, has_ended))
        self._pieces.extend(reversed(read))
        return found
