"""A worker process of a reader: it fills batches in slots of shared memory.

The worker gets the `BatchSource` when it starts. It sends b"" when it is ready, or the text of an
error if the source cannot be loaded: a transform may need objects of the parent. Then each message
is a `Task`, and the answers come in the same order. A batch is sent as a pickle without its large
arrays, which are in the slot; the answer has their positions. Arrays that do not fit in the slot
are part of the pickle. So any texts, lists and arrays can be sent, and an array that fits is copied
at most once. The worker begins the next batch before it finishes the current one.
"""

from __future__ import annotations

import mmap
import os
import pickle
import traceback
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import prod
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from shardprep.errors import InternalError, RecordError, ShardprepError
from shardprep.processes import begin_forked
from shardprep.reader.array_types import Array, Bytes
from shardprep.reader.arrays.batch_maker import BatchMaker, BatchName, BatchSource, Filling
from shardprep.reader.arrays.memory import ALIGNMENT, SharedFile, WorkerSlots
from shardprep.reader.config import Advice

BEGUN = 2
"""Number of batches that a worker fills at the same time, so that its threads never wait."""
_SMALL_BYTES = 1024
"""Arrays of fewer bytes are part of the pickle."""


Places: TypeAlias = tuple[tuple[int, int], ...]
"""Start and stop of each array of a pickle, in bytes of its slot or file."""


class Task(NamedTuple):
    """Message to a worker: fill a batch in a slot."""

    name: BatchName
    slot: int


class Answer(NamedTuple):
    """Message from a worker: the batch that it filled, or the error that ended the batch."""

    pickled: bytes = b""
    places: Places = ()
    bad: tuple[tuple[int, RecordError], ...] = ()
    """Number and error of each record that was replaced."""
    advice: tuple[str, ...] = ()
    error: Exception | None = None


class Parcel(NamedTuple):
    """A pickled value and its arrays in a file, which workers map and do not copy."""

    file: SharedFile
    places: Places
    """Start and stop of the pickle in the file, then of each array."""

    @classmethod
    def of(cls, value: object) -> Parcel:
        buffers: list[pickle.PickleBuffer] = []
        data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        file, places, start = SharedFile.new(), list[tuple[int, int]](), 0
        for part in (memoryview(data), *(buffer.raw() for buffer in buffers)):
            places.append((start, start + part.nbytes))
            done = 0
            while done < part.nbytes:
                done += os.pwrite(file.descriptor, part[done:], start + done)
            start += -(-part.nbytes // ALIGNMENT) * ALIGNMENT
        return cls(file, tuple(places))

    def opened(self) -> Any:
        memory = memoryview(mmap.mmap(self.file.descriptor, 0, access=mmap.ACCESS_READ))
        data, *buffers = [memory[start:stop] for start, stop in self.places]
        return pickle.loads(data, buffers=buffers)  # noqa: S301 - this program wrote it


def serve(
    pipe: Connection, parcel: Parcel, file: SharedFile, slot_bytes: int, environment: dict[str, str]
) -> None:
    """Fill batches until the parent closes the pipe; `environment` is as in `begin_forked`."""
    begin_forked(environment)
    with suppress(EOFError, OSError):  # the parent has gone
        try:
            source = parcel.opened()
        except Exception as error:
            pipe.send_bytes(f"{type(error).__name__}: {error}".encode())
            return
        worker = _Worker(source, WorkerSlots(file, slot_bytes))
        pipe.send_bytes(b"")
        begun: deque[Callable[[], Answer]] = deque()
        while True:
            while not begun or (len(begun) < BEGUN and pipe.poll()):
                begun.append(worker.begin(pipe.recv()))
            pipe.send(begun.popleft()())


class _Worker:
    def __init__(self, source: BatchSource, slots: WorkerSlots) -> None:
        self._slots = slots
        self._in_slots = source.transform is None
        self._bad: list[tuple[int, RecordError]] = []
        num_kept = 0 if self._in_slots else BEGUN
        # A second thread would wait for the interpreter lock: 3% of the time for a 224x224 JPEG.
        # So with one thread, this thread fills the batch, in `finish`.
        num_threads = source.options.num_threads or 1
        num_beside = 0 if num_threads == 1 else num_threads
        self._maker = BatchMaker(source, num_beside, num_kept, lambda *bad: self._bad.append(bad))
        self._advice: list[str] = []
        warnings.simplefilter("always", Advice)
        warnings.showwarning = self._show  # type: ignore[assignment]

    def begin(self, task: Task) -> Callable[[], Answer]:
        """Begin a batch; return the function that finishes it."""
        slot = self._slots.array(task.slot)
        new_images = partial(_placed, slot) if self._in_slots else None
        try:
            filling = self._maker.begin(task.name, new_images)
        except Exception as error:
            answer = Answer(error=_sendable(error))
            return lambda: answer
        return lambda: self._finish(filling, slot)

    def _finish(self, filling: Filling, slot: Bytes) -> Answer:
        try:
            values = self._maker.finish(filling)
        except Exception as error:
            return self._answer(error=_sendable(error))
        try:
            values = self._maker.transformed(filling, values)
        except Exception as error:
            return self._answer(error=_of_transform(error))
        return self._answer(*_packed(values, slot))

    def _answer(
        self, pickled: bytes = b"", places: Places = (), error: Exception | None = None
    ) -> Answer:
        answer = Answer(pickled, places, tuple(self._bad), tuple(self._advice), error)
        self._bad.clear()
        self._advice.clear()
        return answer

    def _show(self, message: Warning, category: type[Warning], *_: object) -> None:
        if issubclass(category, Advice):
            self._advice.append(str(message))


def _placed(slot: Bytes, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return uninitialized memory for the images of a batch, at the start of a slot if they fit."""
    num_bytes = prod(shape) * np.dtype(dtype).itemsize
    if num_bytes > len(slot):
        return np.empty(shape, dtype)
    memory: Array = slot[:num_bytes].view(dtype).reshape(shape)
    return memory


def _packed(values: Any, slot: Bytes) -> tuple[bytes, Places]:
    """Return a pickle of a batch without its large arrays, and their (start, stop) in the slot.

    Arrays outside the slot are copied into it. Small arrays, and arrays that do not fit, stay in
    the pickle.
    """
    base, places = slot.ctypes.data, list[tuple[int, int]]()
    found: list[tuple[Bytes, int]] = []

    def in_pickle(buffer: pickle.PickleBuffer) -> bool:
        data = np.frombuffer(buffer.raw(), np.uint8)
        start = data.ctypes.data - base
        if 0 <= start < len(slot):
            places.append((start, start + len(data)))
            return False
        if len(data) < _SMALL_BYTES:
            return True
        stop = max((stop for _, stop in places), default=0)
        start = -(-stop // ALIGNMENT) * ALIGNMENT
        if start + len(data) > len(slot):
            return True
        places.append((start, start + len(data)))
        found.append((data, start))
        return False

    if isinstance(values, dict):
        values = _images_first(values, slot)
    pickled = pickle.dumps(values, protocol=5, buffer_callback=in_pickle)
    for data, start in found:
        slot[start : start + len(data)] = data
    return pickled, tuple(places)


def _images_first(values: dict[str, Any], slot: Bytes) -> dict[str, Any]:
    is_placed = {
        name: isinstance(value, np.ndarray) and np.may_share_memory(value, slot)
        for name, value in values.items()
    }
    return dict(sorted(values.items(), key=lambda one: not is_placed[one[0]]))


def unpacked(answer: Answer, slot: Bytes) -> Any:
    """Return the batch of an answer, whose arrays use the memory of the slot."""
    buffers = [slot[start:stop] for start, stop in answer.places]
    return pickle.loads(answer.pickled, buffers=buffers)  # noqa: S301 - a worker of ours sent it


def _sendable(error: Exception) -> Exception:
    if isinstance(error, ShardprepError | OSError | MemoryError):
        return error
    what = f"a worker failed: {type(error).__name__}: {error}"
    return InternalError("reader", what, "this is a bug in shardprep: please report it")


def _of_transform(error: Exception) -> Exception:
    """Return an error of a transform, with its traceback as a note, in a form that can be sent."""
    error.add_note("".join(["in a worker process:\n", *traceback.format_exception(error)]))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - as the parent will read it
    except Exception:
        return RuntimeError("\n".join([f"{type(error).__name__}: {error}", *error.__notes__]))
    return error
