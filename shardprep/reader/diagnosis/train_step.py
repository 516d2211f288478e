"""The step of a training: a function of a batch, or a model that is put back as it was."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from shardprep.errors import DatasetError

if TYPE_CHECKING:
    from collections.abc import Iterator

Take = Callable[[Any], None]
"""Trains on a batch, and returns when all of its work is done."""


def check_step(where: str, step: Any, dataset: Any) -> None:
    """Raise DatasetError where a model cannot be trained on a dataset; `where` is the call."""
    if not hasattr(step, "train_on_batch"):
        return
    if not getattr(step, "compiled", False):
        raise DatasetError(where, "the model is not compiled", "call model.compile")
    if not isinstance(dataset.element_spec, tuple):
        raise DatasetError(where, "batches without a target train no model", "pass a step instead")


@contextmanager
def as_step(step: Any, batch: Any) -> Iterator[Take]:
    """Yield a function that takes a batch and returns when all of its work is done."""

    def finished(run: Callable[[Any], Any]) -> Take:
        def take(batch: Any) -> None:
            run(batch)
            tf.test.experimental.sync_devices()  # a GPU works on after the call has returned

        return take

    if not hasattr(step, "train_on_batch"):
        yield finished(step)
        return
    with _kept(step, batch):
        yield finished(lambda batch: step.train_on_batch(*batch))


@contextmanager
def _kept(model: Any, batch: Any) -> Iterator[None]:
    """Restore a model's variables at the end: weights, optimizer, metrics, random seeds."""
    model(batch[0][:1], training=False)  # has its variables then
    model.optimizer.build(model.trainable_variables)
    variables = {id(one): one for one in (*model.variables, *model.optimizer.variables)}.values()
    before = [one.numpy() for one in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
        model.reset_metrics()
