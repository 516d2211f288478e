"""An iterator whose place is a few numbers: an epoch goes on with exactly the batches it had left.

No buffer is stored. The order is a function of (seed, epoch), so the place is found by arithmetic,
and what came before is not read again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shardprep.reader.options import draw_seed
from shardprep.reader.state import Batching, State, checked, identity
from shardprep.reader.subset import open_request
from shardprep.reader.tf.batching import num_batches
from shardprep.reader.tf.pipeline import make_dataset
from shardprep.reader.tf.records import Cursor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardprep.reader.options import Request


class Batches:
    """The batches of one epoch after the other: each `for` loop is (the rest of) an epoch."""

    def __init__(self, request: Request) -> None:
        """Start before the first batch of epoch 0; without a seed, with one that is drawn."""
        self._subset = subset = open_request(request)
        self.class_names = subset.class_names
        """Names of the classes, in the order of their numbers."""
        self._request = replace(request, seed=draw_seed() if request.seed is None else request.seed)
        self._epoch = 0
        self._batch = 0
        self._dataset: Any = None
        self._batching = Batching(
            request.batch_size or 1,
            request.drop_remainder,
            request.window,
            num_batches(subset, request),
        )

    def __len__(self) -> int:
        """Return the batches of an epoch."""
        return self._batching.num_batches

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of this epoch that are left; with the last one the epoch ends."""
        batches = iter(self._made()) if self._batch < len(self) else iter(())
        while self._batch < len(self):
            batch = next(batches)
            self._batch += 1  # before the batch is out: a state that is saved in the loop counts it
            yield batch
        self._epoch, self._batch = self._epoch + 1, 0

    @property
    def element_spec(self) -> Any:
        """Types and shapes of a batch, as `tf.data.Dataset.element_spec`."""
        return self._made().element_spec

    def state_dict(self) -> dict[str, int | str]:
        """Return where this is: seed, epoch, batches of it that are out, and what it is of."""
        seed = self._request.seed or 0
        return State(seed, self._epoch, self._batch, self._identity())._asdict()

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Go to where another one was; not inside a loop over these.

        Raises:
            DatasetError: the state is none, or of other records, batches or order.

        """
        place = checked("reader.iterate.load_state_dict", state, self._identity(), self._batching)
        if place.seed != self._request.seed:
            self._request = replace(self._request, seed=place.seed)
            self._dataset = None
        self._epoch, self._batch = place.epoch, place.batch

    def _made(self) -> Any:
        if self._dataset is None:
            self._dataset = make_dataset(self._subset, self._request, self._cursor)
        return self._dataset

    def _identity(self) -> str:
        order = self._subset.order(self._request)
        return identity(self._subset.records, order, self._batching)

    def _cursor(self) -> Cursor:
        return Cursor(self._epoch, self._batch * self._batching.batch_size)
