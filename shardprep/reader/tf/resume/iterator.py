"""An iterator whose place is a few numbers: an epoch goes on with exactly the batches it had left.

No buffer is stored. The order is a function of (seed, epoch), so the place is found by arithmetic,
and what came before is not read again.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from shardprep.reader.config import draw_seed
from shardprep.reader.order.iterator_state import Batching, State, check_state, identity
from shardprep.reader.tf.batching import num_batches
from shardprep.reader.tf.pipeline import make_dataset, opened
from shardprep.reader.tf.records import Cursor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardprep.reader.config import Request


@dataclass(slots=True)
class _Place:
    """Where an iteration is; apart from what is iterated, of which this is a part."""

    batch_size: int
    epoch: int = 0
    batch: int = 0
    """Batches of this epoch that are out."""
    is_begun: bool = False
    """Whether something has drawn from here since it was set."""

    def go_to(self, epoch: int, batch: int = 0) -> None:
        """Stand before a batch that nothing has drawn."""
        self.epoch, self.batch, self.is_begun = epoch, batch, False

    def cursor(self) -> Cursor:
        """Return where an iteration begins that TensorFlow begins just now."""
        if self.is_begun:  # and nobody counted what was drawn: that was an epoch of `fit`
            self.go_to(self.epoch + 1)
        self.is_begun = True
        return Cursor(self.epoch, self.batch * self.batch_size)


class Batches(tf.data.Dataset):  # type: ignore[misc]  # TensorFlow carries no types
    """The batches of one epoch after the other: each `for` loop is (the rest of) an epoch.

    It is a `tf.data.Dataset`, so `fit` takes it. TensorFlow draws for `fit`, out of sight of the
    place: each iteration of it is an epoch, and `ResumeInEpoch` says how far it came.
    """

    class_names: list[str]
    """Names of the classes, in the order of their numbers."""
    seed: int | None
    """The seed that was asked for."""

    def __init__(self, request: Request) -> None:
        """Start before the first batch of epoch 0; without a seed, with one that is drawn."""
        self._source = opened(request)
        self._subset = subset = self._source.subset
        self.class_names = subset.class_names
        self.seed = request.seed
        self._request = replace(request, seed=draw_seed() if request.seed is None else request.seed)
        self._batching = Batching(
            request.batch_size or 1,
            request.drop_remainder,
            request.window,
            num_batches(subset, request),
        )
        self._place = _Place(self._batching.batch_size)
        self._make()

    def __len__(self) -> int:
        """Return the batches of an epoch."""
        return self._batching.num_batches

    def __iter__(self) -> Any:
        """Return an iterator of the batches of this epoch that are left; its end is the epoch's."""
        iterator = super().__iter__()
        base: Any = type(iterator)
        iterator.__class__ = _counting(base)
        iterator.batches = self
        return iterator

    def cardinality(self) -> Any:
        """Return the batches of an epoch as a tensor, int64."""
        return tf.constant(len(self), tf.int64)

    @property
    def element_spec(self) -> Any:
        """Types and shapes of a batch, as `tf.data.Dataset.element_spec`."""
        return self._made.element_spec

    @property
    def is_begun(self) -> bool:
        """Whether something has drawn from the place since it was set."""
        return self._place.is_begun

    def state_dict(self) -> dict[str, int | str]:
        """Return where this is: seed, epoch, batches of it that are out, and what it is of."""
        seed = self._request.seed or 0
        place = self._place
        return State(seed, place.epoch, place.batch, self._identity())._asdict()

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Go to where another one was; not inside a loop over these.

        Raises:
            DatasetError: the state is none, or of other records, batches or order.

        """
        place = check_state(
            "reader.iterate.load_state_dict", state, self._identity(), self._batching
        )
        if place.seed != self._request.seed:
            self._request = replace(self._request, seed=place.seed)
            self._make()
        self._place.go_to(place.epoch, place.batch)

    def drawn(self, draw: Any, *, is_first: bool) -> Any:
        """Return the next batch, which `draw()` gives; StopIteration at the end of the epoch.

        `is_first` says that nothing was drawn from its iterator before.
        """
        place, end = self._place, len(self)
        if is_first and place.is_begun and place.batch == end:
            place.go_to(place.epoch + 1)  # whoever had the last batch did not ask for one more
        if is_first:
            place.is_begun = False
        if place.batch == end:
            place.go_to(place.epoch + 1)
            raise StopIteration
        batch = draw()
        place.batch += 1  # before the batch is out: a state that is saved in the loop counts it
        return batch

    def _make(self) -> None:
        self._made = make_dataset(self._source, self._request, self._place.cursor)
        super().__init__(tf.data.experimental.to_variant(self._made))

    def _inputs(self) -> list[Any]:
        return [self._made]

    def _identity(self) -> str:
        order = self._subset.order(self._request)
        return identity(self._subset.records.digest, order, self._batching)


@functools.cache
def _counting(base: Any) -> Any:
    """Return the class of iterators of TensorFlow's class that count what Python draws.

    TensorFlow's is not public. What a compiled function draws passes by here.
    """

    def following(self: Any) -> Any:
        is_first, self.is_drawn = not getattr(self, "is_drawn", False), True
        return self.batches.drawn(lambda: base.__next__(self), is_first=is_first)

    return type(base.__name__, (base,), {"__next__": following})
