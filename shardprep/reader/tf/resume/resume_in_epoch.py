"""A Keras callback that saves weights together with the place in the data, and goes on from there.

A place is the steps that training has finished: batches drawn ahead are none of it. Keras begins
with a whole epoch; the first one after a restart begins where it was left, and is ended here.
"""

from __future__ import annotations

import inspect
import signal
import threading
import time
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import keras
import tensorflow as tf

from shardprep.errors import DatasetError
from shardprep.reader.tf.batching import nothing
from shardprep.reader.tf.resume.checkpoint import ANEW, Checkpoint, values_of
from shardprep.reader.tf.resume.iterator import Batches
from shardprep.reader.validators import Count, File, having, validated

if TYPE_CHECKING:
    from types import FrameType

IteratedBatches = Annotated[
    Batches, having(lambda value: isinstance(value, Batches), "what reader.iterate has returned")
]
_SECONDS_A_SAVE = 60.0
"""Seconds between two saves, where their steps are not said."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""Signals before which the place is saved."""
_END_OF_EPOCH = object()
"""Value of `Model.stop_training` that ends an epoch, not training."""


class ResumeInEpoch(keras.callbacks.Callback):  # type: ignore[misc]  # keras carries no types
    """Save the exact place of training with the weights; go on there in the next run.

        train = reader.iterate("tfrecords/dogs_vs_cats", batch_size=64, seed=1)
        model.fit(train, epochs=20, callbacks=[reader.ResumeInEpoch("run/state", train)])

    Run again, the same program goes on behind the last step that was saved, in the middle of an
    epoch as well: weights, optimizer, random state of layers, metrics and place are of one step,
    so no batch is lost or repeated in what the weights have seen. A run that has had all epochs
    trains nothing more. The file is complete or the one before: kill it at any time.

    It is saved at the end of each epoch, when `fit` ends, before SIGTERM and Ctrl-C do what they
    do, and every `save_every` steps. The epoch that goes on has the logs of the whole epoch. What
    other callbacks keep, such as the patience of EarlyStopping, begins anew.
    """

    @validated("reader.ResumeInEpoch")
    def __init__(
        self, path: File, batches: IteratedBatches, *, save_every: Count | None = None
    ) -> None:
        """Take the place, where one is saved.

        Args:
            path: the file, on this machine; folders above it are made.
            batches: the result of `reader.iterate` that `fit` is given.
            save_every: steps between two saves; None: as many as are a minute.

        Raises:
            DatasetError: the file is not of this callback, or of other batches; from `fit`: of
                another model, or `fit` is given other data or `steps_per_epoch`.

        """
        super().__init__()
        self._path = Path(path)
        self._batches = batches
        self._save_every = save_every
        self._place = (0, 0)
        self._metrics: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._signal = 0
        self._logs: dict[str, float] = {}
        self._quiet = ExitStack()
        self._ends_epochs = False
        self._saved = self._read()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Restore the weights of the place."""
        del logs
        steps, fit = self.params["steps"], self._fit(inspect.currentframe())
        # Keras maps class_weight over the batches, which hides their number from it.
        self._ends_epochs = (
            steps is None
            and fit is not None
            and fit.f_locals.get("class_weight") is not None
            and fit.f_locals.get("x") is self._batches
        )
        if steps != len(self._batches) and not self._ends_epochs:
            raise self._refused(
                f"fit has {steps} steps an epoch, the batches are {len(self._batches)}",
                "give fit the batches as they are, without steps_per_epoch",
            )
        self._saved = saved = self._saved or self._read()
        self._place = (0, 0)
        if saved is not None:
            self._build(saved)
            saved.restore(self._path, "model", self.model.variables)
            saved.restore(self._path, "optimizer", self.model.optimizer.variables)
            self.model._initial_epoch = saved.place["epoch"]  # noqa: SLF001 - as BackupAndRestore
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._note) for number in _SIGNALS}
        self._saved_at = time.monotonic()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Set the batches to the place from which this epoch goes on."""
        del logs
        self.model._initial_epoch = None  # noqa: SLF001 - of this fit alone
        self._metrics = None
        saved, self._saved = self._saved, None
        if saved is not None and saved.place["epoch"] == epoch:
            if saved.place["batch"]:
                saved.restore(self._path, "metrics", self.model.metrics_variables)
            self._place = (epoch, saved.place["batch"])
        else:
            was, self._place = self._place, (epoch, 0)
            if epoch and was == self._place:
                self._save()  # here, so that what others do at the end of an epoch is in it
        self._began = self._place[1]
        self._batches.load_state_dict(self._state())

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """End an epoch of which all steps were done before the restart."""
        del batch, logs
        if self._place[1] == len(self._batches):
            self._logs = {name: float(one) for name, one in self.model.get_metrics_result().items()}
            self._quiet.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "Your input ran out of data")
            raise StopIteration

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Count the steps, and save them when it is time."""
        del logs
        if not self._batches.is_begun:
            raise self._refused("fit is given other data", "give it the batches given here")
        epoch, before = self._place
        done = min(self._began + batch + 1, len(self._batches))
        self._place = (epoch, done)
        ends = self._began or self._ends_epochs
        if ends and done == len(self._batches) and not self.model.stop_training:
            self.model.stop_training = _END_OF_EPOCH
        if self._save_every is None:
            is_due = time.monotonic() - self._saved_at >= _SECONDS_A_SAVE
        else:
            is_due = done // self._save_every > before // self._save_every
        if self._signal or (is_due and done < len(self._batches)):
            self._save()
        self._end()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Keep the metrics of the epoch, in whose place validation puts its own."""
        del logs
        self._metrics = values_of(self.model.metrics_variables)

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Save, and end, where a signal has come."""
        del batch, logs
        if self._signal:
            self._save()
        self._end()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Go to the next epoch, unless another callback has ended this one early."""
        self._quiet.close()
        if logs is not None:
            logs.update({**self._logs, **logs})
        self._logs = {}
        if self.model.stop_training is _END_OF_EPOCH:
            self.model.stop_training = False
        if self._place[1] == len(self._batches):
            self._place = (epoch + 1, 0)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Save the end."""
        del logs
        if self._saved is None and self._place != (0, 0):
            self._save()
        self._end()
        self._give_signals_back()

    def _state(self) -> dict[str, Any]:
        epoch, batch = self._place
        return {**self._batches.state_dict(), "epoch": epoch, "batch": batch}

    def _save(self) -> None:
        optimizer = self.model.optimizer
        variables = {"model": self.model.variables, "optimizer": optimizer.variables}
        if self._place[1]:
            variables["metrics"] = self.model.metrics_variables
        found = Checkpoint.of(self._state(), type(optimizer).__name__, variables)
        if self._metrics and self._place[1]:
            found.arrays["metrics"] = self._metrics
        found.write(self._path)
        self._saved_at = time.monotonic()

    def _read(self) -> Checkpoint | None:
        """Return what is saved, None where nothing is, and take the batches to its place."""
        found = Checkpoint.read(self._path)
        if found is None:
            return None
        try:
            seed = self._batches.seed
            if seed is not None and seed != found.place["seed"]:
                what = f"the state is of seed={found.place['seed']}, the batches of seed={seed}"
                raise self._refused(what, "give the same seed")
            self._batches.load_state_dict(found.place)
        except DatasetError as error:
            raise self._refused(error.what, f"{error.hint}, or {ANEW}") from None
        return found

    def _build(self, saved: Checkpoint) -> None:
        """Make the variables that Keras makes with the first step."""
        model, optimizer = self.model, self.model.optimizer
        metrics = saved.arrays.get("metrics")
        if not model.built or (metrics and len(metrics) != len(model.metrics_variables)):
            one = tf.nest.map_structure(
                lambda spec: nothing((1, *spec.shape[1:]), spec.dtype), self._batches.element_spec
            )
            x, y, weights = keras.utils.unpack_x_y_sample_weight(one)
            found = model(x, training=False)
            model.compute_loss(x, y, found, weights, training=False)
            model.compute_metrics(x, y, found, weights)
        if type(optimizer).__name__ != saved.optimizer:
            what = f"the state is of {saved.optimizer}, the model's is {type(optimizer).__name__}"
            raise self._refused(what, f"compile it with that, or {ANEW}")
        if not optimizer.built:
            optimizer.build(model.trainable_variables)

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Keep a signal until the step is over; a second one, or one after `fit`, acts."""
        is_second, self._signal = bool(self._signal), number
        if is_second or self._fit(frame) is None:  # an error of fit has no callback
            self._end()

    def _fit(self, frame: FrameType | None) -> FrameType | None:
        """Return the call of `fit` that a frame is in, if any."""
        while frame is not None:
            if frame.f_code.co_name == "fit" and frame.f_locals.get("self") is self.model:
                return frame
            frame = frame.f_back
        return None

    def _end(self) -> None:
        """Let a signal that has come do what it does without this callback."""
        if self._signal:
            number, self._signal = self._signal, 0
            self._give_signals_back()
            signal.raise_signal(number)

    def _give_signals_back(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def _refused(self, what: str, hint: str) -> DatasetError:
        return DatasetError(str(self._path), what, hint)
