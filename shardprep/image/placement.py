"""Placement: the affine map from an image file to the stored image, for pixels, boxes and masks.

The image is turned upright by its EXIF orientation. Then a part of it is cut out, scaled on each
axis and put on the canvas. `process` crops and scales pixels by the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardprep.image.annotation_types import FRAMES, Floats, Frame
from shardprep.image.spec import ImageSpec, fitted_size

if TYPE_CHECKING:
    from shardprep.image.resample import Box

Labels = NDArray[np.unsignedinteger[Any]]

_Array = TypeVar("_Array", bound="np.ndarray[Any, Any]")

UPRIGHT = 1
"""EXIF orientation (EXIF 2.32, tag 0x0112) of a file whose first row is the top row."""
_MIRRORED, _UPSIDE_DOWN = (2, 3, 6, 7), (3, 4, 7, 8)
"""Orientations that reverse columns, and that reverse rows; 5 to 8 first swap both."""
_SAME_RATIO = 0.01
"""Maximum relative difference between the aspect ratios of an image and a resized copy that was
annotated; the sides of a copy are rounded."""


class _Axis(NamedTuple):
    """Affine map of one coordinate: stored = annotated · scale + offset."""

    scale: float
    offset: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Map from an image file to the stored image. Sizes are height and width in pixels."""

    orientation: int = UPRIGHT
    """EXIF orientation of the file, 1 to 8."""
    upright: tuple[int, int]
    """Size of the whole image when it is upright."""
    box: Box
    """Part of the upright image that is stored: left, top, right, bottom."""
    fitted: tuple[int, int]
    """Size that the part in `box` has in the stored image."""
    corner: tuple[int, int]
    """First row and column of this part in the stored image."""
    size: tuple[int, int]
    """Size of the stored image."""

    @classmethod
    def fit(
        cls, upright: tuple[int, int], spec: ImageSpec, orientation: int = UPRIGHT
    ) -> Placement:
        """Return the placement of an image of this upright size by the size and fit of the spec."""
        height, width = upright
        if spec.size is None:
            return cls.whole(upright, orientation)
        to_height, to_width = spec.size if spec.fit == "crop" else fitted_size(*upright, spec)
        box_width, box_height = float(width), float(height)
        if spec.fit == "crop" and (height, width) != (to_height, to_width):
            box_width = min(width, height * to_width / to_height)
            box_height = min(height, width * to_height / to_width)
        left, top = (width - box_width) / 2, (height - box_height) / 2
        size = spec.size if spec.fit == "pad" else (to_height, to_width)
        return cls(
            orientation=orientation,
            upright=upright,
            box=(left, top, left + box_width, top + box_height),
            fitted=(to_height, to_width),
            corner=((size[0] - to_height) // 2, (size[1] - to_width) // 2),
            size=size,
        )

    @classmethod
    def whole(cls, size: tuple[int, int], orientation: int = UPRIGHT) -> Placement:
        """Return the placement of an image that is stored in its upright size."""
        height, width = size
        box = (0.0, 0.0, float(width), float(height))
        return cls(
            orientation=orientation, upright=size, box=box, fitted=size, corner=(0, 0), size=size
        )

    def decoded_box(self, scale: int) -> Box:
        """Return `box` in the upright pixels of a decoder that divides the sides by `scale`.

        The decoder rounds sides up, so the last row and column of the file also cover pixels beyond
        the image. In the upright image, they may be the first row or column.
        """
        left, top, right, bottom = (edge / scale for edge in self.box)
        height, width = self.upright
        across = (-width % scale) / scale if self.orientation in _MIRRORED else 0.0
        down = (-height % scale) / scale if self.orientation in _UPSIDE_DOWN else 0.0
        return left + across, top + down, right + across, bottom + down

    @property
    def is_cropped(self) -> bool:
        """Whether only a part of the upright image is stored."""
        height, width = self.upright
        return self.box != (0.0, 0.0, width, height)

    @property
    def inside(self) -> tuple[slice, slice]:
        """Rows and columns of the stored image without padding."""
        (row, column), (height, width) = self.corner, self.fitted
        return slice(row, row + height), slice(column, column + width)

    def frame_size(self, frame: Frame) -> tuple[int, int]:
        return self.upright[::-1] if self._is_swapped(frame) else self.upright

    def frame(
        self, size: tuple[int, int] | None, frames: tuple[Frame, ...] = FRAMES
    ) -> Frame | None:
        """Return the frame of annotations made on an image of this size, or None if no frame fits.

        A frame of equal size is preferred, then one with the same aspect ratio within 1% (a resized
        copy). If several frames fit, or the size is unknown, the first in `frames` is returned.
        """
        if size is None or min(size) < 1:
            return frames[0]
        for frame in frames:
            if size == self.frame_size(frame):
                return frame
        for frame in frames:
            height, width = self.frame_size(frame)
            if abs(size[1] * height - size[0] * width) <= _SAME_RATIO * size[0] * width:
                return frame
        return None

    def boxes(self, boxes: Floats, size: tuple[int, int], frame: Frame) -> Floats:
        """Return boxes, float64[n, 4] of x, y, x, y, in pixels of the stored image, not clipped.

        `size` and `frame` belong to the annotated image; `size` is 1, 1 if boxes are shares of it.
        """
        x, y = self.axes(size, frame)
        across, down = ([1, 3], [0, 2]) if self._is_swapped(frame) else ([0, 2], [1, 3])
        left, right = across if x.scale > 0 else across[::-1]
        top, bottom = down if y.scale > 0 else down[::-1]
        order = [left, top, right, bottom]
        moved = boxes if order == [0, 1, 2, 3] else boxes[:, order]
        scale = np.array((x.scale, y.scale, x.scale, y.scale), np.float64)
        return moved * scale + np.array((x.offset, y.offset, x.offset, y.offset), np.float64)

    def points(self, points: Floats, size: tuple[int, int], frame: Frame) -> Floats:
        """Return points, float64[…, 2] of x, y, in pixels of the stored image; see `boxes`."""
        x, y = self.axes(size, frame)
        moved = points[..., ::-1] if self._is_swapped(frame) else points
        found: Floats = moved * (x.scale, y.scale) + (x.offset, y.offset)
        return found

    def mask(self, mask: Labels, frame: Frame, padding: int) -> Labels:
        """Return a mask of the whole image as a mask of the stored image, padded with `padding`.

        A stored pixel gets the value at its centre, as by Pillow's NEAREST with a box. The result
        may share memory with `mask`.
        """
        placed = turned(mask, self.orientation) if frame == "stored" else mask
        height, width = placed.shape
        left, top, right, bottom = self.box
        down, across = height / self.upright[0], width / self.upright[1]
        rows = _nearest(top * down, bottom * down, self.fitted[0], height)
        columns = _nearest(left * across, right * across, self.fitted[1], width)
        if rows is not None or columns is not None:
            rows = np.arange(height) if rows is None else rows
            columns = np.arange(width) if columns is None else columns
            placed = placed[np.ix_(rows, columns)]
        if self.fitted == self.size:
            return placed
        canvas = np.full(self.size, padding, mask.dtype)
        canvas[self.inside] = placed
        return canvas

    def is_turned(self, frame: Frame) -> bool:
        """Return whether annotations in this frame must be rotated or mirrored to be upright."""
        return frame == "stored" and self.orientation != UPRIGHT

    def _is_swapped(self, frame: Frame) -> bool:
        return frame == "stored" and self.orientation >= 5

    def axes(self, size: tuple[int, int], frame: Frame) -> tuple[_Axis, _Axis]:
        """Return the maps to x and to y of the stored image.

        Their arguments are annotated x and y, or y and x if the orientation (5 to 8) swaps axes.
        """
        turn = self.orientation if frame == "stored" else UPRIGHT
        height, width = size[::-1] if self._is_swapped(frame) else size
        full_height, full_width = self.upright
        left, top, right, bottom = self.box
        across, down = self.fitted[1] / (right - left), self.fitted[0] / (bottom - top)
        x, y = full_width / width, full_height / height
        x_scale, x_start = (-x, full_width) if turn in _MIRRORED else (x, 0.0)
        y_scale, y_start = (-y, full_height) if turn in _UPSIDE_DOWN else (y, 0.0)
        return (
            _Axis(x_scale * across, (x_start - left) * across + self.corner[1]),
            _Axis(y_scale * down, (y_start - top) * down + self.corner[0]),
        )


def turned(pixels: _Array, orientation: int) -> _Array:
    """Return an upright view of pixels that have this EXIF orientation."""
    if orientation == UPRIGHT:
        return pixels
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    rows = slice(None, None, -1) if orientation in _UPSIDE_DOWN else slice(None)
    columns = slice(None, None, -1) if orientation in _MIRRORED else slice(None)
    return pixels[rows, columns]  # type: ignore[return-value]


def _nearest(low: float, high: float, number: int, side: int) -> NDArray[np.intp] | None:
    """Return the source index of each of `number` pixels; None if the indices are unchanged.

    The arithmetic is Pillow's: edges in float32, then steps added one by one in float64.
    """
    if (low, high) == (0.0, side) and number == side:
        return None
    start, stop = np.float32(low), np.float32(high)
    steps = np.full(number, float(stop - start) / number)
    steps[0] = float(start) + steps[0] * 0.5
    return np.minimum(np.cumsum(steps).astype(np.intp), side - 1)
