"""Boxes and masks of examples as numpy arrays: of an example, and padded into a batch."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from shardprep.dataset.schema import BOX, BOX_LABEL, CROWD, MASK, OBJECT_MASK, Schema
from shardprep.dataset.stored_size import open_stored
from shardprep.reader.array_types import Array
from shardprep.reader.config import BoxFormat, Crop, Window
from shardprep.reader.decode.crop import clipped, nearest
from shardprep.reader.decode.targets import PADDING, Cut, formatted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MODES = {"uint8": "L", "uint16": "I;16"}
"""dtype of the pixels of a mask → Pillow's mode of its PNG."""
_DTYPES = {BOX: np.float32, BOX_LABEL: np.int64, CROWD: np.bool_}


class Annotations:
    """Turns the values of an example's boxes and masks into arrays.

    A value is float32[n, 4] of boxes, int64[n] of labels, bool[n] of crowds, uint8[n, height,
    width] of the masks of objects, and uint8 or uint16[height, width, 1] of a mask of classes.
    """

    def __init__(
        self,
        schema: Schema,
        names: Sequence[str],
        *,
        decode: bool,
        cut: Cut | None,
        crop: Crop | None,
    ) -> None:
        """Give those of the features `names`; without `decode`, masks stay bytes."""
        self._features = {name: one for name, one in schema.annotations.items() if name in names}
        self.names = frozenset(self._features)
        self._size = schema.image_size if crop is None else crop.size
        self._decode = decode
        self._cut = cut
        self._crop = crop

    def columns(self, num_rows: int) -> dict[str, Array]:
        """Return an array for a batch of each feature, not filled; of objects where rows differ."""
        found: dict[str, Array] = {name: np.empty(num_rows, object) for name in self._features}
        if MASK in found and self._decode and self._size is not None:
            found[MASK] = np.empty((num_rows, *self._size, 1), self._features[MASK].mask_dtype)
        return found

    def shapes(self) -> dict[str, tuple[tuple[int | None, ...], Any]]:
        """Return shape and dtype of a row of each feature in a padded batch, by name."""
        length = self._cut.max_boxes if self._cut else None
        size = self._size or (None, None)
        found: dict[str, tuple[tuple[int | None, ...], Any]] = {
            BOX: ((length, 4), np.float32),
            BOX_LABEL: ((length,), np.int64),
            CROWD: ((length,), np.bool_),
            OBJECT_MASK: ((length, *size), np.uint8),
        }
        if MASK in self._features:
            found[MASK] = ((*size, 1), self._features[MASK].mask_dtype)
        return {name: found[name] for name in self._features}

    def values(self, raw: Mapping[str, Any], size: tuple[int, ...] | None) -> dict[str, Any]:
        """Return the values of an example by feature; ValueError where one is damaged.

        `size` is height and width of the image, None where masks are not decoded. Where images are
        cropped, they are of the whole image, and all of its boxes: see `cropped`.
        """
        found = self._objects(raw, size) if BOX in self._features else {}
        if MASK in self._features:
            values = raw.get(MASK, [])
            if len(values) != 1:
                raise ValueError(f"feature {MASK!r} holds {len(values)} values, not 1")
            mask = self._mask(MASK, values[0], size)
            found[MASK] = mask[..., np.newaxis] if self._decode else mask
        return found

    def _objects(self, raw: Mapping[str, Any], size: tuple[int, ...] | None) -> dict[str, Any]:
        values = raw.get(BOX, [])
        if len(values) % 4:
            raise ValueError(f"feature {BOX!r} holds {len(values)} values, not 4 a box")
        boxes: Array = np.array(values, np.float32).reshape(-1, 4)
        of = {name: raw.get(name, []) for name in self._features if name in PADDING}
        of[BOX] = boxes
        for name, one in of.items():
            if len(one) != len(boxes):
                what = f"holds {len(one)} values of {len(boxes)} boxes"
                raise ValueError(f"feature {name!r} {what}")
        chosen = None if self._crop is not None else self._chosen(boxes)
        found: dict[str, Any] = {}
        for name, one in of.items():
            kept = one if chosen is None else [one[place] for place in chosen]
            if name == OBJECT_MASK:
                masks = [self._mask(name, data, size) for data in kept]
                whole = self._decode and size is not None
                found[name] = (
                    np.array(masks, np.uint8).reshape(-1, *(size or ())) if whole else masks
                )
            else:
                found[name] = np.array(kept, _DTYPES[name])
        return found

    def cropped(
        self, values: dict[str, Any], window: Window, size: tuple[int, int]
    ) -> dict[str, Any]:
        """Return values as they are seen in a part of an image of `size`, in its height and width.

        Boxes are clipped; those of which too little is left are gone, with all that goes with them.
        Masks are resized by the nearest pixel centres.
        """
        if self._crop is None:
            return values
        found = dict(values)
        if BOX in found:
            found[BOX], is_left = clipped(found[BOX], window, size, self._crop)
            left = np.flatnonzero(is_left)
            chosen = self._chosen(found[BOX][left])
            for name in PADDING.keys() & found.keys():
                found[name] = found[name][left if chosen is None else left[chosen]]
        for name, axis in ((OBJECT_MASK, 1), (MASK, 0)):
            if name in found:
                found[name] = nearest(found[name], window, self._crop.size, axis)
        return found

    def padded(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of a batch with objects padded to the largest, or to `max_boxes`."""
        length = self._cut.max_boxes if self._cut else None
        return {
            name: stacked(column, PADDING[name], length)
            if name in _DTYPES or (name == OBJECT_MASK and self._decode)
            else column
            for name, column in columns.items()
        }

    def _chosen(self, boxes: Array) -> Array | None:
        """Return the places of the boxes that are kept, rising; None for all."""
        if self._cut is None or len(boxes) <= self._cut.max_boxes:
            return None
        self._cut.tell(len(boxes))
        areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        chosen: Array = np.sort(np.argsort(-areas, kind="stable")[: self._cut.max_boxes])
        return chosen

    def _mask(self, name: str, data: Any, size: tuple[int, ...] | None) -> Any:
        """Return the pixels of a mask, [height, width], or its bytes."""
        if not self._decode:
            return bytes(data)
        dtype = self._features[name].mask_dtype
        try:
            with open_stored(data, "PNG") as image:
                mode, pixels = image.mode, np.array(image)
        except Exception as error:
            raise ValueError(f"a mask of {name!r} cannot be decoded ({error})") from error
        if mode != _MODES[dtype]:
            raise ValueError(f"a mask of {name!r} is a PNG of mode {mode}, not {_MODES[dtype]}")
        if size is not None and pixels.shape != size:
            shapes = ["x".join(map(str, one)) for one in (pixels.shape, size)]
            raise ValueError(f"a mask of {name!r} is {shapes[0]} (height x width), not {shapes[1]}")
        return pixels


def stacked(rows: Sequence[Array], value: float, length: int | None = None) -> Array:
    """Return arrays that differ in their first axis as one, padded behind to the longest."""
    length = max((len(row) for row in rows), default=0) if length is None else length
    inner = rows[0].shape[1:] if len(rows) else ()
    found = np.full((len(rows), length, *inner), value, rows[0].dtype)
    for row, place in zip(rows, found, strict=True):
        place[: len(row)] = row
    return found


def resized_mask(data: bytes, size: tuple[int, int] | None) -> bytes:
    """Return the PNG of a mask resized to (height, width) by the nearest pixel centres."""
    with open_stored(data, "PNG") as image:
        if size is None or (image.height, image.width) == size:
            return data
        pixels = np.array(image)
    places = [
        (2 * np.arange(wanted) + 1) * length // (2 * wanted)
        for length, wanted in zip(pixels.shape, size, strict=True)
    ]
    out = io.BytesIO()
    Image.fromarray(pixels[np.ix_(*places)]).save(out, "PNG")
    return out.getvalue()


def boxes_as(boxes: Array, box_format: BoxFormat, size: tuple[int, ...]) -> Array:
    """Return boxes, float32[…, 4], in another format, of an image of (height, width) pixels.

    Those of −1, which stand where there is no object, stay so.
    """
    if box_format == "rel_yxyx":
        return boxes
    height, width = map(np.float32, size)
    changed: Array = np.stack(formatted(boxes, box_format, height, width), axis=-1)
    return np.where(boxes[..., :1] < 0, boxes, changed)
