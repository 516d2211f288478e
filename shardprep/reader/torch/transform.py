"""The transform of `Dataset.loader`: from the arrays of a batch to the user's samples.

The transform runs in worker processes, or without workers in the training loop. For each sample,
the random generators of torch, NumPy and `random` start at a hash of seed, epoch and record, so
results do not depend on processes. Workers send arrays, and `received` converts them to tensors
that share their memory.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import torch

from shardprep.dataset.schema import BOX, IMAGE, MASK, OBJECT_MASK, ROWS, TARGET_IMAGE
from shardprep.reader.array_types import Array
from shardprep.reader.decode.annotations import array_as
from shardprep.reader.decode.targets import Target


@dataclass(frozen=True, slots=True)
class Transform:
    """A user's function of image and target, called for each sample of a batch."""

    function: Callable[..., Any]
    target: Target
    image_name: str

    def __call__(self, values: dict[str, Any], keys: list[int]) -> Any:
        """Return the transformed samples, as stacked arrays or, with boxes or rows, as lists."""
        columns = {IMAGE: values[self.image_name]}
        columns.update((name, values[name]) for name in self.target.names)
        samples = []
        with _generators_kept():
            for row, key in enumerate(keys):
                size = columns[IMAGE][row].shape[-3:-1]
                typed = {name: typed_value(name, one[row], size) for name, one in columns.items()}
                sample = self.target.pair(typed[IMAGE], typed)
                torch.default_generator.manual_seed(key)
                random.seed(key)
                np.random.seed(key)  # noqa: NPY002 - users draw from it
                inputs = sample if isinstance(sample, tuple) else (sample,)
                samples.append(self.function(*inputs))
        if BOX in columns or any(name.startswith(ROWS) for name in columns):
            return mapped(_sent, tuple(map(list, zip(*samples, strict=True))))
        return mapped(_sent, torch.utils.data.default_collate(samples))

    def problem(self) -> str:
        """Return why the function cannot be sent to a process, or ""."""
        try:
            cloudpickle.dumps(self.function)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (cloudpickle.dumps(self.function), self.target, self.image_name)


def _received(function: bytes, target: Target, image_name: str) -> Transform:
    if multiprocessing.parent_process() is not None:
        torch.set_num_threads(1)  # as in the workers of a DataLoader
    return Transform(cloudpickle.loads(function), target, image_name)


@contextlib.contextmanager
def _generators_kept() -> Iterator[None]:
    """Restore the random generators of torch, NumPy and Python after the block."""
    own, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=()):
        try:
            yield
        finally:
            random.setstate(own)
            np.random.set_state(of_numpy)  # noqa: NPY002


def typed_value(name: str, value: Any, size: tuple[int, int]) -> Any:
    """Return the value of a feature as torchvision's type, such as a `tv_tensors.Mask`.

    `name` is `IMAGE` for any image; `size` is its height and width.
    """
    from torchvision import tv_tensors  # takes a second

    if name == BOX:
        boxes = torch.from_numpy(array_as(BOX, value, "xyxy", size))
        return tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=size)
    if isinstance(value, str) or getattr(value, "dtype", "") == np.object_:
        return value
    tensor = torch.as_tensor(value)
    if name == IMAGE and tensor.ndim == 4:  # a stack
        return tv_tensors.Video(tensor.permute(0, 3, 1, 2))
    if name in {IMAGE, TARGET_IMAGE}:
        return tv_tensors.Image(tensor.permute(2, 0, 1))
    if name in {MASK, OBJECT_MASK}:
        return tv_tensors.Mask(tensor.movedim(-1, -3) if name == MASK else tensor)
    return tensor


@dataclass(frozen=True, slots=True)
class _TypedArray:
    """An array with the torch dtype and class of its tensor, which NumPy cannot express."""

    array: Array
    dtype: torch.dtype
    kind: type[torch.Tensor]
    attributes: dict[str, Any]

    def tensor(self) -> torch.Tensor:
        tensor = torch.from_numpy(self.array).view(self.dtype).as_subclass(self.kind)
        tensor.__dict__.update(self.attributes)
        return tensor


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Return a nested value with `function` applied to each leaf in dicts, lists and tuples."""
    if isinstance(value, dict):
        return {name: mapped(function, one) for name, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a named tuple
        return type(value)(*(mapped(function, one) for one in value))
    if isinstance(value, list | tuple):
        return type(value)(mapped(function, one) for one in value)
    return function(value)


def _sent(value: Any) -> Any:
    """Return a tensor as an array that can be sent, and other values unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    kind, attributes = type(value), dict(value.__dict__)
    plain = value.detach().as_subclass(torch.Tensor).contiguous()
    if plain.dtype == torch.bfloat16:  # NumPy has no such type
        return _TypedArray(plain.view(torch.int16).numpy(), plain.dtype, kind, attributes)
    array = plain.numpy()
    return array if kind is torch.Tensor else _TypedArray(array, plain.dtype, kind, attributes)


def received(value: Any) -> Any:
    """Return the tensor of an array from `_sent`; a list for texts, other values unchanged."""
    if isinstance(value, _TypedArray):
        return value.tensor()
    return tensor_of(value)


def tensor_of(value: Any) -> Any:
    """Return a tensor that shares an array's memory, a list for texts, or the value unchanged."""
    if not isinstance(value, np.ndarray):
        return value
    return value.tolist() if value.dtype.kind in "OSU" else torch.from_numpy(value)
