"""The batches of `reader.iterate`: a resumed epoch yields exactly the batches that were left.

The state is a few numbers and no buffer. The order is a function of (seed, epoch), so an epoch can
begin at any batch, and the records of earlier batches are not read again.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from shardprep.reader.config import Request, seed_of
from shardprep.reader.order.order import State, check_state, identity
from shardprep.reader.tf.finish import num_batches
from shardprep.reader.tf.pipeline import make_dataset, opened
from shardprep.reader.tf.python_calls import own_error
from shardprep.reader.tf.records import Cursor


@dataclass(slots=True)
class _Place:
    """Position of an iteration. The dataset calls `cursor` when an iteration begins."""

    batch_size: int
    epoch: int = 0
    batch: int = 0
    """Number of batches of this epoch that were drawn."""
    is_begun: bool = False
    """Whether an iteration has begun since `go_to`."""

    def go_to(self, epoch: int, batch: int = 0) -> None:
        """Let the next iteration begin at this batch."""
        self.epoch, self.batch, self.is_begun = epoch, batch, False

    def cursor(self) -> Cursor:
        """Return the start of the iteration that TensorFlow begins now."""
        if self.is_begun:  # its batches were not counted: it was an epoch of `fit`
            self.go_to(self.epoch + 1)
        self.is_begun = True
        return Cursor(self.epoch, self.batch * self.batch_size)


class Batches(tf.data.Dataset):  # type: ignore[misc]  # TensorFlow carries no types
    """The batches of all epochs: each `for` loop yields an epoch, or the rest of a resumed one.

    This class is a `tf.data.Dataset`, so `fit` takes it. Batches that TensorFlow draws for `fit`
    are not counted here: each iteration of `fit` is an epoch, and `ResumeInEpoch` counts the steps.
    """

    class_names: list[str]
    """Names of the classes, in the order of their numbers."""
    seed: int | None

    def __init__(self, request: Request) -> None:
        """Begin at the first batch of epoch 0. Without a seed in the request, draw one."""
        self._source = opened(request)
        subset = self._source.subset
        self.class_names = subset.class_names
        self.seed = request.seed
        self._request = replace(request, seed=seed_of(request.seed, subset.batches.num_hosts))
        self._num_own_batches = num_batches(subset, request)
        self._place = _Place(request.batch_size or 1)
        self._make()

    def __len__(self) -> int:
        return self._num_own_batches

    def __iter__(self) -> Any:
        """Return an iterator over an epoch, or over the rest of a resumed one."""
        iterator = super().__iter__()
        base: Any = type(iterator)
        iterator.__class__ = _counting(base)
        iterator.batches = self
        return iterator

    def cardinality(self) -> Any:
        """Return the number of batches of an epoch as a tensor, int64."""
        return tf.constant(len(self), tf.int64)

    @property
    def element_spec(self) -> Any:
        return self._dataset.element_spec

    @property
    def is_begun(self) -> bool:
        """Whether an iteration has begun since the start, or since the last loaded state."""
        return self._place.is_begun

    def state_dict(self) -> dict[str, int | str]:
        """Return the state: seed, epoch, number of batches drawn from it, and identity."""
        seed = self._request.seed or 0
        place = self._place
        return State(seed, place.epoch, place.batch, self._identity()[0])._asdict()

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Continue after the batches that a state counts. Do not call this in a loop over batches.

        Raises:
            DatasetError: the argument is not a state, or is of other records, batches or order.
        """
        place = check_state("reader.iterate.load_state_dict", state, *self._identity())
        if place.seed != self._request.seed:
            self._request = replace(self._request, seed=place.seed)
            self._make()
        self._place.go_to(place.epoch, place.batch)

    def drawn(self, draw: Any, *, is_first: bool) -> Any:
        """Return the batch of `draw()` and count it; raise StopIteration at the end of the epoch.

        An error of shardprep in the pipeline is raised as it is, without the text of TensorFlow.

        `is_first` is True at the first call for an iterator.
        """
        place, end = self._place, len(self)
        if is_first and place.is_begun and place.batch >= end:
            place.go_to(place.epoch + 1)  # the previous iterator was left at its last batch
        if is_first:
            place.is_begun = False
        if place.batch >= end:
            place.go_to(place.epoch + 1)
            raise StopIteration
        try:
            batch = draw()
        except tf.errors.OpError as error:
            if (own := own_error(error)) is error:
                raise
            raise own from None
        place.batch += 1  # before the batch is returned: a state saved in the loop counts it
        return batch

    def _make(self) -> None:
        self._dataset = make_dataset(self._source, self._request, self._place.cursor)
        super().__init__(tf.data.experimental.to_variant(self._dataset))

    def _inputs(self) -> list[Any]:
        return [self._dataset]

    def _identity(self) -> tuple[str, int]:
        """Return the identity of the global batches, and the number of batches of an epoch."""
        subset, drop = self._source.subset, self._request.drop_remainder
        order = subset.order(self._request)
        return identity(subset.digest, order, drop=drop), order.num_batches(drop=drop)


@functools.cache
def _counting(base: Any) -> Any:
    """Return a subclass of `base`, a private iterator class of TensorFlow, that counts batches.

    Batches that a compiled function draws are not counted.
    """

    def following(self: Any) -> Any:
        is_first, self.is_drawn = not getattr(self, "is_drawn", False), True
        return self.batches.drawn(lambda: base.__next__(self), is_first=is_first)

    return type(base.__name__, (base,), {"__next__": following})
