"""Recipes: `Compose` runs ops in order, each with its own seed; `Layer` is for Keras models."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import keras
import tensorflow as tf

from shardprep.dataset.schema import Schema
from shardprep.errors import DatasetError
from shardprep.reader.augment.color import Color
from shardprep.reader.augment.geometry import (
    Flip,
    Letterbox,
    Mosaic,
    QuarterTurn,
    RandomResizedCrop,
    Stretch,
    Zoom,
)
from shardprep.reader.augment.mixup import CutMix, MixUp
from shardprep.reader.augment.op import Move, fold_in, join_labels, spatial_labels
from shardprep.reader.tf.finish import images_alone, is_of_package
from shardprep.reader.validators import Count, Kind, Size, validated, validated_fields


def _ops(value: Any) -> tuple[Callable[..., Any], ...]:
    ops = tuple(value)
    if not all(map(callable, ops)):
        raise TypeError
    return ops


Ops = Annotated[Sequence[Callable[..., Any]], Kind(_ops, ("a list of ops",))]


@validated_fields("augment.Compose")
@dataclass(frozen=True, slots=True)
class Compose:
    """A recipe: ops that are applied in order.

    Your own op is a function `op(images, *, seed)` that returns images, or a function
    `op(images, labels, *, seed)` that returns both. `seed` is int32[2] for `tf.random.stateless_…`.

    Args:
        ops: ops of this package, your own functions, or other recipes.
        jit_compile: compile each op with XLA. This takes half a second for each new batch shape
            and makes the op several times as fast. It is not done for images of unknown height or
            width.
    """

    ops: Ops
    jit_compile: bool = True

    def __post_init__(self) -> None:
        for op in self.ops:
            if "seed" not in _parameters(op):
                raise DatasetError(
                    "augment.Compose", f"{op!r} lacks a seed", "define it as op(images, *, seed)"
                )

    def for_keypoints(self, schema: Schema) -> Compose:
        """Return the recipe with the keypoint pairs of a schema set in its flips."""
        ops = [
            op.for_keypoints(schema) if isinstance(op, Flip | Compose) else op for op in self.ops
        ]
        return dataclasses.replace(self, ops=ops)

    def __call__(self, images: Any, labels: Any = None, *, seed: Any) -> Any:
        """Return the changed images; if labels are given, return (images, labels).

        Images are uint8, or floats of 0 to 1, [batch, height, width, 3] or [height, width, 3].
        Labels are as in `reader.load`, with boxes as "rel_yxyx". Boxes and masks move with the
        pixels. Ops that mix images, and your own ops with a parameter `labels`, get all labels.
        The same `seed`, a pair of integers, gives the same result.
        """
        images = tf.convert_to_tensor(images)
        for position, op in enumerate(self.ops):
            known = images.shape[-3:].is_fully_defined()
            compiled = self.jit_compile and known and not isinstance(op, Compose)
            run = _compiled(op) if compiled else op
            own = fold_in(seed, position)
            given = _given(op, labels)
            if not given:
                beside = spatial_labels(labels)
                if beside and not is_of_package(op):
                    raise images_alone(op, "gets", [*beside])
                images = run(images, seed=own)
                continue
            if compiled and isinstance(op, Move):
                before, images = images, run(images, seed=own)
                changed = _labels_only(op)(before, *given, seed=own)
            else:
                result = run(images, *given, seed=own)
                if not isinstance(result, tuple):
                    raise images_alone(op, "returned", [*spatial_labels(labels)] or ["labels"])
                images, changed = result
            labels = changed if given[0] is labels else join_labels(labels, changed)
        return images if labels is None else (images, labels)


@validated("augment.classic")
def classic(size: Size, num_classes: Count | None = None) -> Compose:
    """Return the usual recipe: crop, flip and colour; with `num_classes`, MixUp and CutMix as well.

    MixUp blends half of the images, and CutMix pastes a box into half of them, independently. All
    labels then become float32[batch, num_classes].
    """
    ops: list[Callable[..., Any]] = [
        RandomResizedCrop(size, scale=(0.35, 1.0)),
        Flip(),
        Color(brightness=0.2, contrast=0.2, saturation=0.2, hue=0.05),
    ]
    if num_classes is not None:
        ops += [MixUp(0.2, num_classes, 0.5), CutMix(1.0, num_classes, 0.5)]
    return Compose(ops)


def _given(op: Callable[..., Any], labels: Any) -> tuple[Any, ...]:
    """Return the labels to pass to an op, as a tuple of one element, or ().

    Ops that move pixels, except Mosaic, get only boxes and masks: XLA does not compile strings.
    """
    if isinstance(op, Move) and not isinstance(op, Mosaic):
        spatial = spatial_labels(labels)
        return (spatial,) if spatial else ()
    parameter = _parameters(op).get("labels")
    # A required parameter is passed even without labels: then the op raises an error.
    wants = parameter is not None and (parameter.default is parameter.empty or labels is not None)
    return (labels,) if wants else ()


def _parameters(op: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(op).parameters
    except (TypeError, ValueError):  # a function written in C, for example
        return {}


@functools.cache
def _labels_only(op: Move) -> Any:
    """Return a graph function that runs the op without XLA and returns only its labels.

    Batches differ in their number of boxes, and XLA would compile the op again for each number.
    """

    def run(images: Any, labels: Any, seed: Any) -> Any:
        return op(images, labels, seed=seed)[1]

    return tf.function(run, autograph=False)


@functools.cache
def _compiled(op: Callable[..., Any]) -> Any:
    """Return the op, compiled with XLA as a separate program.

    In one program for all ops, XLA on a CPU would compute each pixel of a crop nine times, for the
    nine products of `Color`.
    """

    def run(*arguments: Any, seed: Any) -> Any:
        return op(*arguments, seed=seed)

    return tf.function(run, jit_compile=True, autograph=False)


_OPS: dict[str, Any] = {
    op.__name__: op
    for op in (
        Flip, QuarterTurn, RandomResizedCrop, Zoom, Letterbox, Mosaic, Color, MixUp, CutMix,
        Compose,
    )
}  # fmt: skip
"""The ops that a saved model may contain, by class name."""


@keras.saving.register_keras_serializable(package="shardprep")
class Layer(keras.layers.Layer):  # type: ignore[misc] # keras carries no types
    """A recipe as the first layer of a Keras model, so images go to the accelerator as uint8.

    The recipe runs only in training. In inference, images are resized to the size of its last crop
    or letterbox, if any. Import `shardprep.reader.augment` before you load a saved model.

    Args:
        recipe: an op of this package, or a `Compose`.
        seed: seed of a `keras.random.SeedGenerator`; None draws one.
        kwargs: options of `keras.layers.Layer`.

    Raises:
        DatasetError: Keras does not run on TensorFlow, or the recipe contains an op of your own,
            which could not be saved with the model.
    """

    def __init__(self, recipe: Any, seed: int | None = None, **kwargs: Any) -> None:
        if keras.backend.backend() != "tensorflow":
            raise DatasetError(
                "augment.Layer",
                f"Keras runs on {keras.backend.backend()}, but the ops need TensorFlow",
                "use reader.load(augment=…)",
            )
        super().__init__(autocast=False, **kwargs)
        recipe = _from_config(recipe) if isinstance(recipe, dict) else recipe
        self.recipe = recipe if isinstance(recipe, Compose) else Compose((recipe,))
        _to_config(self.recipe)
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, images: Any, labels: Any = None, training: bool | None = None) -> Any:  # noqa: FBT001 - so Keras calls it
        if training:
            given = (images,) if labels is None else (images, labels)
            seed = tf.cast(self.seed_generator.next(), tf.int32)
            try:
                return self.recipe(*given, seed=seed)
            except DatasetError as error:  # Keras would show only its first argument
                raise ValueError(str(error)) from error
        resizing = _resizing(self.recipe)
        if resizing is not None and tuple(images.shape[-3:-1]) != resizing.size:
            return resizing(images, labels, seed=None)
        return images if labels is None else (images, labels)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "recipe": _to_config(self.recipe), "seed": self.seed}


def _to_config(op: Any) -> dict[str, Any]:
    """Return an op of this package as a dict of JSON values; raise DatasetError for other ops."""
    if _OPS.get(type(op).__name__) is not type(op):
        raise DatasetError(
            "augment.Layer", f"{op!r} cannot be saved with a model", "give ops of reader.augment"
        )
    values = {field.name: getattr(op, field.name) for field in dataclasses.fields(op)}
    if isinstance(op, Compose):
        values["ops"] = [_to_config(part) for part in op.ops]
    return {"op": type(op).__name__, **values}


def _from_config(config: dict[str, Any]) -> Any:
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in config.items()
    }
    op = _OPS[values.pop("op")]
    if op is Compose:
        values["ops"] = tuple(_from_config(part) for part in values["ops"])
    return op(**values)


def _resizing(recipe: Any) -> Any:
    """Return the op that replaces a recipe's last crop or letterbox in inference, or None."""
    if isinstance(recipe, Compose):
        return next(filter(None, map(_resizing, reversed(recipe.ops))), None)
    if isinstance(recipe, RandomResizedCrop):
        return Stretch(recipe.size)
    return recipe if isinstance(recipe, Letterbox) else None
