"""`Dataset.keras`: the batches of a `Dataset` for `fit`, `evaluate` and `predict` of Keras 3.

Keras draws items one after another, and `ArrayBatches` decodes ahead. The threads of Keras
(`workers`) are not used: they leave items that they drew ahead in the queue of the next epoch.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from shardprep.dataset.schema import ROWS
from shardprep.errors import DatasetError, counted
from shardprep.reader.arrays.batches import ArrayBatches
from shardprep.reader.config import KerasOptions, warn

try:
    import keras
except ModuleNotFoundError as error:
    what = f"needs {error.name}, which is not installed"
    hint = "install keras and a backend, and set the variable KERAS_BACKEND to its name"
    raise DatasetError("Dataset.keras", what, hint) from error


class KerasBatches(keras.utils.PyDataset):  # type: ignore[misc]  # keras carries no types
    """A Keras `PyDataset` of batches, as described in `Dataset.keras`.

    Item i is the i-th batch after the last loaded state or the last finished epoch. Items do not
    depend on the order of access, and several threads may read them.
    """

    def __init__(self, batches: ArrayBatches, options: KerasOptions, advice: Sequence[str]) -> None:
        """Take batches with `epochs=None`, and warnings of missing targets for `fit`.

        Item 0 is the first batch of epoch 0.
        """
        super().__init__()
        self._advice = () if options.sample_weight else advice
        self._batches = batches
        self._sample_weight = options.sample_weight
        self.seed = options.seed
        self._first = 0
        """Number of batches of this process before item 0, counted from epoch 0."""
        self.is_begun = False
        """Whether an item was drawn since the start, or since the last loaded state."""
        self._is_in_epoch = False
        self._has_drawn_last = False
        """Whether the item of the last batch was drawn since `on_epoch_end` was called."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of batches that this process takes from an epoch."""
        return self._batches.steps_per_epoch

    @property
    def num_batches(self) -> int:
        # `fit` passes shuffle=True by default, and Keras would draw the batches in another order.
        # All versions from 3.5 on read this property before they use the attribute `shuffle`.
        frame = inspect.currentframe()
        adapter: Any = frame.f_back.f_locals.get("self") if frame and frame.f_back else None
        if getattr(adapter, "py_dataset", None) is self:
            adapter.shuffle = False
        if self._advice and _is_scored(frame):
            for line in self._advice:
                warn(line)
            self._advice = ()
        return len(self)

    def __getitem__(self, index: int) -> Any:
        """Return item `index` as a tuple of images, targets and weights, if any, or as a dict."""
        if not 0 <= index < len(self):
            raise IndexError(f"item {index} is out of range of {counted(len(self), 'item')}")
        with self._lock:
            self._batches.start_epoch(*divmod(self._first + index, len(self)))
            element = next(self._batches)
            self.is_begun = True
            self._has_drawn_last |= index == len(self) - 1
        return self._as_keras_takes(element)

    def on_epoch_begin(self) -> None:
        self._is_in_epoch = True

    def on_epoch_end(self) -> None:
        """Begin the next epoch if the last item was drawn; called by Keras."""
        # Keras also calls this before the first epoch, after it may have drawn items to see their
        # shapes, and in the middle of an epoch if `steps_per_epoch` is given.
        with self._lock:
            if self._is_in_epoch and self._has_drawn_last:
                self._first += len(self)
            self._is_in_epoch = self._has_drawn_last = False

    def state_dict(self) -> dict[str, Any]:
        """Return the state before item 0, in values that JSON can store."""
        epoch, batch = divmod(self._first, len(self) or 1)
        return {**self._batches.state_dict(), "epoch": epoch, "batch": batch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state: item 0 is its next batch. Errors as for `ArrayBatches`."""
        with self._lock:
            self._batches.load_state_dict(state)
            place = self._batches.state_dict()
            self._first = place["epoch"] * len(self) + min(place["batch"], len(self))
            self.is_begun = self._has_drawn_last = False

    def close(self) -> None:
        """Stop threads and worker processes, and drop batches decoded ahead."""
        self._batches.close()

    def _as_keras_takes(self, element: Any) -> Any:
        if not isinstance(element, tuple):
            return _without_texts(element) if isinstance(element, dict) else (element,)
        images, targets = element[0], _without_texts(element[1])
        if targets is None or self._sample_weight is None:
            return (images,) if targets is None else (images, targets)
        return images, targets, self._sample_weight(targets)


def _is_scored(frame: FrameType | None) -> bool:
    """Return whether `fit` or `evaluate` of Keras is among the callers; `predict` is not."""
    while frame is not None and frame.f_code.co_name != "predict":
        name = str(frame.f_globals.get("__name__"))
        if frame.f_code.co_name in ("fit", "evaluate") and name.startswith("keras."):
            return True
        frame = frame.f_back
    return False


def _without_texts(values: Any) -> Any:
    """Return an array or a dict of arrays without texts and rows, or None if nothing is left."""
    if isinstance(values, dict):
        names = (n for n, one in values.items() if one.dtype != object and not n.startswith(ROWS))
        return {name: values[name] for name in names} or None
    return None if values.dtype == object else values
