"""The mask files of one image: layers of its class mask, or the shapes of its objects."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shardprep.image.annotation_types import IGNORE, IGNORE_16
from shardprep.image.mask_decode import (
    MAX_PIXELS,
    MaskError,
    decode_ids,
    decode_mask,
    decode_numbers,
    mask_classes,
    value_counts,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from shardprep.image.annotation_types import AnnotationSpec, Frame
    from shardprep.image.mask_decode import MaskFile
    from shardprep.image.placement import Labels, Placement

_MAX_IDS = 10_000
"""Objects of one mask of numbered objects."""


@dataclass(slots=True)
class MaskFiles:
    """The mask files of one image, decoded one at a time."""

    data: Sequence[bytes]
    labels: Sequence[int]
    """Class index of each file; of another number where the files do not have one each."""
    placement: Placement
    spec: AnnotationSpec

    def paint(self, mask: Labels) -> None:
        """Paint the classes of all files over a stored mask, background left out."""
        nothing = self.spec.background
        for number in range(len(self.data)):
            classes, frame = self._classes(number)
            if self.spec.is_binary:
                mask[self.placement.mask(classes, frame, 0) != 0] = self._label(number, 1)
            else:
                layer = self.placement.mask(classes, frame, nothing)
                np.copyto(mask, layer, where=layer != nothing)

    def shapes(self) -> Iterator[tuple[int, Labels, Frame]]:
        """Yield label, mask of 0 and 1, and frame of each object.

        A file of two values is one object, one with a table an object a class, and one of other
        values an object a value, 0 and `IGNORE` left out.
        """
        for number in range(len(self.data)):
            label = self._label(number, 0)
            if self.spec.is_binary:
                yield label, *self._classes(number)
            elif self.spec.values is not None:
                classes, frame = self._classes(number)
                nothing = (self.spec.background, self.spec.ignore)
                for value in self._values(number, classes, nothing):
                    yield value, (classes == value).view(np.uint8), frame
            else:
                file, frame = self._decoded(number)
                ids = file.pixels
                if ids.ndim == 3 or file.is_lossy:
                    raise MaskError(f"{self._name(number)} has colours, and no numbers of objects")
                nothing = (0, IGNORE if ids.dtype == np.uint8 else IGNORE_16)
                for value in self._values(number, ids, nothing):
                    yield label, (ids == value).view(np.uint8), frame

    def ids(self) -> tuple[NDArray[np.uint32], Frame]:
        """Return the ids of segments in the one file of a panoptic set, and its frame."""
        if len(self.data) != 1:
            raise MaskError(f"has {len(self.data)} files, and its segments are in one")
        height, width = self.placement.upright
        with fault_of("the mask"):
            most = max(MAX_PIXELS, height * width)
            decode = decode_numbers if self.spec.ids_are_values else decode_ids
            found = decode(self.data[0], most)
            return found, self._frame(found)

    def _classes(self, number: int) -> tuple[Labels, Frame]:
        """Return the classes in a file, or 0 and 1 of two values, and its frame."""
        file, frame = self._decoded(number)
        with fault_of(self._name(number)):
            return mask_classes(file, self.spec), frame

    def _decoded(self, number: int) -> tuple[MaskFile, Frame]:
        """Return a decoded file and its frame, told by its own size."""
        height, width = self.placement.upright
        with fault_of(self._name(number)):
            file = decode_mask(self.data[number], max(MAX_PIXELS, height * width))
            return file, self._frame(file.pixels)

    def _frame(self, pixels: NDArray[Any]) -> Frame:
        """Return the frame of a decoded file, told by its size."""
        size = pixels.shape[0], pixels.shape[1]
        frame = self.placement.frame(size, self.spec.frame)
        if frame is None:
            raise MaskError(f"is {size_mismatch(size, self.placement)}")
        return frame

    def _values(self, number: int, pixels: Labels, nothing: tuple[int, int]) -> list[int]:
        """Return the values of a mask but those that mean nothing."""
        values = [v for v in np.flatnonzero(value_counts(pixels)).tolist() if v not in nothing]
        if len(values) > _MAX_IDS:
            what = f"{len(values):,} objects, the limit is {_MAX_IDS:,}"
            raise MaskError(f"{self._name(number)} has {what}")
        return values

    def _label(self, number: int, default: int) -> int:
        return self.labels[number] if len(self.labels) == len(self.data) else default

    def _name(self, number: int) -> str:
        return "the mask" if len(self.data) == 1 else f"mask {number + 1} of {len(self.data)}"


@contextlib.contextmanager
def fault_of(name: str) -> Iterator[None]:
    """Say which mask has the fault."""
    try:
        yield
    except MaskError as error:
        raise MaskError(f"{name} {error}") from None


def size_mismatch(size: tuple[int, int], placement: Placement) -> str:
    """Return words for a size that no frame of the image has."""
    height, width = placement.upright
    return f"of {size[1]}x{size[0]} pixels, and its image has {width}x{height}"
