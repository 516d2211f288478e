"""Batches decoded ahead of use: threads fill arrays while the one before is trained on.

Order and content do not depend on threads.
"""

from __future__ import annotations

import itertools
import warnings
from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from shardprep.dataset.schema import BOX, IMAGE
from shardprep.errors import DatasetError, RecordError
from shardprep.machine import usable_cores
from shardprep.reader.array_types import Columns
from shardprep.reader.arrays.buffers import IMAGES_A_TURN, Filler, Filling
from shardprep.reader.config import BatchOptions
from shardprep.reader.decode.annotations import boxes_as
from shardprep.reader.decode.crop import crop_keys
from shardprep.reader.decode.features import Examples
from shardprep.reader.decode.targets import Target
from shardprep.reader.order.iterator_state import Batching, State, checked, identity
from shardprep.reader.order.order import Order
from shardprep.reader.records.remote import NUM_READS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_STATE = "Dataset.batches.load_state_dict"


class Batches:
    """An iterator over batches; `Dataset.batches` makes it and says what it yields."""

    _place: int
    """Number of the batch to be handed out next, counted from that of epoch 0."""
    _upcoming: Iterator[int]
    """Numbers of the batches that nobody has begun to make."""
    _begun: deque[tuple[int, Filling]]
    """Batches being made or made, by number, in order."""

    def __init__(
        self,
        examples: Examples,
        target: Target,
        order: Order,
        batching: Batching,
        options: BatchOptions,
    ) -> None:
        self._examples = examples
        self._order = order
        self._batching = batching
        self._options = options
        self._target = target
        waiting = NUM_READS if examples.records.waits else 1
        num_threads = options.num_threads or max(usable_cores(), waiting)
        busy = -(-num_threads * IMAGES_A_TURN // batching.batch_size) + 1
        self._prefetch = max(2, busy) if options.prefetch is None else options.prefetch
        self._filler = Filler(
            examples,
            batch_size=min(batching.batch_size, len(order)),
            num_threads=num_threads,
            num_kept=self._prefetch + 2,
        )
        self._bad: dict[int, RecordError] = {}
        self._seek(0)

    @property
    def steps_per_epoch(self) -> int:
        """Batches an epoch."""
        return self._batching.num_batches

    @property
    def skipped(self) -> tuple[RecordError, ...]:
        """The bad records replaced so far, each once: file, record, offset and what is wrong."""
        return tuple(self._bad.values())

    def __len__(self) -> int:
        """Return the batches of all epochs, for progress bars; TypeError where they have no end."""
        if self._options.epochs is None:
            raise TypeError(
                "epochs=None has batches without end; steps_per_epoch counts those of one"
            )
        return self.steps_per_epoch * self._options.epochs

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        self._begin()
        if not self._begun:
            self.close()
            raise StopIteration
        place, filling = self._begun.popleft()
        try:
            columns = self._finished(filling)
        except BaseException:
            self._seek(self._place)  # an error leaves the iterator where it was
            raise
        self._place = place + 1
        return self._as_asked(columns)

    def state_dict(self) -> dict[str, Any]:
        """Return the place of the next batch, as values that JSON takes."""
        epoch, batch = divmod(self._place, self.steps_per_epoch or 1)
        return State(self._order.seed, epoch, batch, self._identity())._asdict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the place that another iterator of the same options was at.

        It may be one of `reader.iterate`. The seed is that of the state.

        Raises:
            DatasetError: it is no state, it was over other records, or its options gave other
                batches.

        """
        place = checked(_STATE, state, self._identity(), self._batching)
        num_epochs = self._options.epochs
        if num_epochs is not None and place.epoch > num_epochs:
            what = f"epoch={place.epoch} of {num_epochs}"
            raise DatasetError(_STATE, what, "make the iterator with as many epochs")
        self._order = replace(self._order, seed=place.seed)
        self._seek(place.epoch * self.steps_per_epoch + place.batch)

    def close(self) -> None:
        """Stop the threads and let go of what is made ahead; the iterator is at its end."""
        self._filler.close()
        self._begun.clear()
        self._upcoming = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _identity(self) -> str:
        return identity(self._examples.records.digest, self._order, self._batching)

    def _seek(self, place: int) -> None:
        epochs, steps = self._options.epochs, self.steps_per_epoch
        endless = epochs is None and steps > 0
        self._place = place
        self._upcoming = (
            itertools.count(place) if endless else iter(range(place, (epochs or 0) * steps))
        )
        self._begun = deque()

    def _begin(self) -> None:
        """See to it that `prefetch` batches are being made besides the one to be handed out."""
        size = self._batching.batch_size
        while len(self._begun) <= self._prefetch:
            place = next(self._upcoming, None)
            if place is None:
                return
            epoch, batch = divmod(place, self.steps_per_epoch)
            stop = min((batch + 1) * size, len(self._order))
            self._examples.records.expect(epoch, batch * size, stop)
            numbers, image_size = self._order.batch(epoch, batch, size)
            keys = [0] * len(numbers)
            if self._options.crop is not None:
                tags = self._order.tags(epoch, batch * size, numbers)
                keys = crop_keys(self._order.key, tags)
            self._begun.append((place, self._filler.begin(numbers.tolist(), keys, image_size)))

    def _finished(self, filling: Filling) -> Columns:
        """Wait for a batch; return it, good records in the place of bad ones if that is asked."""
        filling.wait()
        for row in sorted(filling.errors):
            if self._options.on_error == "raise":
                raise filling.errors[row]
            self._note(filling.numbers[row], filling.errors[row])
            records, columns = self._examples.records, filling.columns
            fill = partial(self._examples.fill, columns=columns, row=row, key=filling.keys[row])
            records.next_good(filling.numbers[row], fill, self._bad, self._note)
        return filling.columns

    def _note(self, number: int, error: RecordError) -> None:
        """Warn of a bad record, once."""
        if number not in self._bad:
            self._bad[number] = error
            warnings.warn(f"skipped: {error}", RuntimeWarning, stacklevel=4)

    def _as_asked(self, columns: Columns) -> Any:
        options, values = self._options, self._examples.values
        found: dict[str, Any] = columns
        if options.ragged:
            found = {name: _listed(column) for name, column in columns.items()}
        elif values.annotations.names:
            found = values.annotations.padded(columns)
        if BOX in found and options.box_format != "rel_yxyx":
            found = {**found, BOX: self._formatted(found[BOX], found[IMAGE])}
        if not options.as_supervised:
            return {name: found[name] for name in values.names}
        return self._target.pair(found[IMAGE], found)

    def _formatted(self, boxes: Any, images: Any) -> Any:
        """Return the boxes of a batch in the format that is asked for."""
        box_format, size = self._options.box_format, self._examples.values.image_size
        if not self._options.ragged:
            return boxes_as(boxes, box_format, size or images.shape[1:3])
        sizes = [size or image.shape[:2] for image in images]
        return [boxes_as(one, box_format, of) for one, of in zip(boxes, sizes, strict=True)]


def _listed(column: Any) -> Any:
    """Return a column whose rows differ in shape as a list."""
    return list(column) if column.dtype == object else column
