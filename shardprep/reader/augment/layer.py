"""The same recipe in a Keras model: on its accelerator, in training only."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from shardprep.errors import DatasetError
from shardprep.reader.augment.augmented_annotations import Move
from shardprep.reader.augment.color import Color
from shardprep.reader.augment.compose import Compose
from shardprep.reader.augment.geometry import Flip, QuarterTurn, RandomResizedCrop
from shardprep.reader.augment.letterbox import Letterbox, Mosaic, Zoom
from shardprep.reader.augment.mixup import CutMix, MixUp

_OPS: dict[str, Any] = {
    op.__name__: op
    for op in (
        Flip, QuarterTurn, RandomResizedCrop, Zoom, Letterbox, Mosaic, Color, MixUp, CutMix,
        Compose,
    )
}  # fmt: skip


@keras.saving.register_keras_serializable(package="shardprep")
class Layer(keras.layers.Layer):  # type: ignore[misc] # keras carries no types
    """A recipe as the first layer of a model, whose images stay uint8 until they are there.

    In inference it does nothing, but for images of another size than the recipe's crops or frames,
    which it resizes. To load a saved model, `from shardprep.reader import augment` first.

    Args:
        recipe: an op of this package, or a `Compose` of them.
        seed: of a `keras.random.SeedGenerator`; None draws one.
        kwargs: those of `keras.layers.Layer`.

    Raises:
        DatasetError: Keras runs on another backend than TensorFlow, or the recipe has an op that
            a saved model could not name.

    """

    def __init__(self, recipe: Any, seed: int | None = None, **kwargs: Any) -> None:
        if keras.backend.backend() != "tensorflow":
            raise DatasetError(
                "augment.Layer",
                f"Keras runs on {keras.backend.backend()}, the ops are TensorFlow's",
                "use reader.load(augment=…)",
            )
        super().__init__(autocast=False, **kwargs)
        recipe = from_config(recipe) if isinstance(recipe, dict) else recipe
        self.recipe = recipe if isinstance(recipe, Compose) else Compose((recipe,))
        to_config(self.recipe)
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, images: Any, labels: Any = None, training: bool | None = None) -> Any:  # noqa: FBT001 - so Keras calls it
        """Return images, or images and labels where labels are given, as mixing needs them."""
        if training:
            given = (images,) if labels is None else (images, labels)
            seed = tf.cast(self.seed_generator.next(), tf.int32)
            try:
                return self.recipe(*given, seed=seed)
            except DatasetError as error:  # of its arguments Keras would show the first alone
                raise ValueError(str(error)) from error
        sizing = _sizing(self.recipe)
        if sizing is not None and tuple(images.shape[-3:-1]) != sizing.size:
            return _Whole(sizing)(images, labels, seed=None)
        return images if labels is None else (images, labels)

    def get_config(self) -> dict[str, Any]:
        """Return what makes an equal layer."""
        return {**super().get_config(), "recipe": to_config(self.recipe), "seed": self.seed}


def to_config(op: Any) -> dict[str, Any]:
    """Return an op of this package as JSON can hold it."""
    if _OPS.get(type(op).__name__) is not type(op):
        raise DatasetError(
            "augment.Layer", f"{op!r} cannot be saved with a model", "give ops of reader.augment"
        )
    values = {field.name: getattr(op, field.name) for field in dataclasses.fields(op)}
    if isinstance(op, Compose):
        values["ops"] = [to_config(part) for part in op.ops]
    return {"op": type(op).__name__, **values}


def from_config(config: dict[str, Any]) -> Any:
    """Return the op of a `to_config`."""
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in config.items()
    }
    op = _OPS[values.pop("op")]
    if op is Compose:
        values["ops"] = tuple(from_config(part) for part in values["ops"])
    return op(**values)


def _sizing(recipe: Any) -> Any:
    """Return the last op that gives its images a size; None where the size stays."""
    if isinstance(recipe, Compose):
        found = [op for op in map(_sizing, recipe.ops) if op is not None]
        return found[-1] if found else None
    return recipe if isinstance(recipe, (RandomResizedCrop, Letterbox)) else None


@dataclasses.dataclass(frozen=True, slots=True)
class _Whole(Move):
    """An op of a size as inference takes it: nothing is drawn, nothing cut away."""

    op: Any

    def moved(self, images: Any, labels: Any, seed: Any) -> tuple[Any, Any]:
        """Return the images of its size, and what follows them."""
        del seed
        whole: tuple[Any, Any] = self.op.whole(images, labels)
        return whole
