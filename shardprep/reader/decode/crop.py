"""Crops that are cut while images are decoded: which part of an image is shown, at which size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from shardprep.errors import DatasetError
from shardprep.reader.arguments import checked_fields
from shardprep.reader.validators import Kind, Share, Size, kind_of, number, pair

if TYPE_CHECKING:
    from collections.abc import Iterator

_TRIES = 10
"""Boxes that are drawn before the whole image is taken, as torchvision does."""

Scale = Annotated[
    tuple[float, float],
    pair(number(1e-6, 1), "(smallest, largest), two numbers above 0 up to 1", rising=True),
]
Ratio = Annotated[
    tuple[float, float],
    pair(number(1e-6), "(smallest, largest), two numbers above 0", rising=True),
]


class Window(NamedTuple):
    """The part of an image that a crop shows, in whole pixels of the image."""

    top: int
    left: int
    height: int
    width: int


@checked_fields("reader.RandomResizedCrop")
@dataclass(frozen=True, slots=True)
class RandomResizedCrop:
    """A box of each image, drawn anew in every epoch, and resized.

    The box is torchvision's: its share of the area is drawn evenly from `scale`, its aspect evenly
    in its logarithm from `ratio`, its sides are rounded, and it lies anywhere in the image. After
    ten draws that do not fit, it is the largest in the middle whose aspect is within `ratio`.

    Args:
        size: height and width of the results.
        scale: the smallest and the largest share of the area.
        ratio: the smallest and the largest aspect, width to height.
        min_visible: the share of an object's box below which it is cut away; so is what has a side
            below a pixel.

    """

    size: Size
    scale: Scale = (0.08, 1.0)
    ratio: Ratio = (3 / 4, 4 / 3)
    min_visible: Share = 0.1

    def window(self, height: int, width: int, draws: Iterator[float]) -> Window:
        """Return the box of an image of that size; `draws` yields numbers of 0 to below 1."""
        smallest, largest = self.scale
        low, high = map(math.log, self.ratio)
        for _ in range(_TRIES):
            area = (smallest + (largest - smallest) * next(draws)) * height * width
            aspect = math.exp(low + (high - low) * next(draws))
            tall, wide = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
            if 0 < tall <= height and 0 < wide <= width:
                top, left = height - tall + 1, width - wide + 1
                return Window(int(next(draws) * top), int(next(draws) * left), tall, wide)
        return _middle(height, width, min(max(width / height, self.ratio[0]), self.ratio[1]), 1.0)


@checked_fields("reader.CenterCrop")
@dataclass(frozen=True, slots=True)
class CenterCrop:
    """The middle of each image in the aspect of the result, and resized; nothing is drawn.

    Args:
        size: height and width of the results.
        fraction: sides of the box as a share of those of the largest that fits: 0.875 is what
            "resize to 256, cut out 224" shows.
        min_visible: as of `RandomResizedCrop`.

    """

    size: Size
    fraction: Annotated[float, number(0.01, 1)] = 1.0
    min_visible: Share = 0.1

    def window(self, height: int, width: int, draws: Iterator[float]) -> Window:
        """Return the box of an image of that size; nothing is taken from `draws`."""
        del draws
        return _middle(height, width, self.size[1] / self.size[0], self.fraction)


Crop = RandomResizedCrop | CenterCrop


def _middle(height: int, width: int, aspect: float, fraction: float) -> Window:
    """Return the box of an aspect, width to height, in the middle: a share of the largest."""
    tall = max(1, round(min(height, width / aspect) * fraction))
    wide = max(1, round(min(width, height * aspect) * fraction))
    return Window((height - tall) // 2, (width - wide) // 2, tall, wide)


def _taking(crop: Any) -> Kind:
    def take(value: Any) -> Any:
        return value if isinstance(value, crop) else crop(size.take(value))

    size = kind_of(Size)
    return Kind(take, (*size.right, f"reader.{crop.__name__}(…)"))


AnyRandomResizedCrop = Annotated[Any, _taking(RandomResizedCrop)]
AnyCenterCrop = Annotated[Any, _taking(CenterCrop)]


def crop_of(where: str, drawn: RandomResizedCrop | None, center: CenterCrop | None) -> Crop | None:
    """Return the crop that is given, if any; raise DatasetError where there are two."""
    if drawn is not None and center is not None:
        what = "random_resized_crop and center_crop"
        raise DatasetError(where, what, "give the one to train, the other to evaluate")
    return center if drawn is None else drawn
