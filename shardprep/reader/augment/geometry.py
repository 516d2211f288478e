"""Ops that move pixels: flips, quarter turns, crops, zoom, letterbox and mosaic.

Pixels are gathered by index along one axis at a time, with separate indices for each image. Unlike
`tf.image.crop_and_resize` and `ImageProjectiveTransformV3`, this keeps uint8 and is compiled by
XLA. Pixels are only averaged, so floats may have any range; `fill` assumes a range of 0 to 1.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from dataclasses import dataclass
from typing import Annotated, Any

import tensorflow as tf

from shardprep.dataset.schema import POINTS, Schema
from shardprep.errors import DatasetError
from shardprep.reader.augment.op import (
    ALL_POINTS,
    BOXES,
    CLASSES,
    Labels,
    Move,
    Moved,
    between,
    centers,
    clip_objects,
    clip_points,
    draw,
    follow,
    in_window,
    keep_objects,
    map_labels,
    resample,
    resample_masks,
    spatial_labels,
)
from shardprep.reader.config import Ratio, Scale
from shardprep.reader.decode.targets import KEYS, MIRRORED, advise_pairs
from shardprep.reader.tf.python_calls import as_written
from shardprep.reader.validators import Kind, Share, Size, number, pair, validated_fields


def _places(value: Any) -> tuple[int, ...]:
    places = tuple(map(operator.index, value))
    if sorted(places) != [*range(len(places))]:
        raise ValueError
    return places


Places = Annotated[tuple[int, ...], Kind(_places, ("the numbers from 0, each once",))]
_ZoomScale = Annotated[
    tuple[float, float],
    pair(number(0.05, 20), "(smallest, largest), two numbers from 0.05 to 20", rising=True),
]
_Middle = Annotated[
    tuple[float, float],
    pair(number(0.1, 0.9), "(smallest, largest), two numbers from 0.1 to 0.9", rising=True),
]
_NUM_PARTS = 4
_WHOLE = (0.0, 0.0, 1.0, 1.0)


@validated_fields("augment.Flip")
@dataclass(frozen=True, slots=True)
class Flip(Move):
    """Mirror each image, with its boxes, masks and keypoints, at random.

    Paired keypoints, such as the left and right eye, are exchanged. `reader.load` sets the pairs;
    give them if you call the op yourself.

    Args:
        horizontal: probability of exchanging left and right.
        vertical: probability of exchanging top and bottom.
        mirrored: for each keypoint of objects, the index of the keypoint that replaces it in a
            mirrored image; () without pairs.
        mirrored_points: the same for the keypoints of images.
    """

    horizontal: Share = 0.5
    vertical: Share = 0.0
    mirrored: Places | None = None
    mirrored_points: Places | None = None

    def for_keypoints(self, schema: Schema) -> Flip:
        """Return the op with the keypoint pairs of a schema where it has no pairs of its own."""
        known = dict[str, Any]()
        for name, field in MIRRORED.items():
            if name in schema.features and getattr(self, field) is None:
                known[field] = schema.features[name].mirrored
                advise_pairs(schema, name, f"Flip({field}=…), or {field}=() to swap none")
        return dataclasses.replace(self, **known)

    def _moved(self, images: Any, labels: Labels, seed: Any) -> Moved:
        across, down = draw(images, seed, 2)
        for axis, chance, probability in ((1, down, self.vertical), (2, across, self.horizontal)):
            if probability:
                images, labels = _mirrored(images, labels, chance < probability, axis)
                labels = self._exchanged(labels, chance < probability)
        return images, labels

    def _exchanged(self, labels: Labels, flipped: Any) -> Labels:
        labels = dict(labels)
        for (key, visible), field in zip(ALL_POINTS.items(), MIRRORED.values(), strict=True):
            if key not in labels:
                continue
            pairs = getattr(self, field)
            if pairs is None:
                what = f"a flip must swap left and right {key!r}, but their pairs are unknown"
                hint = f"give Flip({field}=…) as in the schema, or Flip({field}=()) for no pairs"
                raise DatasetError("augment.Flip", what, hint)
            for name, axis in ((key, -2), (visible, -1)):
                if pairs and name in labels:
                    values = labels[name]
                    other = tf.gather(values, list(pairs), axis=axis)
                    shape = [-1] + [1] * (values.shape.rank - 1)
                    labels[name] = tf.where(tf.reshape(flipped, shape), other, values)
        return labels


@validated_fields("augment.QuarterTurn")
@dataclass(frozen=True, slots=True)
class QuarterTurn(Move):
    """Turn square images, with their boxes and masks, by 90, 180 or 270 degrees at random.

    Args:
        probability: probability that an image is turned.
    """

    probability: Share = 0.75

    def _moved(self, images: Any, labels: Labels, seed: Any) -> Moved:
        height, width = images.shape[1:3]
        if height != width and height is not None and width is not None:
            raise DatasetError(
                "augment.QuarterTurn",
                f"images of {width}x{height} are not square",
                "crop them first: augment.RandomResizedCrop((224, 224))",
            )
        chance, which = draw(images, seed, 2)
        turns = tf.where(chance < self.probability, 1 + tf.cast(which * 3, tf.int32), 0)
        images, labels = _transposed(images, labels, turns % 2 == 1)
        images, labels = _mirrored(images, labels, (turns == 1) | (turns == 2), 1)
        return _mirrored(images, labels, turns >= 2, 2)


@validated_fields("augment.RandomResizedCrop")
@dataclass(frozen=True, slots=True)
class RandomResizedCrop(Move):
    """Crop a random window from each image and resize it, like torchvision's op of that name.

    The window's share of the image's area is uniform in `scale`. Its aspect ratio is uniform in its
    logarithm, among the ratios in `ratio` that fit into the image. If none fits, the window has the
    nearest ratio and is as large as possible. Its position is uniform and not rounded to pixels.
    Boxes are clipped at its edges; masks are resized by nearest neighbour.

    Args:
        size: height and width of the results.
        scale: smallest and largest share of the area.
        ratio: smallest and largest aspect ratio, width to height.
        min_visible: an object is cut away if less than this share of its box's area is visible, or
            if a side of the visible box is shorter than a pixel.
    """

    size: Size
    scale: Scale = (0.08, 1.0)
    ratio: Ratio = (3 / 4, 4 / 3)
    min_visible: Share = 0.1

    def _moved(self, images: Any, labels: Labels, seed: Any) -> Moved:
        windows = self.boxes(images, seed)
        labels = follow(labels, windows, self.size, self.min_visible)
        return resample(images, windows, self.size), labels

    def boxes(self, images: Any, seed: Any) -> Any:
        """Return random windows, float32[batch, 4]: top, left, bottom, right, each 0 to 1."""
        area, aspect, down, across = draw(images, seed, 4)
        area = between(*self.scale, area)
        shape = tf.cast(tf.shape(images), tf.float32)
        of_image = shape[2] / shape[1]
        low, high = (
            tf.math.log(tf.clip_by_value(fits, *self.ratio))
            for fits in (area * of_image, of_image / area)
        )
        aspect = tf.exp(between(low, high, aspect)) / of_image
        height, width = tf.sqrt(area / aspect), tf.sqrt(area * aspect)
        too_large = tf.maximum(1.0, tf.maximum(height, width))
        height, width = height / too_large, width / too_large
        top, left = down * (1.0 - height), across * (1.0 - width)
        return tf.stack([top, left, top + height, left + width], axis=1)


@dataclass(frozen=True, slots=True)
class Stretch(Move):
    """Resize whole images without keeping their aspect ratio: replaces a crop in inference."""

    size: tuple[int, int]

    def _moved(self, images: Any, labels: Labels, seed: Any) -> Moved:
        del seed
        windows = tf.repeat(tf.constant([_WHOLE]), tf.shape(images)[0], axis=0)
        return resample(images, windows, self.size), follow(labels, windows, self.size, 0.0)


@validated_fields("augment.Zoom")
@dataclass(frozen=True, slots=True)
class Zoom(Move):
    """Zoom in to a random part of each image, or out, with padding around the image.

    Images keep their size and aspect ratio. Boxes are clipped, masks are resized by nearest
    neighbour, and class masks have the value of "no class" in the padding.

    Args:
        scale: smallest and largest factor, drawn uniformly in its logarithm; 2 shows half of height
            and width, 0.5 shows the whole image on a quarter of the area.
        fill: grey of the padding, from 0 (black) to 1 (white).
        min_visible: as in `RandomResizedCrop`.
    """

    scale: _ZoomScale = (0.5, 1.5)
    fill: Share = 0.0
    min_visible: Share = 0.1

    def _moved(self, images: Any, labels: Labels, seed: Any) -> Moved:
        scale, down, across = draw(images, seed, 3)
        low, high = map(math.log, self.scale)
        side = tf.exp(-between(low, high, scale))
        top, left = down * (1.0 - side), across * (1.0 - side)
        windows = tf.stack([top, left, top + side, left + side], axis=1)
        size = _size(images)
        most = max(1.0, 1.0 / self.scale[0])
        labels = follow(labels, windows, size, self.min_visible)
        return resample(images, windows, size, fill=self.fill, most=most), labels


@validated_fields("augment.Letterbox")
@dataclass(frozen=True, slots=True)
class Letterbox(Move):
    """Resize whole images to one size with their aspect ratio kept, and pad the rest.

    Nothing is random. Masks are resized by nearest neighbour; class masks have the value of
    "no class" in the padding.

    Args:
        size: height and width of the results.
        fill: grey of the padding, from 0 (black) to 1 (white).
    """

    size: Size
    fill: Share = 0.0

    def _moved(self, images: Any, labels: Labels, seed: Any) -> Moved:
        del seed
        shape = tf.cast(tf.shape(images)[1:3], tf.float32)
        wanted = tf.constant(self.size, tf.float32)
        shares = wanted / (shape * tf.reduce_min(wanted / shape))  # of the image, at least 1
        window = tf.concat([0.5 - shares / 2, 0.5 + shares / 2], 0)
        windows = tf.repeat(window[tf.newaxis], tf.shape(images)[0], axis=0)
        height, width = images.shape[1:3]
        most = tf.reduce_max(shares)
        if height is not None and width is not None:  # a constant for the graph
            down, across = self.size[0] / height, self.size[1] / width
            most = max(down, across) / min(down, across)
        labels = follow(labels, windows, self.size, 0.0)
        return resample(images, windows, self.size, fill=self.fill, most=most), labels


@validated_fields("augment.Mosaic")
@dataclass(frozen=True, slots=True)
class Mosaic(Move):
    """Join parts of four images: each image with the three before it in the batch.

    The images meet at a random point. Each image is scaled to fill its quarter, and keeps its
    aspect ratio; a random part of it is visible. Boxes are clipped to their quarter. The result
    has four times as many rows for objects, with padding rows last.

    Args:
        middle: smallest and largest share of height and width at which the images meet.
        probability: probability that an image is joined with others.
        min_visible: as in `RandomResizedCrop`.
    """

    middle: _Middle = (0.3, 0.7)
    probability: Share = 1.0
    min_visible: Share = 0.1

    def _moved(self, images: Any, labels: Labels, seed: Any) -> Moved:
        chance, down, across, *offsets = draw(images, seed, 11)
        joins = chance < self.probability
        row, column = (
            tf.where(joins, between(*self.middle, share), 1.0) for share in (down, across)
        )
        zero, one = tf.zeros_like(row), tf.ones_like(row)
        size = _size(images)
        # One batch of four times as many images makes the compiled program a quarter as long.
        quarters = (
            (zero, zero, row, column),
            (zero, column, row, one),
            (row, zero, one, column),
            (row, column, one, one),
        )
        frames = tf.concat([tf.stack(quarter, axis=1) for quarter in quarters], 0)
        offsets = tf.concat([tf.stack(offsets[i : i + 2], axis=1) for i in (0, 2, 4, 6)], 0)
        low = min(self.middle[0], 1.0 - self.middle[1])
        windows = _filling(frames, offsets, low)
        parts = resample(_rolled(images), windows, size, fill=0.0, most=1.0 / low)
        within = _within(frames, size)
        mosaic = _added(tf.where(within[..., tf.newaxis], parts, tf.zeros_like(parts)))
        labels = tf.nest.map_structure(_rolled, labels)

        def pixels(masks: Any, axis: int) -> Any:
            masks = resample_masks(masks, windows, size, axis)
            inside = within[:, tf.newaxis] if axis == 2 else within[..., tf.newaxis]
            return tf.where(inside, masks, tf.zeros_like(masks))

        moved = map_labels(labels, lambda boxes: in_window(boxes, windows), pixels)
        if BOXES in moved:
            moved = clip_objects(moved, labels[BOXES], frames, size, self.min_visible)
        return mosaic, _joined(clip_points(moved, frames))

    @as_written
    def __call__(self, images: Any, labels: Any = None, *, seed: Any) -> Any:
        spatial = spatial_labels(labels)
        others = labels.keys() - spatial.keys() if isinstance(labels, dict) else ()
        others = {*others, *(spatial.keys() & {KEYS[POINTS]})}
        if labels is not None and (others or not spatial):
            names = f" ({', '.join(sorted(others))})" if others else ""
            raise DatasetError(
                "augment.Mosaic",
                f"labels of whole images cannot be joined{names}",
                "leave Mosaic out of Compose, or read a dataset with only boxes or masks",
            )
        if tf.convert_to_tensor(images).shape.rank == 3:
            raise DatasetError("augment.Mosaic", "needs image batches", "give load a batch_size")
        return Move.__call__(self, images, labels, seed=seed)


def mirror(images: Any, flipped: Any, axis: int) -> Any:
    """Return images mirrored along axis 1 or 2 where `flipped`, bool[batch], is true."""
    length = tf.shape(images)[axis]
    indices = tf.range(length)
    indices = tf.where(flipped[:, tf.newaxis], length - 1 - indices, indices)
    return tf.gather(images, indices, axis=axis, batch_dims=1)


def _mirrored(images: Any, labels: Labels, flipped: Any, axis: int) -> Moved:
    def boxes(boxes: Any) -> Any:
        top, left, bottom, right = tf.unstack(boxes, axis=-1)
        across = [top, 1.0 - right, bottom, 1.0 - left]
        down = [1.0 - bottom, left, 1.0 - top, right]
        other = tf.stack(down if axis == 1 else across, axis=-1)
        return tf.where(flipped[:, tf.newaxis, tf.newaxis] & (boxes >= 0), other, boxes)

    def pixels(masks: Any, rows: int) -> Any:
        return mirror(masks, flipped, axis + rows - 1)

    return mirror(images, flipped, axis), map_labels(labels, boxes, pixels)


def _transposed(images: Any, labels: Labels, chosen: Any) -> Moved:
    """Return the batch with rows and columns of square images exchanged where `chosen` is true."""

    def pixels(values: Any, rows: int) -> Any:
        axes = [*range(values.shape.rank)]
        axes[rows], axes[rows + 1] = axes[rows + 1], axes[rows]
        mask = tf.reshape(chosen, [-1] + [1] * (values.shape.rank - 1))
        return tf.where(mask, tf.transpose(values, axes), values)

    def boxes(boxes: Any) -> Any:
        return tf.where(
            chosen[:, tf.newaxis, tf.newaxis], tf.gather(boxes, [1, 0, 3, 2], axis=-1), boxes
        )

    return pixels(images, 1), map_labels(labels, boxes, pixels)


def _filling(frames: Any, offsets: Any, least: float) -> Any:
    """Return a window of each image, float32[n, 4], such that the image fills its frame.

    Windows are shares of the image, and frames are shares of the result. `offsets`, float32[n, 2],
    choose the visible part: 0 for top or left, 1 for bottom or right. The whole image takes at
    least `least` of the height and width of the result.
    """
    sides = frames[:, 2:] - frames[:, :2]
    scale = tf.maximum(tf.reduce_max(sides, axis=1, keepdims=True), least)
    begin = offsets * (1.0 - sides / scale) - frames[:, :2] / scale
    return tf.concat([begin, begin + 1.0 / scale], axis=1)


def _within(frames: Any, size: tuple[Any, Any]) -> Any:
    """Return bool[batch, height, width]: true for pixels whose centre is in the frame."""
    inside = []
    sides = tf.split(frames, 4, axis=1)
    for i in (0, 1):
        at = centers(size[i])
        inside.append((at >= sides[i]) & (at < sides[i + 2]))
    return inside[0][:, :, tf.newaxis] & inside[1][:, tf.newaxis]


def _rolled(values: Any) -> Any:
    """Return four copies of a batch, concatenated, rolled by 0, 1, 2 and 3 images."""
    return tf.concat([tf.roll(values, shift, 0) for shift in range(_NUM_PARTS)], 0)


def _added(parts: Any) -> Any:
    """Return the sum of the four parts of each image; a part is 0 outside its frame."""
    return tf.add_n(tf.split(parts, _NUM_PARTS))


def _joined(parts: Labels) -> Any:
    """Return the labels of the four parts of each image, joined; padding rows come last."""
    labels = {
        name: _added(value) if name == CLASSES else tf.concat(tf.split(value, _NUM_PARTS), axis=1)
        for name, value in parts.items()
    }
    return keep_objects(labels, labels[BOXES][..., 0] >= 0) if BOXES in labels else labels


def _size(images: Any) -> tuple[Any, Any]:
    height, width = images.shape[1:3]
    shape = tf.shape(images)
    return shape[1] if height is None else height, shape[2] if width is None else width
