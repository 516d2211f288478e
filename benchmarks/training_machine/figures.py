"""The figures of both tables, in order of importance, and their measurement within a time limit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.measure import installed_environment

READING = {
    "jpeg": "JPEG of 224x224",
    "workers": "the same, `num_workers` = half of the cores",
    "raw": "raw images of 224x224",
    "crop": "`random_resized_crop` of 224 from the photos",
    "files": "`DataLoader` of the photos: Pillow, `RandomResizedCrop`",
}
"""Rows of the first table: way → its name."""
TRAINING = {
    "resident": "a batch that is on the GPU already",
    "jpeg": "`loader`: JPEG of 224x224",
    "crop": "`loader`: `random_resized_crop` of 224 from the photos",
    "raw": "`loader`: raw images of 224x224",
    "files": "`DataLoader` of the photos: Pillow, `RandomResizedCrop`",
}
"""Rows of the second table: way → its name."""
MODELS = {"resnet50": "ResNet-50", "resnet18": "ResNet-18"}
"""Columns of the second table: function of `torchvision.models` → name."""
FEW_CORES = 2
"""Training is measured on all cores, and on this number of cores."""
_TIMEOUT_S = 90


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: a way to read, on some cores, alone or with a model."""

    way: str
    cores: int
    model: str = ""
    """Name in `torchvision.models`; empty if batches are only read."""

    def __str__(self) -> str:
        name = (TRAINING if self.model else READING)[self.way]
        model = f"{MODELS[self.model]}, " if self.model else ""
        return f"{model}{name}, {self.cores} core{'s' * (self.cores > 1)}"


@dataclass(frozen=True, slots=True)
class Settings:
    """What all figures of a run share."""

    folder: Path
    """Folder of the photos and datasets, see `inputs.prepare`."""
    batch_size: int
    seconds: float
    """Duration of a figure without a model. The same time before it does not count."""
    device: str = "cuda"
    """Where models are trained; tests give "cpu"."""


@dataclass(frozen=True, slots=True)
class Rate:
    """The result of a figure."""

    images_s: float
    waiting: float = 0.0
    """Share of the time that the training loop waits for batches, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A figure that was not measured."""

    reason: str
    """Empty if the time was over."""


Results = Mapping[Figure, Rate | Missing]


def reading_figures(counts: Iterable[int]) -> list[Figure]:
    """Return the first table's figures: the most cores first, then the fewest, then the others."""
    first, *rest = sorted(counts, reverse=True)
    ordered = [first, *rest[-1:], *rest[:-1]]
    return [Figure(way, cores) for cores in ordered for way in READING]


def training_figures(cores: int) -> list[Figure]:
    """Return the figures of the second table, the most important first."""
    main = [way for way in TRAINING if way != "raw"]
    few = [way for way in TRAINING if way != "resident"] if cores > FEW_CORES else []
    return [
        *(Figure(way, cores, "resnet50") for way in main),
        *(Figure(way, FEW_CORES, "resnet50") for way in few[:1]),
        *(Figure(way, cores, "resnet18") for way in main),
        *(Figure("raw", cores, model) for model in MODELS),
        *(Figure(way, FEW_CORES, "resnet50") for way in few[1:]),
        *(Figure(way, FEW_CORES, "resnet18") for way in few),
    ]


def measure_all(
    figures: Iterable[Figure],
    measure: Callable[[Figure], Rate | Missing],
    deadline: float,
    clock: Callable[[], float] = time.monotonic,
) -> Results:
    """Return the result of each figure; none is started after the deadline."""
    return {
        figure: measure(figure) if clock() < deadline else Missing(reason="") for figure in figures
    }


def measure_in_process(settings: Settings, figure: Figure) -> Rate | Missing:
    """Return the result of a figure, which a new process measures on the first cores."""
    with tempfile.TemporaryDirectory() as place:
        result, errors = Path(place, "result"), Path(place, "errors")
        task = json.dumps([asdict(settings), asdict(figure)], default=str)
        with errors.open("wb") as file:
            # Workers of a DataLoader outlive their parent for seconds, so the group is killed.
            process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.child", result, task],
                env=installed_environment(), stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip
            try:
                process.wait(_TIMEOUT_S + 4 * settings.seconds)
            except subprocess.TimeoutExpired:
                return Missing(f"no result after {_TIMEOUT_S + 4 * settings.seconds:.0f} s")
            finally:
                with contextlib.suppress(ProcessLookupError):  # it had no workers
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.returncode == 0:
            return Rate(**json.loads(result.read_text()))
        lines = errors.read_text(errors="replace").split("\n")
        said = [line for line in lines if line.strip()]
        return Missing(said[-1] if said else f"the process ended with {process.returncode}")
