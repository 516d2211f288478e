"""A recipe is its ops in their order, each with a seed of its own place."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tensorflow as tf

from shardprep.errors import DatasetError
from shardprep.reader.augment.augmented_annotations import Move, joined, parted
from shardprep.reader.augment.batch import fold_in
from shardprep.reader.augment.color import Color
from shardprep.reader.augment.geometry import Flip, RandomResizedCrop
from shardprep.reader.augment.letterbox import Mosaic
from shardprep.reader.augment.mixup import CutMix, MixUp
from shardprep.reader.validators import Count, Kind, Size, validated, validated_fields

if TYPE_CHECKING:
    from collections.abc import Mapping


def _ops(value: Any) -> tuple[Callable[..., Any], ...]:
    found = tuple(value)
    if not all(map(callable, found)):
        raise TypeError
    return found


Ops = Annotated[Sequence[Callable[..., Any]], Kind(_ops, ("a list of ops",))]


@validated_fields("augment.Compose")
@dataclass(frozen=True, slots=True)
class Compose:
    """Apply ops one after the other.

    An op of your own is a function `op(images, *, seed)`, or `op(images, labels, *, seed)` that
    returns both; its seed is an int32[2] for `tf.random.stateless_…`.

    Args:
        ops: flips, turns, crops, zooms, frames, colours, mixes, recipes.
        jit_compile: let XLA compile each op, which takes half a second for each new shape of a
            batch, and is then several times as fast. Images whose height and width are not known
            beforehand are never compiled.

    """

    ops: Ops
    jit_compile: bool = True

    def __post_init__(self) -> None:
        """Raise DatasetError where something is no op."""
        for op in self.ops:
            if "seed" not in _parameters(op):
                raise DatasetError(
                    "augment.Compose", f"{op!r} takes no seed", "give op(images, *, seed)"
                )

    def __call__(self, images: Any, labels: Any = None, *, seed: Any) -> Any:
        """Return the images, or images and labels where labels are given.

        Args:
            images: uint8, or floats of 0..1, [batch, height, width, 3] or [height, width, 3].
            labels: as `reader.load` yields them, boxes as "rel_yxyx"; those that have a place in
                the image follow its pixels, others are for mixing ops.
            seed: a pair of integers; the same pair, the same result.

        """
        images = tf.convert_to_tensor(images)
        for place, op in enumerate(self.ops):
            known = images.shape[-3:].is_fully_defined()
            compiled = self.jit_compile and known and not isinstance(op, Compose)
            run = _compiled(op) if compiled else op
            given, others = _given(op, labels)
            if given and compiled and isinstance(op, Move):
                before, own = images, fold_in(seed, place)
                images = run(images, seed=own)
                labels = joined(_following(op)(before, *given, seed=own), others)
            elif given:
                images, changed = run(images, *given, seed=fold_in(seed, place))
                labels = joined(changed, others)
            else:
                images = run(images, seed=fold_in(seed, place))
        return images if labels is None else (images, labels)


@validated("augment.classic")
def classic(size: Size, num_classes: Count | None = None) -> Compose:
    """Return the recipe to begin with: crop, flip, colour; with `num_classes` also mixing.

    Half of the images are blended (`MixUp`), half get a box of another (`CutMix`), some both, some
    neither; labels are then float32[batch, num_classes].
    """
    ops: list[Callable[..., Any]] = [
        RandomResizedCrop(size, scale=(0.35, 1.0)),
        Flip(),
        Color(brightness=0.2, contrast=0.2, saturation=0.2, hue=0.05),
    ]
    if num_classes is not None:
        ops += [MixUp(0.2, num_classes, 0.5), CutMix(1.0, num_classes, 0.5)]
    return Compose(ops)


def _given(op: Callable[..., Any], labels: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the labels that an op is called with, none or one, and those that it is not by name.

    What moves pixels is not given texts and numbers: XLA compiles no texts.
    """
    if isinstance(op, Move) and not isinstance(op, Mosaic):
        follows, others = (None, {}) if labels is None else parted(labels)
        return (() if follows is None else (follows,)), others
    return ((labels,) if _takes_labels(op, labels) else ()), {}


def _takes_labels(op: Callable[..., Any], labels: Any) -> bool:
    """Tell whether an op is called with labels: it mixes them, and can it do without, there are."""
    parameter = _parameters(op).get("labels")
    return parameter is not None and (parameter.default is parameter.empty or labels is not None)


def _parameters(op: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(op).parameters
    except (TypeError, ValueError):  # no function, or one that is written in C
        return {}


@functools.cache
def _following(op: Move) -> Any:
    """Return the op as a program that gives labels alone; of the images it takes but the shape.

    Batches differ in their number of boxes, and XLA would compile all anew for each.
    """

    def run(images: Any, labels: Any, seed: Any) -> Any:
        return op(images, labels, seed=seed)[1]

    return tf.function(run, autograph=False)


@functools.cache
def _compiled(op: Callable[..., Any]) -> Any:
    """Return the op as a program of its own.

    In one program for all of them, XLA on a CPU would compute a pixel of the crop again for each
    of the nine products of its colours.
    """

    def run(*arguments: Any, seed: Any) -> Any:
        return op(*arguments, seed=seed)

    return tf.function(run, jit_compile=True, autograph=False)
