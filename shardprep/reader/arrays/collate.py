"""Items as the detectors of torchvision take them; torch is imported when it is called."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from shardprep.dataset.schema import BOX, BOX_LABEL, CROWD, MASK, OBJECT_MASK
from shardprep.errors import DatasetError
from shardprep.reader.decode.annotations import boxes_as
from shardprep.reader.decode.targets import KEYS
from shardprep.reader.validators import Number, validated

if TYPE_CHECKING:
    from collections.abc import Sequence

_WHERE = "reader.collate"
_LARGE = {KEYS[OBJECT_MASK], KEYS[MASK]}
"""Names of values as large as images; whoever keeps the others does not keep these in memory."""
_ALIGNED = 16
"""Multiple of bytes at which each array of a storage begins."""


@validated(_WHERE)
def collate(items: Any, first_label: Number = 0) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return lists of images and of targets, for `DataLoader(…, collate_fn=reader.collate)`.

    An image is uint8[3, height, width], a view of the pixels as they were decoded, [height, width,
    3]. A target has `boxes` float32[n, 4], left, top, right, bottom in pixels; `labels` int64[n];
    where the set has them, `masks` uint8[n, height, width] and `iscrowd` int64[n]; and what else
    the items have. All are tensors of torch. In the process that calls it they share the memory of
    the items; a worker copies them once, to shared memory.

    Args:
        items: pairs of a `Dataset` with boxes.
        first_label: number of the first class. The detectors of torchvision keep 0 for what is
            none: `functools.partial(reader.collate, first_label=1)`.

    Raises:
        DatasetError: the items have no boxes, or torch is not installed.

    """
    try:
        import torch  # noqa: F401 - whether it is there
    except ModuleNotFoundError as error:
        raise DatasetError(
            _WHERE, "needs torch, which is not installed", "install torch"
        ) from error
    _check(items)
    pixels = _tensors([image for image, _ in items])
    images = [one.permute(2, 0, 1) for one in pixels]
    targets: list[dict[str, Any]] = [{} for _ in items]
    values = [_values(target, image.shape[:2], first_label) for image, target in items]
    for names in (_LARGE, {name for one in values for name in one} - _LARGE):
        places = [(i, name) for i, one in enumerate(values) for name in one if name in names]
        tensors = _tensors([values[i][name] for i, name in places])
        for (i, name), tensor in zip(places, tensors, strict=True):
            targets[i][name] = tensor
    return images, targets


def _values(target: dict[str, Any], size: tuple[int, ...], first_label: int) -> dict[str, Any]:
    """Return the values of a target as arrays, by the names that torchvision has for them."""
    found = {name: np.asarray(one) for name, one in target.items() if not isinstance(one, str)}
    found[KEYS[BOX]] = boxes_as(found[KEYS[BOX]], "xyxy", size)
    found[KEYS[BOX_LABEL]] = found[KEYS[BOX_LABEL]] + first_label
    if KEYS[CROWD] in found:
        found["iscrowd"] = found.pop(KEYS[CROWD]).astype(np.int64)
    return found


def _tensors(arrays: Sequence[Any]) -> list[Any]:
    """Return arrays as tensors that share their memory, or in a worker one shared storage.

    What a worker of a DataLoader returns is copied to shared memory, and each storage costs both
    processes a file: so everything is copied there once, and together.
    """
    import torch

    arrays = [np.ascontiguousarray(one).reshape(one.shape) for one in arrays]  # 0-d stays 0-d
    if torch.utils.data.get_worker_info() is None:
        return [torch.from_numpy(one) for one in arrays]
    stops = [*accumulate(-(-one.nbytes // _ALIGNED) * _ALIGNED for one in arrays)]
    new_shared: Any = torch.UntypedStorage._new_shared  # noqa: SLF001 - as its default_collate
    storage = new_shared(max([_ALIGNED, *stops]))
    whole = torch.empty(0, dtype=torch.uint8).set_(storage)
    found = []
    for one, start in zip(arrays, [0, *stops], strict=False):
        like = torch.from_numpy(one)
        tensor = whole[start : start + one.nbytes].view(like.dtype).reshape(like.shape)
        found.append(tensor.copy_(like))
    return found


def _check(items: Sequence[Any]) -> None:
    for item in items:
        is_pair = isinstance(item, tuple) and isinstance(item[-1], dict)
        if not is_pair or KEYS[BOX] not in item[-1] or not isinstance(item[0], np.ndarray):
            raise DatasetError(
                _WHERE,
                "the items are not pairs of an image, uint8[height, width, 3], and its boxes",
                "give it those of a reader.Dataset(…) of a set with boxes",
            )
