"""`reader.collate`: batches for torchvision's detectors. Imports torch only when it is called."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from shardprep.dataset.schema import (
    BOX,
    BOX_LABEL,
    CROWD,
    KEYPOINTS,
    KEYPOINTS_VISIBLE,
    MASK,
    OBJECT_MASK,
)
from shardprep.errors import DatasetError
from shardprep.reader.decode.annotations import array_as
from shardprep.reader.decode.targets import KEYS
from shardprep.reader.validators import Number, validated

_WHERE = "reader.collate"
_LARGE = {KEYS[OBJECT_MASK], KEYS[MASK]}
"""Keys of masks, which may be as large as images. Masks have a separate storage, so that the other
values can be kept without them."""
_ALIGNMENT = 16
"""Alignment in bytes of the arrays in a storage."""


@validated(_WHERE)
def collate(items: Any, first_label: Number = 0) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return lists of images and targets, for `DataLoader(…, collate_fn=reader.collate)`.

    An image is uint8[3, height, width], a view of pixels in memory as [height, width, 3]. A target
    has `boxes` float32[n, 4] as left, top, right, bottom in pixels; `labels` int64[n]; `masks`
    uint8[n, height, width], `iscrowd` int64[n] and `keypoints` float32[n, K, 3], x and y in pixels
    and visibility, if the dataset has them; and all other values of the items except texts. All are
    torch tensors. Images and masks share the memory of the items. A worker of a DataLoader copies
    all values once to shared memory instead. On Linux, the size of /dev/shm does not limit them.

    Args:
        items: (image, target) pairs of a `Dataset` with boxes.
        first_label: number of the first class. torchvision's detectors use 0 for the background,
            so pass `functools.partial(reader.collate, first_label=1)`.

    Raises:
        DatasetError: the items have no boxes, or torch is not installed.
    """
    try:
        import torch  # noqa: F401 - to raise the error below
    except ModuleNotFoundError as error:
        what = "needs torch, which is not installed"
        raise DatasetError(_WHERE, what, "install torch") from error
    _check(items)
    images = [one.permute(2, 0, 1) for one in _tensors([image for image, _ in items])]
    targets: list[dict[str, Any]] = [{} for _ in items]
    values = [_values(target, image.shape[:2], first_label) for image, target in items]
    for names in (_LARGE, {name for one in values for name in one} - _LARGE):
        places = [(i, name) for i, one in enumerate(values) for name in one if name in names]
        tensors = _tensors([values[i][name] for i, name in places])
        for (i, name), tensor in zip(places, tensors, strict=True):
            targets[i][name] = tensor
    return images, targets


def _values(target: dict[str, Any], size: tuple[int, ...], first_label: int) -> dict[str, Any]:
    arrays = {name: np.asarray(one) for name, one in target.items()}
    arrays = {name: one for name, one in arrays.items() if one.dtype.kind not in "UO"}
    arrays[KEYS[BOX]] = array_as(BOX, arrays[KEYS[BOX]], "xyxy", size)
    arrays[KEYS[BOX_LABEL]] = arrays[KEYS[BOX_LABEL]] + first_label
    if KEYS[KEYPOINTS] in arrays:
        places = array_as(KEYPOINTS, arrays[KEYS[KEYPOINTS]], "xyxy", size)
        visible = arrays.pop(KEYS[KEYPOINTS_VISIBLE])[..., np.newaxis].astype(np.float32)
        arrays[KEYS[KEYPOINTS]] = np.concatenate([places, visible], axis=-1)
    if KEYS[CROWD] in arrays:
        arrays["iscrowd"] = arrays.pop(KEYS[CROWD]).astype(np.int64)
    return arrays


def _tensors(arrays: Sequence[Any]) -> list[Any]:
    """Return arrays as tensors that share their memory, or in a worker as parts of one storage."""
    # A DataLoader moves the result of a worker to shared memory, where each storage takes a file
    # descriptor in both processes. So all arrays are copied to one storage there.
    import torch

    arrays = [np.ascontiguousarray(one).reshape(one.shape) for one in arrays]  # 0-d stays 0-d
    own = [torch.from_numpy(one) for one in arrays]
    if torch.utils.data.get_worker_info() is None:
        return own
    stops = [*accumulate(-(-one.nbytes // _ALIGNMENT) * _ALIGNMENT for one in arrays)]
    starts = [0, *stops][: len(arrays)]
    storage = _shared(arrays, starts, max([_ALIGNMENT, *stops]))
    return [
        one.new_empty(0).set_(storage, start // one.itemsize, one.shape, one.stride())
        for one, start in zip(own, starts, strict=True)
    ]


def _shared(arrays: Sequence[Any], starts: Sequence[int], size: int) -> Any:
    """Return a storage of `size` bytes in shared memory, with each array at its start."""
    import torch

    storages: Any = torch.UntypedStorage
    strategy = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
    if strategy == "file_descriptor" and hasattr(os, "memfd_create"):
        # Writing takes half of the time of a copy to new mapped memory, which is first filled with
        # zeros, page by page. The file is not in /dev/shm, which is small in containers.
        with os.fdopen(os.memfd_create("shardprep"), "wb") as file:
            for one in arrays:
                file.write(one.data)
                file.write(bytes(-one.nbytes % _ALIGNMENT))
            file.truncate(size)
            return storages._new_shared_fd_cpu(file.fileno(), size)  # noqa: SLF001 - as torch does
    storage = storages._new_shared(size)  # noqa: SLF001 - as in default_collate
    memory = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    for one, start in zip(arrays, starts, strict=True):
        memory[start : start + one.nbytes] = one.reshape(-1).view(np.uint8)
    return storage


def _check(items: Sequence[Any]) -> None:
    for number, item in enumerate(items):
        is_pair = isinstance(item, tuple) and isinstance(item[-1], dict)
        if not is_pair or KEYS[BOX] not in item[-1] or not isinstance(item[0], np.ndarray):
            what = f"item {number} is not a pair of an image, a uint8 array, and a dict with boxes"
            raise DatasetError(_WHERE, what, "pass the items of a reader.Dataset(…) with boxes")
