"""Shared by all ops: the base class, random draws, labels that move with pixels, resampling.

The draws of image `i` of a batch depend only on (seed, i). They are made from integers of Philox,
which are the same on every device, with and without XLA, so neither the batch size nor the machine
changes the result. (TensorFlow's random floats differ: XLA makes them from other bits.)

Labels are as in `reader.load`. Ops move a single mask or target image, or in a dict
`segmentation_mask`, `target_image`, `points`, and the `boxes`, `labels`, `crowds`, `masks` and
`keypoints` of objects. Boxes are ymin, xmin, ymax, xmax, 0 to 1. An object that is cut away becomes
a padding row; padding rows come last. A keypoint that is cut away becomes 0, 0 with visibility 0.

`resample` resizes one window of each image, which may reach beyond the image. It applies a triangle
filter, as in Pillow, along one axis at a time. Input pixels are gathered for each tap of the
filter, which XLA can compile although the windows differ.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from shardprep.dataset import schema
from shardprep.dataset.kinds import KINDS
from shardprep.dataset.schema import BOX, MASK, TARGET_IMAGE
from shardprep.errors import DatasetError
from shardprep.reader.decode.targets import KEYS, PADDING
from shardprep.reader.tf.python_calls import as_written

BOXES, CLASSES = KEYS[BOX], KEYS[MASK]
_TARGET = KEYS[TARGET_IMAGE]
ALL_POINTS = {KEYS[points]: KEYS[visible] for points, visible in schema.ALL_POINTS.items()}
"""Keys of keypoints → keys of their visibility."""
_PADDING = {KEYS[name]: value for name, value in PADDING.items()}
_MOVES = {
    KEYS[name]: KINDS[schema.PROVIDED[name].kind].moves
    for name in (*schema.ANNOTATIONS, TARGET_IMAGE)
}
"""Key of each label that moves with the pixels → how it moves, as in `KINDS`."""
_LEAST_PIXELS = 0.999
"""Smallest side of a box in pixels: 1, minus the rounding error of float32."""
_ROUNDING = 1e-6
_WHITE = 255.0
_WHOLE = ((0.0, 0.0, 1.0, 1.0),)
Labels = dict[str, Any]
Moved = tuple[Any, Labels]
"""A batch of images, and its labels that move with pixels."""


class Move(ABC):
    """Base of the ops that move pixels, boxes and masks."""

    __slots__ = ()

    @as_written
    def __call__(self, images: Any, labels: Any = None, *, seed: Any) -> Any:
        """Return the moved images in their dtype; if labels are given, return (images, labels).

        Labels of whole images are returned unchanged.
        """
        images, spatial = checked(images), spatial_labels(labels)
        is_single = images.shape.rank == 3
        if is_single:
            images, spatial = tf.nest.map_structure(lambda x: x[tf.newaxis], (images, spatial))
        target = spatial.pop(_TARGET, None)
        images, spatial = self._moved(images, spatial, seed)
        if target is not None:  # equal draws move both in the same way
            spatial = {**spatial, _TARGET: self._moved(checked(target), {}, seed)[0]}
        moved = images, clip_points(spatial, _WHOLE)
        if is_single:
            moved = tf.nest.map_structure(lambda x: x[0], moved)
        return moved[0] if labels is None else (moved[0], join_labels(labels, moved[1]))

    @abstractmethod
    def _moved(self, images: Any, labels: Labels, seed: Any) -> Moved:
        """Return the moved images and labels of a batch."""


def checked(images: Any) -> Any:
    """Return images as a tensor; raise `DatasetError` for a wrong shape or dtype."""
    images = tf.convert_to_tensor(images)
    if images.shape.rank not in (3, 4) or images.shape[-1] != 3:
        raise DatasetError(
            "augment", f"images have the shape {images.shape}", "give [batch, height, width, 3]"
        )
    if images.dtype != tf.uint8 and not images.dtype.is_floating:
        raise DatasetError("augment", f"images are {images.dtype.name}", "give uint8 or floats")
    return images


def draw(images: Any, seed: Any, num: int) -> list[Any]:
    """Return `num` tensors with a random number per image, each float32[batch], in [0, 1)."""
    bits = tf.random.stateless_uniform(
        (tf.shape(images)[0], num), as_seed(seed), None, None, tf.uint32, alg="philox"
    )
    drawn = tf.cast(tf.bitwise.right_shift(bits, tf.constant(8, tf.uint32)), tf.float32) * 2**-24
    return list(tf.unstack(drawn, axis=1))


def fold_in(seed: Any, position: int) -> Any:
    """Return the seed, int32[2], of the op at this position in a recipe."""
    return tf.random.experimental.stateless_fold_in(as_seed(seed), position, alg="philox")


def as_seed(seed: Any) -> Any:
    """Return a pair of integers as a tensor; raise `DatasetError` for anything else."""
    seed = tf.convert_to_tensor(seed)
    if seed.shape != (2,) or not seed.dtype.is_integer:
        what = f"the seed is {seed.dtype.name}{seed.shape}, not a pair of integers"
        raise DatasetError("augment", what, "give seed=(1, 2)")
    return seed


def between(low: Any, high: Any, share: Any) -> Any:
    """Return the number at `share`, 0 to 1, of the way from `low` to `high`."""
    return low + (high - low) * share


def each(values: Any) -> Any:
    """Return [batch] values as [batch, 1, 1, 1], to multiply all pixels of each image."""
    return values[:, tf.newaxis, tf.newaxis, tf.newaxis]


def white(images: Any) -> float:
    """Return the value of white: 255 for uint8, 1 for floats."""
    return _WHITE if images.dtype == tf.uint8 else 1.0


def like(images: Any, pixels: Any) -> Any:
    """Return float32 pixels in the dtype of `images`, rounded and clipped for uint8."""
    if images.dtype == tf.uint8:
        pixels = tf.round(tf.clip_by_value(pixels, 0.0, _WHITE))
    return tf.cast(pixels, images.dtype)


def centers(size: Any) -> Any:
    """Return the centers of all pixels of an axis of `size` pixels, float32[size], 0 to 1."""
    return (tf.range(size, dtype=tf.float32) + 0.5) / tf.cast(size, tf.float32)


def spatial_labels(labels: Any) -> Labels:
    """Return the labels that move with pixels, by key; {} without such labels.

    A tensor instead of a dict is a mask (key `CLASSES`), or a target image if it has 3 channels.
    """
    if labels is None:
        return {}
    if not isinstance(labels, dict):
        labels = tf.convert_to_tensor(labels)
        if labels.shape.rank is None or labels.shape.rank <= 2:
            return {}
        return {_TARGET if labels.shape[-1] == 3 else CLASSES: labels}
    spatial = {name: tf.convert_to_tensor(labels[name]) for name in labels if name in _MOVES}
    return spatial if {BOXES, CLASSES, _TARGET, *ALL_POINTS} & spatial.keys() else {}


def join_labels(labels: Any, spatial: Labels) -> Any:
    """Return `labels` with the values of `spatial`: the inverse of `spatial_labels`."""
    if isinstance(labels, dict):
        return {**labels, **spatial}
    return spatial.get(CLASSES, spatial.get(_TARGET, labels))


def map_labels(
    labels: Labels, boxes: Callable[[Any], Any], pixels: Callable[[Any, int], Any]
) -> Labels:
    """Return labels with `boxes` applied to their boxes, and `pixels` to their masks.

    `boxes` is also applied to keypoints, as boxes without extent. `pixels` gets masks and the axis
    of their rows; columns are the next axis.
    """

    def points(values: Any) -> Any:
        flat = tf.reshape(values, [tf.shape(values)[0], -1, 2])
        return tf.reshape(boxes(tf.concat([flat, flat], -1))[..., :2], tf.shape(values))

    movers: dict[str, Callable[[str, Any], Any]] = {
        "box": lambda _, values: boxes(values),
        "points": lambda _, values: points(values),
        "pixels": lambda key, values: pixels(values, 2 if key in _PADDING else 1),
    }
    return {
        key: movers[_MOVES[key]](key, value) if _MOVES[key] in movers else value
        for key, value in labels.items()
    }


def follow(labels: Labels, windows: Any, size: tuple[Any, Any], min_visible: float) -> Labels:
    """Return the labels of images, moved to a window of each image.

    `windows` are float32[batch, 4]: top, left, bottom, right as shares of the image, which can be
    outside 0 to 1. `size` is the height and width of the results. An object is cut away if less
    than `min_visible` of its box is visible, or less than a pixel of its height or width.
    """
    moved = map_labels(
        labels,
        lambda boxes: in_window(boxes, windows),
        lambda masks, axis: resample_masks(masks, windows, size, axis),
    )
    if BOXES in moved:
        moved = clip_objects(moved, labels[BOXES], _WHOLE, size, min_visible)
    return moved


def clip_points(labels: Labels, frames: Any) -> Labels:
    """Return labels with keypoints outside `frames` set to 0, 0, and their visibility to 0.

    `frames` are [batch, 4] or [1, 4], in shares of the image. Padding rows stay −1.
    """
    top, left, bottom, right = tf.split(tf.convert_to_tensor(frames), 4, axis=-1)
    changed = dict(labels)
    for key, visible_key in ALL_POINTS.items():
        if key not in labels or visible_key not in labels:
            continue
        points, visible = labels[key], labels[visible_key]
        shape = [-1] + [1] * (points.shape.rank - 2)
        is_left = visible > 0
        for at, low, high in ((points[..., 0], top, bottom), (points[..., 1], left, right)):
            is_left &= at >= tf.reshape(low, shape) - _ROUNDING
            is_left &= at <= tf.reshape(high, shape) + _ROUNDING
        changed[visible_key] = tf.where(is_left, visible, tf.zeros_like(visible))
        inside = tf.clip_by_value(points, 0.0, 1.0)
        places = tf.where(is_left[..., tf.newaxis], inside, tf.zeros_like(points))
        if key in _PADDING and BOXES in labels:
            is_row = labels[BOXES][..., tf.newaxis, :1] >= 0
            places = tf.where(is_row, places, -tf.ones_like(points))
        changed[key] = places
    return changed


def in_window(boxes: Any, windows: Any) -> Any:
    """Return boxes, float32[batch, n, 4], relative to the windows of images, float32[batch, 4]."""
    begin = tf.concat([windows[:, :2]] * 2, axis=1)[:, tf.newaxis]
    length = tf.concat([windows[:, 2:] - windows[:, :2]] * 2, axis=1)[:, tf.newaxis]
    return (boxes - begin) / length


def clip_objects(
    moved: Labels, before: Any, frames: Any, size: tuple[Any, Any], min_visible: float
) -> Labels:
    """Return labels with boxes clipped to `frames`; cut-away objects become padding rows.

    `before` are the boxes before the move, negative in padding rows. A frame is the part of the
    result that the image fills. Moved boxes and `frames`, [batch, 4] or [1, 4], are in shares of
    the result. `size` and `min_visible` are as in `follow`.
    """
    boxes, frames = moved[BOXES], tf.convert_to_tensor(frames)[:, tf.newaxis]
    low, high = (tf.concat([corner] * 2, -1) for corner in tf.split(frames, 2, axis=-1))
    inside = tf.clip_by_value(boxes, low, high)
    whole, part = boxes[..., 2:] - boxes[..., :2], inside[..., 2:] - inside[..., :2]
    pixels = part * tf.cast(tf.stack(size), tf.float32)
    is_left = tf.reduce_prod(part, -1) >= min_visible * tf.reduce_prod(whole, -1)
    is_left &= tf.reduce_all(pixels >= _LEAST_PIXELS, -1) & (before[..., 0] >= 0)
    return keep_objects({**moved, BOXES: inside}, is_left)


def keep_objects(labels: Labels, is_left: Any) -> Labels:
    """Return labels with the objects where `is_left`, bool[batch, n], is true, then padding."""
    number = tf.shape(is_left)[1]
    rows = tf.range(number)
    order = tf.argsort(tf.where(is_left, rows, rows + number))
    is_left = tf.gather(is_left, order, batch_dims=1)

    def sort(name: str, values: Any) -> Any:
        values = tf.gather(values, order, batch_dims=1)
        shape = tf.concat([tf.shape(is_left), [1] * (values.shape.rank - 2)], 0)
        padding = tf.cast(_PADDING[name], values.dtype)
        return tf.where(tf.reshape(is_left, shape), values, padding)

    return {
        name: sort(name, value) if name in _PADDING else value for name, value in labels.items()
    }


def resample_masks(values: Any, windows: Any, size: tuple[Any, Any], axis: int) -> Any:
    """Return a window of each mask, resized by nearest pixel centres. `windows` as in `follow`.

    Masks are [batch, n, height, width] if `axis` is 2, or [batch, height, width, 1] if it is 1.
    Outside the image, masks of objects are 0, and class masks have the highest value: "no class".
    """
    insides = []
    sides = tf.split(windows, 4, axis=1)  # grappler would turn [:, i, newaxis] into [:, i]
    for i in (0, 1):
        length = tf.shape(values)[axis + i]
        pixels = tf.cast(length, tf.float32)
        begin, share = sides[i], sides[i + 2] - sides[i]
        at = tf.cast(tf.floor((begin + centers(size[i]) * share) * pixels), tf.int32)
        insides.append((at >= 0) & (at < length))
        at = tf.clip_by_value(at, 0, length - 1)
        values = tf.gather(values, at, axis=axis + i, batch_dims=1)
    inside = insides[0][:, :, tf.newaxis] & insides[1][:, tf.newaxis]
    inside = inside[:, tf.newaxis] if axis == 2 else inside[..., tf.newaxis]
    outside = 0 if axis == 2 else int(values.dtype.max)
    return tf.where(inside, values, tf.cast(outside, values.dtype))


_LEAST_WEIGHT = 1e-6
"""Smallest sum of weights to divide by: outside the image, the sum is 0."""


def resample(
    images: Any, boxes: Any, size: tuple[Any, Any], *, fill: float | None = None, most: float = 1.0
) -> Any:
    """Return a box of each image, resized to one size: bilinear, antialiased when shrinking.

    The result equals Pillow's `Image.resize(size, BILINEAR, box)`: a triangle filter, scaled to the
    output pixels if these cover more than one input pixel. `boxes` are float32[batch, 4]: top,
    left, bottom, right as shares of the image. With `fill`, boxes may reach outside of the image;
    `fill` is the colour there as a share of white. `size` is height and width, integers or int32[].
    No box may cover more than the share `most` of an axis.
    """
    top, left, bottom, right = tf.unstack(boxes, axis=1)
    rows = _resample_axis(images, 1, (top, bottom), size[0], most)
    pixels = _resample_axis(rows, 2, (left, right), size[1], most)
    if fill is None:
        return like(images, pixels)
    inside = _inside(top, bottom, size[0])[:, :, None] & _inside(left, right, size[1])[:, None]
    return like(images, tf.where(inside[..., None], pixels, fill * white(images)))


def _inside(low: Any, high: Any, size: Any) -> Any:
    """Return bool[batch, size]: true for pixels of an axis whose centre is in the image."""
    at = low[:, tf.newaxis] + centers(size) * (high - low)[:, tf.newaxis]
    return (at >= 0.0) & (at < 1.0)


def _resample_axis(images: Any, axis: int, box: tuple[Any, Any], size: Any, most: float) -> Any:
    length = images.shape[axis] or tf.shape(images)[axis]
    pixels, outputs = tf.cast(length, tf.float32), tf.cast(size, tf.float32)
    covered = (box[1] - box[0])[:, tf.newaxis] * pixels / outputs  # input pixels per output pixel
    steps = tf.cast(tf.range(size), tf.float32) + 0.5
    center = box[0][:, tf.newaxis] * pixels + steps * covered
    reach = tf.maximum(covered, 1.0)
    first = tf.floor(center - reach + 0.5)

    def weight(tap: Any) -> Any:
        at = first + tf.cast(tap, tf.float32)
        triangle = tf.maximum(0.0, 1.0 - tf.abs(at + 0.5 - center) / reach)
        return tf.where((at >= 0.0) & (at < pixels), triangle, 0.0)

    num_taps = _num_taps(length, size, most)
    if isinstance(num_taps, int):
        weight = functools.cache(weight)  # shared by `total` and `term`, for a shorter program
    total = tf.maximum(_sum(weight, num_taps), _LEAST_WEIGHT)

    def term(tap: Any) -> Any:
        at = tf.clip_by_value(tf.cast(first, tf.int32) + tap, 0, length - 1)
        taken = tf.cast(tf.gather(images, at, axis=axis, batch_dims=1), tf.float32)
        share = weight(tap) / total
        return taken * tf.expand_dims(tf.expand_dims(share, 3 - axis), 3)

    return _sum(term, num_taps)


def _num_taps(length: Any, size: Any, most: float) -> Any:
    """Return the largest number of input pixels that an output pixel depends on."""
    if isinstance(length, int) and isinstance(size, int):
        return math.ceil(2 * max(1.0, most * length / size))
    covered = most * tf.cast(length, tf.float32) / tf.cast(size, tf.float32)
    return tf.cast(tf.math.ceil(2.0 * tf.maximum(1.0, covered)), tf.int32)


def _sum(term: Callable[[Any], Any], num: Any) -> Any:
    """Return the sum of terms 0 to `num` − 1, without a loop in the graph if `num` is known."""
    if isinstance(num, int):
        return sum((term(tap) for tap in range(1, num)), start=term(0))
    return tf.foldl(lambda done, tap: done + term(tap), tf.range(1, num), initializer=term(0))
