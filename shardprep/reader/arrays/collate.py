"""Items as the detectors of torchvision take them; torch is imported when it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shardprep.dataset.schema import BOX, BOX_LABEL, CROWD
from shardprep.errors import DatasetError
from shardprep.reader.argument_kinds import Number  # noqa: TC001 - checked by it
from shardprep.reader.arguments import checking
from shardprep.reader.arrays.annotations import boxes_as
from shardprep.reader.targets import KEYS

if TYPE_CHECKING:
    from collections.abc import Sequence

_WHERE = "reader.collate"


@checking(_WHERE)
def collate(items: Any, first_label: Number = 0) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return lists of images and of targets, for `DataLoader(…, collate_fn=reader.collate)`.

    An image is uint8[3, height, width]. A target has `boxes` float32[n, 4], left, top, right,
    bottom in pixels; `labels` int64[n]; where the set has them, `masks` uint8[n, height, width] and
    `iscrowd` int64[n]; and what else the items have. All are tensors of torch.

    Args:
        items: pairs of a `Dataset` with boxes.
        first_label: number of the first class. The detectors of torchvision keep 0 for what is
            none: `functools.partial(reader.collate, first_label=1)`.

    Raises:
        DatasetError: the items have no boxes, or torch is not installed.

    """
    try:
        import torch
    except ModuleNotFoundError as error:
        raise DatasetError(
            _WHERE, "needs torch, which is not installed", "install torch"
        ) from error
    _check(items)
    images = [torch.from_numpy(np.ascontiguousarray(one.transpose(2, 0, 1))) for one, _ in items]
    targets = []
    for image, target in items:
        found = {
            name: torch.as_tensor(value)
            for name, value in target.items()
            if not isinstance(value, str)
        }
        boxes = boxes_as(target[KEYS[BOX]], "xyxy", image.shape[:2])
        found[KEYS[BOX]] = torch.from_numpy(boxes)
        found[KEYS[BOX_LABEL]] = torch.from_numpy(target[KEYS[BOX_LABEL]] + first_label)
        if KEYS[CROWD] in found:
            found["iscrowd"] = found.pop(KEYS[CROWD]).to(torch.int64)
        targets.append(found)
    return images, targets


def _check(items: Sequence[Any]) -> None:
    for item in items:
        is_pair = isinstance(item, tuple) and isinstance(item[-1], dict)
        if not is_pair or KEYS[BOX] not in item[-1]:
            raise DatasetError(
                _WHERE,
                "the items are no pairs of an image and its boxes",
                "give it those of a reader.Dataset(…) of a set with boxes",
            )
