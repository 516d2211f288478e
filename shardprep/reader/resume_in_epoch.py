"""A Keras callback that saves the weights with the state of the data, and resumes from both.

The callback works with every backend of Keras, and does not import TensorFlow. The state counts
finished steps, not batches drawn ahead. Keras always runs the number of steps of a whole epoch. A
resumed epoch has fewer steps, so this callback ends it.
"""

from __future__ import annotations

import inspect
import itertools
import json
import signal
import threading
import time
import warnings
import zipfile
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NamedTuple, Self

import keras
import numpy as np

from shardprep.errors import DatasetError, counted
from shardprep.reader.order.order import State
from shardprep.reader.validators import Count, File, like, validated
from shardprep.storage.atomic_file import DurableFile

KerasData = Annotated[
    Any, like("the result of reader.iterate or Dataset.keras", "is_begun", "state_dict", "seed")
]
_SECONDS_A_SAVE = 60.0
"""Seconds between two saves if `save_every` is None."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_END_OF_EPOCH = object()
"""Value of `Model.stop_training` that ends only the epoch."""
_CAN_SKIP_STEPS = keras.backend.backend() == "tensorflow"
"""Whether `fit` accepts an epoch without a step. With other backends, Keras raises an error."""
_WHERE = "reader.ResumeInEpoch"
_START_AGAIN = "remove the file to start again"
_HEAD = "head"
"""Name of the array in the file that contains all other values as JSON."""


class ResumeInEpoch(keras.callbacks.Callback):  # type: ignore[misc]  # keras carries no types
    """Save the weights and the position in the training data; resume there in the next run.

        train = reader.iterate("tfrecords/dogs_vs_cats", batch_size=64, seed=1)
        model.fit(train, epochs=20, callbacks=[reader.ResumeInEpoch("run/state", train)])

    Run the same program again, and it continues after the last saved step, also in the middle of an
    epoch. Weights, optimizer, random state of layers, metrics and state of the batches are saved
    after the same step, so the weights see every batch exactly once. If all epochs are finished,
    nothing is trained. The file is replaced as a whole, so you can kill the program at any time.

    On any backend of Keras, use the result of `Dataset.keras` in the same way.

    The state is saved at the end of each epoch, when `fit` ends, before SIGTERM and Ctrl-C take
    effect, and every `save_every` steps. A resumed epoch has the logs of the whole epoch. The state
    of other callbacks, such as the patience of EarlyStopping, is not saved. A run that was stopped
    in the validation of an epoch repeats that validation on TensorFlow, and skips it elsewhere.
    """

    @validated(_WHERE)
    def __init__(self, path: File, batches: KerasData, *, save_every: Count | None = None) -> None:
        """Read the saved state, if any.

        Args:
            path: the file, on this machine; its folders are created.
            batches: the result of `reader.iterate` or of `Dataset.keras` that `fit` gets.
            save_every: steps between two saves; None saves once a minute.

        Raises:
            DatasetError: the file was not saved by this callback, or was saved with other batches.
                `fit` raises it if the file is of another model, or if `fit` gets other data or
                `steps_per_epoch`.
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
        del logs
        steps, fit = self.params["steps"], self._fit(inspect.currentframe())
        # With class_weight, Keras maps a function over the batches and loses their number.
        self._ends_epochs = (
            steps is None
            and fit is not None
            and fit.f_locals.get("class_weight") is not None
            and fit.f_locals.get("x") is self._batches
        )
        if steps != len(self._batches) and not self._ends_epochs:
            if steps is None:
                raise _other_data()
            own = f"this callback has {counted(len(self._batches), 'batch')}"
            hint = "give fit the batches of this callback, without steps_per_epoch"
            what = f"fit has {counted(steps, 'step')} per epoch, but {own}"
            raise DatasetError(_WHERE, what, hint)
        self._saved = saved = self._saved or self._read()
        self._place = (0, 0)
        if saved is not None:
            self._build(saved)
            saved.restore(self._path, "model", self.model.variables)
            saved.restore(self._path, "optimizer", self.model.optimizer.variables)
            if saved.place["batch"] == len(self._batches) and not _CAN_SKIP_STEPS:
                saved.place.update(epoch=saved.place["epoch"] + 1, batch=0)
            self.model._initial_epoch = saved.place["epoch"]  # noqa: SLF001 - as BackupAndRestore
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._note) for number in _SIGNALS}
        self._saved_at = time.monotonic()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Set the batches to the start of the epoch, or to the saved step if it is in the epoch."""
        del logs
        self.model._initial_epoch = None  # noqa: SLF001 - for this fit only
        self._metrics = None
        saved, self._saved = self._saved, None
        if saved is not None and saved.place["epoch"] == epoch:
            if saved.place["batch"]:
                saved.restore(self._path, "metrics", self.model.metrics_variables)
            self._place = (epoch, saved.place["batch"])
        else:
            was, self._place = self._place, (epoch, 0)
            if epoch and was == self._place:
                self._save()  # here, to include what other callbacks did at the end of the epoch
        self._began = self._place[1]
        self._batches.load_state_dict(self._state())

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """End the epoch at once if all of its steps were done before the restart of the program."""
        del batch, logs
        if self._place[1] == len(self._batches):
            metrics = self.model.get_metrics_result()
            self._logs = {name: float(value) for name, value in metrics.items()}
            self._quiet.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", "Your input ran out of data")
            raise StopIteration

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Count the step, and save the state if a save is due."""
        del logs
        if not self._batches.is_begun:
            raise _other_data()
        epoch, before = self._place
        done = min(self._began + batch + 1, len(self._batches))
        self._place = (epoch, done)
        ends = self._began or self._ends_epochs
        if ends and done == len(self._batches) and not self.model.stop_training:
            self.model.stop_training = _END_OF_EPOCH
            fit = self._fit(inspect.currentframe())
            if fit is not None:  # `fit` breaks off the epoch, and Keras checks that epochs end
                fit.f_locals["epoch_iterator"].data_adapter.on_epoch_end()
        if self._save_every is None:
            is_due = time.monotonic() - self._saved_at >= _SECONDS_A_SAVE
        else:
            is_due = done // self._save_every > before // self._save_every
        if self._signal or (is_due and done < len(self._batches)):
            self._save()
        self._end()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Copy the metrics of the epoch, because validation overwrites them."""
        del logs
        self._metrics = values_of(self.model.metrics_variables)

    def on_test_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        del batch, logs
        if self._signal:
            self._save()
        self._end()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Set the state to the next epoch, unless another callback ended this epoch early."""
        self._quiet.close()
        if logs is not None:
            logs.update({**self._logs, **logs})
        self._logs = {}
        if self.model.stop_training is _END_OF_EPOCH:
            self.model.stop_training = False
        if self._place[1] == len(self._batches):
            self._place = (epoch + 1, 0)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
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
        checkpoint = Checkpoint.of(self._state(), type(optimizer).__name__, variables)
        if self._metrics and self._place[1]:
            checkpoint.arrays["metrics"] = self._metrics
        checkpoint.write(self._path)
        self._saved_at = time.monotonic()

    def _read(self) -> Checkpoint | None:
        """Load the saved state into the batches; return the checkpoint, or None without a file."""
        saved = Checkpoint.read(self._path)
        if saved is None:
            return None
        try:
            seed = self._batches.seed
            if seed is not None and seed != saved.place["seed"]:
                what = f"the state has seed={saved.place['seed']}, but the batches have seed={seed}"
                raise self._refused(what, "give the same seed")
            self._batches.load_state_dict(saved.place)
        except DatasetError as error:
            remedy = error.hint.partition(", or ")[0]  # its other one is also to start again
            raise self._refused(error.what, f"{remedy}, or {_START_AGAIN}") from None
        return saved

    def _build(self, saved: Checkpoint) -> None:
        """Create the variables that Keras would create in the first step."""
        model, optimizer = self.model, self.model.optimizer
        metrics = saved.arrays.get("metrics")
        if not model.built or (metrics and len(metrics) != len(model.metrics_variables)):
            batch = keras.tree.map_structure(
                lambda spec: keras.ops.zeros(
                    [1, *(length or 0 for length in spec.shape[1:])],
                    keras.backend.standardize_dtype(spec.dtype),
                ),
                getattr(self._batches, "element_spec", None) or self._batches[0],
            )
            x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
            result = model(x, training=False)
            model.compute_loss(x, y, result, weights, training=False)
            model.compute_metrics(x, y, result, weights)
        if type(optimizer).__name__ != saved.optimizer:
            what = f"the state is from {saved.optimizer}, the model has {type(optimizer).__name__}"
            raise self._refused(what, f"compile with {saved.optimizer}, or {_START_AGAIN}")
        if not optimizer.built:
            optimizer.build(model.trainable_variables)

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Delay a signal until the step ends. A second signal, or one outside `fit`, acts now."""
        is_second, self._signal = bool(self._signal), number
        if is_second or self._fit(frame) is None:  # no callback is called after an error of fit
            self._end()

    def _fit(self, frame: FrameType | None) -> FrameType | None:
        """Return the frame of this model's `fit` that called `frame`, or None."""
        while frame is not None:
            if frame.f_code.co_name == "fit" and frame.f_locals.get("self") is self.model:
                return frame
            frame = frame.f_back
        return None

    def _end(self) -> None:
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


def _other_data() -> DatasetError:
    what = "fit reads other data than the batches of this callback"
    return DatasetError(_WHERE, what, "give fit the batches of this callback")


class Checkpoint(NamedTuple):
    """Content of the file: the state of the batches, and the values of variables."""

    place: dict[str, Any]
    """The state of the batches before the next step."""
    optimizer: str
    """Class name of the optimizer."""
    kinds: dict[str, list[str]]
    """Dtype and shape of each variable of "model", "optimizer" and, within an epoch, "metrics"."""
    arrays: dict[str, list[Any]]

    @classmethod
    def of(cls, place: dict[str, Any], optimizer: str, variables: dict[str, list[Any]]) -> Self:
        kinds = {name: _kinds(group) for name, group in variables.items()}
        arrays = {name: values_of(group) for name, group in variables.items()}
        return cls(place, optimizer, kinds, arrays)

    def write(self, path: Path) -> None:
        """Write the checkpoint, replacing the file as a whole; DatasetError if that fails."""
        flat = {
            f"{name}/{i}": array
            for name, arrays in self.arrays.items()
            for i, array in enumerate(arrays)
        }
        head = {"place": self.place, "optimizer": self.optimizer, "kinds": self.kinds}
        flat[_HEAD] = np.frombuffer(json.dumps(head).encode(), np.uint8)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with DurableFile(path) as file:
                np.savez(file.stream, **flat)
                file.commit()
        except OSError as error:
            what = f"cannot be written ({error.strerror})"
            raise DatasetError(str(path), what, "give another path") from error

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the checkpoint in a file, None without a file; DatasetError for a damaged file."""
        try:
            with np.load(path, allow_pickle=False) as file:
                head = json.loads(file[_HEAD].tobytes())
                if missing := {*State._fields} - {*head["place"]}:
                    raise KeyError(*missing)
                arrays = {
                    name: [file[f"{name}/{i}"] for i in range(len(kinds))]
                    for name, kinds in head["kinds"].items()
                }
            return cls(**head, arrays=arrays)
        except FileNotFoundError:
            return None
        except OSError as error:
            what = f"cannot be read ({error.strerror})"
            raise DatasetError(str(path), what, "give another path") from error
        except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise DatasetError(str(path), "is not a ResumeInEpoch state", _START_AGAIN) from error

    def restore(self, path: Path, name: str, variables: list[Any]) -> None:
        """Assign the values of group `name`; DatasetError if dtypes or shapes are different."""
        kinds, own = self.kinds[name], _kinds(variables)
        if kinds != own:
            pairs = enumerate(itertools.zip_longest(kinds, own, fillvalue="none"))
            number, (before, now) = next(pair for pair in pairs if pair[1][0] != pair[1][1])
            what = f"the state is from another {name}: variable {number} was {before} and is {now}"
            raise DatasetError(str(path), what, f"create the same {name}, or {_START_AGAIN}")
        for variable, value in zip(variables, self.arrays[name], strict=True):
            # Files of NumPy store small float types, such as bfloat16, as raw bytes.
            variable.assign(value.view(keras.backend.standardize_dtype(variable.dtype)))


def values_of(variables: list[Any]) -> list[Any]:
    """Return the values of Keras variables as NumPy arrays."""
    return [variable.numpy() for variable in variables]


def _kinds(variables: list[Any]) -> list[str]:
    """Return dtype and shape of each variable. Names are left out: they differ between models."""
    return [
        f"{keras.backend.standardize_dtype(variable.dtype)}{list(variable.shape)}"
        for variable in variables
    ]
