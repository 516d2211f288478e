"""An iterator whose place is a few numbers: an epoch goes on with exactly the batches it had left.

No buffer is stored. The order is a function of (seed, epoch), so the place is found by arithmetic,
and what came before is not read again.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shardprep.errors import DatasetError
from shardprep.reader.arguments import checked_state
from shardprep.reader.tf.batching import num_batches
from shardprep.reader.tf.pipeline import make_dataset
from shardprep.reader.tf.records import Cursor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardprep.reader.opening import Opened
    from shardprep.reader.options import ReadConfig, Request

_STATE = "reader.iterate.load_state_dict"
_HINT = "load it with the dataset and the arguments it was saved with"


class Batches:
    """The batches of one epoch after the other: each `for` loop is (the rest of) an epoch."""

    def __init__(self, opened: Opened, request: Request, config: ReadConfig) -> None:
        """Start before the first batch of epoch 0; without a seed, with one that is drawn."""
        seed = secrets.randbits(31) if request.seed is None else request.seed
        self._opened = opened
        self._request = replace(request, seed=seed)
        self._config = config
        self._epoch = 0
        self._batch = 0
        self._dataset: Any = None
        self._num_batches = num_batches(opened, request, config)

    def __len__(self) -> int:
        """Return the batches of an epoch."""
        return self._num_batches

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of this epoch that are left; with the last one the epoch ends."""
        if self._dataset is None:
            self._dataset = make_dataset(self._opened, self._request, self._config, self._cursor)
        batches = iter(self._dataset) if self._batch < self._num_batches else iter(())
        while self._batch < self._num_batches:
            batch = next(batches)
            self._batch += 1  # before the batch is out: a state that is saved in the loop counts it
            yield batch
        self._epoch, self._batch = self._epoch + 1, 0

    def state_dict(self) -> dict[str, int | str]:
        """Return where this is: seed, epoch, batches of it that are out, and what it is of."""
        return {
            "seed": int(self._request.seed or 0),
            "epoch": self._epoch,
            "batch": self._batch,
            "of": self._fingerprint(),
        }

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Go to where another one was; not inside a loop over these.

        Raises:
            DatasetError: the state is none, or of other records, batches or order.

        """
        given = checked_state(_STATE, state)
        if given["of"] != self._fingerprint():
            raise DatasetError(_STATE, "the state is of other batches", _HINT)
        if given["batch"] > self._num_batches:
            what = f"batch={given['batch']} of an epoch of {self._num_batches}"
            raise DatasetError(_STATE, what, _HINT)
        if given["seed"] != self._request.seed:
            self._request = replace(self._request, seed=given["seed"])
            self._dataset = None
        self._epoch, self._batch = given["epoch"], given["batch"]

    def _cursor(self) -> Cursor:
        return Cursor(self._epoch, self._batch * (self._request.batch_size or 1))

    def _fingerprint(self) -> str:
        """Return what the order and size of batches follow from, but for the seed."""
        shards = self._opened.shards
        request, config = self._request, self._config
        parts = (
            [(shards[one.shard].sha256, one.skip, one.take) for one in self._opened.slices],
            (request.batch_size, request.shuffle, request.drop_remainder),
            (config.interleave_cycle_length, config.interleave_block_length),
            config.shuffle_reshuffle_each_iteration,
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
