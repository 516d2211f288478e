"""torchvision in tests, also where its compiled operators do not load."""

import functools
import importlib.util
from typing import Any

import pytest

_declared: list[Any] = []
"""Libraries of declared operators, which vanish with them."""


def need_module(*names: str) -> None:
    """Skip the test if a module is not installed. Nothing is imported."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


@functools.cache
def import_torchvision() -> None:
    """Import torchvision. If its operators do not load, they cannot be called.

    torchvision registers shapes of two of its operators when it is imported. The import fails if
    they are unknown, as with a build for CUDA and a torch for processors alone.
    """
    try:
        import torchvision
    except RuntimeError:
        import torch

        library_of: Any = torch.library.Library
        library = library_of("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
        import torchvision  # noqa: F401
