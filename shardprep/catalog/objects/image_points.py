"""Keypoints of whole images: the list that formats fill, and the arrays made from the list.

All images have the same keypoints, by name. If a name occurs several times in an image, its
repetitions are numbered: motor, motor 2, motor 3. So every image has arrays of the same shape.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardprep.catalog.names import natural_order
from shardprep.dataset.schema import MOST_POINTS
from shardprep.errors import OptionName, SourceError
from shardprep.image.annotation_types import Points, Skeleton
from shardprep.image.boxes import united

REPEATED, NOT_A_NUMBER = "repeated", "not a number"
"""Reasons to leave out a keypoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPoints:
    """The keypoints of all images, as read from documents of one format."""

    points: Mapping[int, Points]
    """Position of each listed image → float32[K, 3]: x, y, visibility of each keypoint."""
    skeleton: Skeleton
    how: str
    documents: tuple[str, ...]
    lost: Mapping[int, Mapping[str, int]]
    """Position of an image → reason → number of its keypoints that were left out."""
    without_image: Mapping[str, int]
    """Name of each listed image that the source lacks → number of its keypoints."""
    is_relative: bool = False
    findings: list[str] = field(default_factory=list)

    @property
    def num_labelled(self) -> int:
        return sum(int(np.count_nonzero(one[:, 2])) for one in self.points.values())


class PointList:
    """The keypoints of a source while documents are read, in the order of the documents."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        """`names` are the first keypoints, in order; other names follow in natural order."""
        self.listed: set[int] = set()
        self.missing: Counter[str] = Counter()
        self._names = names
        self._of: list[tuple[int, str]] = []
        """Image and name of each keypoint."""
        self._places = array("f")
        self._lost: defaultdict[int, Counter[str]] = defaultdict(Counter)

    def __len__(self) -> int:
        return len(self._of)

    def add(self, image: int, name: str, place: tuple[float, float]) -> None:
        self._of.append((image, name))
        self._places.extend(place)

    def lose(self, image: int, reason: str, count: int = 1) -> None:
        self._lost[image][reason] += count

    def places(self) -> NDArray[np.float32]:
        """Return x and y of each keypoint, float32[n, 2]."""
        return np.array(self._places).reshape(-1, 2)

    @property
    def are_shares(self) -> bool:
        """Whether all coordinates are in 0..1 and at least one is not a whole number."""
        places = self.places()
        is_share = places.size > 0 and bool(((places >= 0) & (places <= 1)).all())
        return is_share and bool((places % 1 != 0).any())

    def units(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return images with keypoints, and whether all keypoints of each look like shares."""
        images, of_image = np.unique([image for image, _ in self._of], return_inverse=True)
        places = self.places()
        num_pixels = np.bincount(of_image, ((places < 0) | (places > 1)).any(1))
        num_broken = np.bincount(of_image, (places % 1 != 0).any(1))
        return images, (num_pixels == 0) & (num_broken > 0)

    def found(self, how: str, documents: Iterable[str], where: str, **more: object) -> FoundPoints:
        """Return the keypoints of all images; SourceError if they have over `MOST_POINTS` names."""
        others = sorted({name for _, name in self._of}.difference(self._names), key=natural_order)
        names = [*self._names, *others]
        order = {name: i for i, name in enumerate(names)}
        of_name = defaultdict[tuple[int, str], dict[tuple[float, ...], None]](dict)
        for (image, name), place in zip(self._of, map(tuple, self.places().tolist()), strict=True):
            if place in of_name[image, name]:
                self.lose(image, REPEATED)
            of_name[image, name][place] = None
        used = {(order[name], i) for (_, name), own in of_name.items() for i in range(len(own))}
        slots = sorted(used | {(i, 0) for i in order.values()})
        if len(slots) > MOST_POINTS:
            what = f"has {len(slots):,} keypoints of all images together, more than {MOST_POINTS:,}"
            hint = f"give the boxes of objects instead, with {OptionName('boxes')}"
            raise SourceError(where, what, hint)
        titles = [f"{names[i]} {number + 1}" if number else names[i] for i, number in slots]
        slot_of = {one: i for i, one in enumerate(slots)}
        points = {image: np.zeros((len(slots), 3), np.float32) for image in self.listed}
        for (image, name), own in of_name.items():
            for number, place in enumerate(own):
                points[image][slot_of[order[name], number]] = (*place, 2)
        return FoundPoints(
            points=points,
            skeleton=united([Skeleton(tuple(titles))]),
            how=how,
            documents=tuple(documents),
            lost=self._lost,
            without_image=self.missing,
            **more,  # type: ignore[arg-type]
        )
