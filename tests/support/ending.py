"""Ends of a build before its time: a watcher that has seen enough, an image that kills."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.builders import Quiet

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardprep.writer.encode.chunk import ChunkTask, EncodedChunk
    from shardprep.writer.encode.chunk_encoder import ChunkEncoder


class StoppedError(Exception):
    """Stands for whatever ends a run."""


class StopAfter(Quiet):
    """A watcher that ends the run after some items."""

    def __init__(self, num_items: int) -> None:
        """End it after this many."""
        super().__init__()
        self.left = num_items

    def advance(self, number: int, num_rejected: int = 0) -> None:
        """Count the items."""
        super().advance(number, num_rejected)
        self.left -= number
        if self.left <= 0:
            raise StoppedError


@dataclass(frozen=True)
class Deadly:
    """Encodes as ever, but one image ends the process that touches it."""

    encoder: ChunkEncoder
    key: str

    @property
    def is_annotated(self) -> bool:
        """Whether the records have boxes or masks."""
        return self.encoder.is_annotated

    def __call__(self, task: ChunkTask, before_item: Callable[[], None]) -> EncodedChunk:
        """Encode the task, or die."""
        if any(item.key == self.key for item in task.items):
            os.kill(os.getpid(), signal.SIGSEGV)
        return self.encoder(task, before_item)
