"""How many images per second a ResNet trains on, and how long it waits for batches.

The model is in channels_last and computes in bfloat16. uint8 batches are normalized on the device.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torchvision

from benchmarks.training_machine.figures import Figure, Rate, Settings
from benchmarks.training_machine.inputs import dataset
from benchmarks.training_machine.reading import SIDE, crop_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MEAN = (123.7, 116.3, 103.5)
_STD = (58.4, 57.1, 57.4)
_FIRST_STEPS = 4
"""Number of steps before anything is measured: cuDNN chooses its algorithms."""
_STEPS_AHEAD = 4
"""Steps between two synchronizations: the processor must not run far ahead of the GPU."""


def rate(settings: Settings, figure: Figure) -> Rate:
    """Return the rate of training for twice `settings.seconds`."""
    batches = _batches(settings, figure)
    step = _step(figure.model, settings.device)
    longer = replace(settings, seconds=2 * settings.seconds)
    _train(step, batches, settings, _FIRST_STEPS)
    # Workers prepared batches while the model started. They run out before the measurement.
    _train(step, batches, longer, 1)
    return _train(step, batches, longer, 1)


def _train(
    step: Callable[[Any, Any], None], batches: Iterator[Any], settings: Settings, least: int
) -> Rate:
    """Train for `settings.seconds` and at least `least` steps."""
    start, waited, steps, images = time.perf_counter(), 0.0, 0, 0
    while steps < least or time.perf_counter() - start < settings.seconds:
        asked = time.perf_counter()
        pixels, labels = next(batches)
        waited += time.perf_counter() - asked
        step(pixels, labels)
        steps += 1
        images += len(labels)
        if steps % _STEPS_AHEAD == 0:
            _synchronize(settings.device)
    _synchronize(settings.device)
    elapsed = time.perf_counter() - start
    return Rate(images / elapsed, waited / elapsed)


def _synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def _step(name: str, device: str) -> Callable[[Any, Any], None]:
    """Return a step of SGD with a new model of 1,000 classes."""
    torch.backends.cudnn.benchmark = True
    model: Any = getattr(torchvision.models, name)(num_classes=1000)
    model.to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    mean, std = (torch.tensor(one, device=device).view(1, 3, 1, 1) for one in (_MEAN, _STD))

    def step(pixels: Any, labels: Any) -> None:
        pixels, labels = (one.to(device, non_blocking=True) for one in (pixels, labels))
        normal = ((pixels - mean) / std).contiguous(memory_format=torch.channels_last)
        # Most processors have no instructions for bfloat16, and would need minutes.
        with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
            loss: Any = torch.nn.functional.cross_entropy(model(normal), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def _batches(settings: Settings, figure: Figure) -> Iterator[Any]:
    """Return batches without an end."""
    if figure.way == "files":
        from benchmarks.training_machine.files import file_batches

        return file_batches(settings, figure.cores)
    return _resident(settings) if figure.way == "resident" else _loaded(settings, figure.way)


def _resident(settings: Settings) -> Iterator[Any]:
    shape = (settings.batch_size, 3, SIDE, SIDE)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, device=settings.device)
    pixels = pixels.contiguous(memory_format=torch.channels_last)
    labels = torch.zeros(settings.batch_size, dtype=torch.int64, device=settings.device)
    while True:
        yield pixels, labels


def _loaded(settings: Settings, name: str) -> Iterator[Any]:
    from shardprep import reader

    options: Any = crop_of(name)
    if settings.device != "cpu":
        options["device"] = settings.device
    opened = reader.Dataset(dataset(settings.folder, name), "train")
    loader = opened.loader(settings.batch_size, drop_remainder=True, **options)
    while True:
        yield from loader
