"""The worker processes of a reader, and the batches that they fill for this process.

This process only receives an answer for each batch. A worker that dies is replaced. If no message
arrives for `_SILENT_S` while a batch is awaited, all busy or starting workers are replaced. Batches
of replaced workers go to other workers; a batch that ends two workers is an error. A worker has at
most `BEGUN` batches, and the others wait here, because training takes batches in order.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any

from shardprep import processes as worker_process
from shardprep.errors import DatasetError, RecordError, counted
from shardprep.reader.arrays.batch_maker import BatchName, BatchSource
from shardprep.reader.arrays.memory import Slots
from shardprep.reader.arrays.worker import BEGUN, Answer, Parcel, Task, serve, unpacked
from shardprep.reader.config import warn

_SILENT_S = 300.0
"""Seconds without a message until workers are replaced: longer than slow storage needs."""
_END_S = 10.0
"""Maximum seconds to wait for the end of a process that has closed its pipe."""
_MOST_FAILED_STARTS = 3
_WHERE = "reader"
_USE_THREADS = "give num_workers=0 (for reader.load, in its read_config)"


class StartError(DatasetError):
    """Workers cannot be started, and all were ended. Threads can fill the batches instead."""


class Ticket:
    """A batch that a worker fills. The ticket owns the slot until the values are taken."""

    def __init__(self, pool: WorkerPool, task: Task) -> None:
        self.task = task
        self.answer: Answer | None = None
        self.num_deaths = 0
        self._pool = weakref.proxy(pool)  # the pool holds the ticket until it is answered
        self._slots: Slots | None = pool.slots
        """None when the slot belongs to an array."""
        self._values: Any = None

    @property
    def is_complete(self) -> bool:
        self._pool.receive()
        return self.answer is not None and self.answer.error is None

    def result(self) -> Any:
        if self._values is None:
            answer = self._pool.answer_to(self)
            if answer.error is not None:
                raise answer.error
            assert self._slots is not None  # noqa: S101 - no values were taken
            num_bytes = max((stop for _, stop in answer.places), default=0)
            memory, self._slots = self._slots.array(self.task.slot, num_bytes), None
            self._values = unpacked(answer, memory)
        return self._values

    def __del__(self) -> None:
        if self._slots is not None:
            self._slots.give_back(self.task.slot)


class _Worker:
    """A process, and the tickets that it has not answered yet, oldest first."""

    def __init__(self, pool: WorkerPool) -> None:
        context = worker_process.start_server(pool.preloaded)
        self.pipe, theirs = context.Pipe()
        self.tickets: list[Ticket] = []
        self.is_up = False
        arguments = theirs, pool.parcel, pool.slots.file, pool.slots.slot_bytes, dict(os.environ)
        self.process: BaseProcess = context.Process(
            target=serve, args=arguments, name="shardprep reader", daemon=True
        )
        self.process.start()
        theirs.close()

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


class WorkerPool:
    """Worker processes that fill batches, started at once. Thread-safe."""

    def __init__(
        self,
        source: BatchSource,
        num_workers: int,
        slots: Slots,
        note: Callable[[int, RecordError], None],
    ) -> None:
        """Start the workers. `note` gets each bad record that a worker has replaced."""
        self._source, self._note, self.slots = source, note, slots
        self.parcel = Parcel.of(source)
        used = (serve, *filter(None, [source.transform]))
        self.preloaded = [getattr(one, "__module__", type(one).__module__) for one in used]
        self._changed = threading.Condition(threading.Lock())
        """Guards the attributes below. Waiting threads are notified when messages arrive."""
        self._is_listening = False
        """Whether a thread waits for messages; it does not hold the lock then."""
        self._num_failed_starts = 0
        self._has_advised = False
        self._waiting: list[Ticket] = []
        """Batches in order, for the next workers with fewer than `BEGUN` batches."""
        self._workers: list[_Worker] = []
        weakref.finalize(self, _end, self._workers, os.getpid())
        weakref.finalize(self, self.parcel.file.close)
        for _ in range(num_workers):
            self._workers.append(_Worker(self))

    @property
    def has_room(self) -> bool:
        """Whether a worker can take a batch soon: all are ready, or ready ones have room left."""
        with self._changed:
            if not (self._with_room() and all(worker.is_up for worker in self._workers)):
                self._receive(0.0)
            are_up = bool(self._workers) and all(worker.is_up for worker in self._workers)
            return are_up or len(self._with_room()) > len(self._waiting)

    def _with_room(self) -> list[_Worker]:
        return [one for one in self._workers if one.is_up and len(one.tickets) < BEGUN]

    def begin(self, name: BatchName) -> Ticket:
        with self._changed:
            ticket = Ticket(self, Task(name, self.slots.take()))
            self._waiting.append(ticket)
            self._assign()
        return ticket

    def answer_to(self, ticket: Ticket) -> Answer:
        """Wait for the answer to a ticket and return it; report its bad records and warnings."""
        with self._changed:
            while ticket.answer is None:
                if self._receive(_SILENT_S):
                    continue
                for worker in tuple(self._workers):
                    if worker.tickets or not worker.is_up:
                        self._replace(worker, f"sent no message for {_SILENT_S:g} s")
        for number, error in ticket.answer.bad:
            self._note(number, error)
        for line in ticket.answer.advice[: not self._has_advised]:
            self._has_advised = True
            warn(line)
        return ticket.answer

    def receive(self) -> None:
        with self._changed:
            self._receive(0.0)

    def _receive(self, timeout_s: float) -> bool:
        """Handle messages; return False only if this thread waited `timeout_s` and none came.

        The caller has the lock. If another thread is listening already, return True after it has
        received something (at once if `timeout_s` is 0): this thread must not replace the
        processes that the other one listens to.
        """
        if self._is_listening:
            if timeout_s:
                self._changed.wait()
            return True
        workers = {one.pipe: one for one in self._workers}
        self._is_listening = True
        self._changed.release()
        try:
            ready = connection.wait(list(workers), timeout_s)
        finally:
            self._changed.acquire()
            self._is_listening = False
            self._changed.notify_all()
        for pipe in ready:
            worker = workers[pipe]  # type: ignore[index]
            try:
                self._handle(worker)
            except (EOFError, OSError):
                worker.process.join(_END_S)
                self._replace(worker, worker_process.cause_of_death(worker.process.exitcode))
        return bool(ready)

    def close(self) -> None:
        _end(self._workers, os.getpid())

    def _handle(self, worker: _Worker) -> None:
        if not worker.is_up:
            if problem := worker.pipe.recv_bytes():
                raise self._given_up(f"a worker cannot start ({problem.decode()})", "")
            worker.is_up, self._num_failed_starts = True, 0
        else:
            answer: Answer = worker.pipe.recv()
            worker.tickets.pop(0).answer = answer
        self._assign()

    def _assign(self) -> None:
        while self._waiting and (free := self._with_room()):
            worker, ticket = min(free, key=lambda one: len(one.tickets)), self._waiting.pop(0)
            worker.tickets.append(ticket)
            with suppress(OSError):  # it died; `receive` handles that
                worker.pipe.send(ticket.task)

    def _replace(self, worker: _Worker, how: str) -> None:
        worker.end()
        self._num_failed_starts += not worker.is_up
        if self._num_failed_starts == _MOST_FAILED_STARTS:
            what = f"a worker could not be started in {_MOST_FAILED_STARTS} attempts ({how})"
            raise self._given_up(what, "free some memory, or ")
        for ticket in worker.tickets:
            ticket.num_deaths += 1
            if ticket.num_deaths == 2:
                ticket.answer = Answer(error=self._lost(ticket.task, how))
        self._workers[self._workers.index(worker)] = _Worker(self)
        self._waiting[:0] = [ticket for ticket in worker.tickets if ticket.answer is None]
        self._assign()

    def _given_up(self, what: str, hint: str) -> StartError:
        """End the workers; return the error, which also becomes the answer of all open tickets."""
        error = StartError(_WHERE, what, f"{hint}{_USE_THREADS}")
        for ticket in [*self._waiting, *(one for own in self._workers for one in own.tickets)]:
            ticket.answer = Answer(error=error)
        self.close()  # threads fill the next batches
        return error

    def _lost(self, task: Task, how: str) -> DatasetError:
        order, records = self._source.order, self._source.records
        rows = order.rows(self._source.tags(task.name)).tolist()
        name, record, _ = records.place(rows[0])
        others = f" and {counted(len(rows) - 1, 'other')} of its batch" if len(rows) > 1 else ""
        where = f"{records.store.located(name)}, record {record}{others}"
        what = f"worker processes ended twice with this batch ({how})"
        return DatasetError(where, what, f"{_USE_THREADS} to see why")


def _end(workers: list[_Worker], owner: int) -> None:
    if os.getpid() == owner:  # not in a process that was forked from the owner
        while workers:
            workers.pop().end()
