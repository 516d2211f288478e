"""Share of a training step of ResNet-50, 256 images of 224x224, that is spent waiting for a batch.

If torch finds a GPU, the step is real, in mixed precision. Otherwise a pause of a published length
replaces it. A pause needs no processor time. A real step needs a part of one core.
"""

from __future__ import annotations

import os
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import photos
from benchmarks.measure import Measure, Row, built
from benchmarks.read import SIDE, load
from benchmarks.store import BUCKET, FolderStore
from benchmarks.table import alone
from shardprep import reader
from shardprep.machine import usable_cores

if TYPE_CHECKING:
    from pathlib import Path

BATCH = 256
PAUSE_S = BATCH / 2470
"""2,470 images/s: ResNet-50 v1.5 on one A100 80GB in mixed precision, as published in NVIDIA's
DeepLearningExamples (PyTorch/Classification/ConvNets/resnet50v1.5/README.md, 2021)."""
FORMS = {
    "JPEG": "<= 5 %",
    "`random_resized_crop` from JPEG of 500x375": "",
    "raw": "<= 5 %",
    "raw from a store, without copies": "<= 10 %",
}
STEP = Measure("the step alone, 256 images", unit="ms")
CACHED = Measure("waiting: `load`, JPEG, cached in memory", "<= 5 %", "%")
LOAD, ARRAYS = (
    [Measure(f"waiting: {reader}, {form}", bar, "%") for form, bar in FORMS.items()]
    for reader in ("`load`", "`Dataset.batches`")
)
MEASURES = (STEP, CACHED, *LOAD, *ARRAYS)


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return the time of a step, and for each reader the share of the time spent waiting."""
    epoch, steps = (1, 2) if quick else (8, 40)
    step, what = _step()
    source = photos.write_folder(folder / "photos", epoch * BATCH)
    jpeg = built(folder / "jpeg", source, "--shards", 8)
    large = built(folder / "large", source, "--shards", 8, "--size", "500x375")
    raw = built(folder / "raw", source, "--shards", 8, "--format", "raw")
    FolderStore(raw)
    os.environ |= {"SHARDPREP_CACHE": str(folder / "none"), "SHARDPREP_CACHE_BYTES": "0"}
    ways: dict[Measure, Any] = {CACHED: partial(iter, load(jpeg, batch_size=BATCH, cache="memory"))}
    paths: Any = (jpeg, large, raw, f"s3://{BUCKET}")
    for i, path in enumerate(paths):
        options: Any = {"random_resized_crop": (SIDE, SIDE)} if path == large else {}
        ways[LOAD[i]] = partial(load, path, batch_size=BATCH, **options)
        arrays: Any = reader.Dataset(path, "train").batches
        ways[ARRAYS[i]] = partial(arrays, BATCH, epochs=None, drop_remainder=True, **options)
    times: dict[Measure, list[tuple[float, ...]]] = {measure: [] for measure in MEASURES[1:]}
    for _ in range(rounds):
        for measure, way in ways.items():
            os.sync()  # as in `interleaved`
            times[measure].append(_wait_and_step(iter(way()), step, epoch, steps))
    step_s = statistics.median(one for each in times.values() for _, one in each)
    found = [STEP.came_to(step_s * 1e3, f"{what}, {usable_cores()} cores")]
    for measure, each in times.items():
        wait_s, step_s = map(statistics.median, zip(*each, strict=True))
        detail = f"{wait_s * 1e3:.1f} of {(wait_s + step_s) * 1e3:.1f} ms"
        found.append(measure.came_to(100 * wait_s / (wait_s + step_s), detail))
    return found


def _wait_and_step(iterator: Any, step: Any, epoch: int, steps: int) -> tuple[float, ...]:
    """Return the mean seconds until a batch is there, and of the step with it."""
    for _ in range(epoch):
        next(iterator)  # fills a cache, and takes what was prepared in advance
    times = []
    for _ in range(5 + steps):
        asked = time.perf_counter()
        batch, drawn = next(iterator), time.perf_counter()
        step(batch)
        times.append((drawn - asked, time.perf_counter() - drawn))
    return tuple(map(statistics.mean, zip(*times[5:], strict=True)))


def _step() -> tuple[Any, str]:
    """Return the step, a function of a batch, and its name."""
    import torch

    if not torch.cuda.is_available():
        return lambda _: time.sleep(PAUSE_S), "a pause"
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")  # TensorFlow would reserve all of its memory
    return training_step("cuda"), f"ResNet-50 on {torch.cuda.get_device_name()}"


def training_step(device: str) -> Any:
    """Return a step of ResNet-50 v1.5 with 1,000 classes; it ends when its loss is known."""
    import torch
    from torch import nn
    from torch.utils.dlpack import from_dlpack

    def conv(ins: int, outs: int, size: int, stride: int = 1) -> list[nn.Module]:
        layer = nn.Conv2d(ins, outs, size, stride, size // 2, bias=False)
        return [layer, nn.BatchNorm2d(outs)]

    class Bottleneck(nn.Module):
        def __init__(self, ins: int, width: int, stride: int) -> None:
            super().__init__()
            middle = (*conv(width, width, 3, stride), nn.ReLU(), *conv(width, 4 * width, 1))
            self.layers = nn.Sequential(*conv(ins, width, 1), nn.ReLU(), *middle)
            is_same = ins == 4 * width
            self.shortcut = nn.Sequential(*(() if is_same else conv(ins, 4 * width, 1, stride)))

        def forward(self, images: Any) -> Any:
            return nn.functional.relu(self.layers(images) + self.shortcut(images))

    layers, ins = [*conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for i in range(blocks):
            layers.append(Bottleneck(ins, width, 2 if i == 0 and width > 64 else 1))
            ins = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(ins, 1000)]
    model: Any = nn.Sequential(*layers)
    model.to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def step(batch: Any) -> Any:
        images, labels = (from_dlpack(part).to(device) for part in batch)
        with torch.autocast(device, torch.bfloat16):
            loss: Any = nn.functional.cross_entropy(model(images.movedim(3, 1) / 255), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


if __name__ == "__main__":
    alone(rows, __doc__)
