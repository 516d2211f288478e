"""Print how fast your photos are read and trained on: by cores, and with a GPU.

Each figure is measured in a process of its own, on the first cores of the machine. The second table
needs a GPU. Temporary files need up to 8 GiB in the folder of TMPDIR.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.table import machine
from benchmarks.training_machine.figures import (
    FEW_CORES,
    Figure,
    Missing,
    Rate,
    Results,
    Settings,
    measure_all,
    measure_in_process,
    reading_figures,
    training_figures,
)
from benchmarks.training_machine.inputs import prepare
from benchmarks.training_machine.tables import missing_figures, reading_table, training_table
from shardprep.machine import usable_cores

_GPU = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
_PACKAGES = ("Pillow", "simplejpeg", "numpy", "torch", "torchvision")
_IMAGES_A_CORE = 1500


def main() -> None:
    """Prepare the datasets, measure both tables, and print each when it is complete."""
    given = _arguments()
    counts = given.cores
    number = given.images or min(24_000, max(4 * given.batch_size, _IMAGES_A_CORE * max(counts)))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _say(f"building datasets of {number:,} images")
        try:
            number = prepare(given.photos, folder, number)
        except (OSError, ValueError) as error:
            sys.exit(f"training_machine: {error}")
        batch_size = min(given.batch_size, number)
        measure = partial(_measured, Settings(folder, batch_size, given.seconds))
        gpu = _gpu()
        start, limit = time.monotonic(), 60 * given.minutes
        reading = measure_all(
            reading_figures(counts), measure, start + (limit / 2 if gpu else limit)
        )
        print(f"\nReading {number:,} photos, batches of {batch_size}\n")
        print(reading_table(counts, reading), flush=True)
        training: Results = {}
        print(f"\nTraining, bfloat16, channels_last, batches of {batch_size}\n")
        if gpu:
            most = max(counts)
            training = measure_all(training_figures(most), measure, start + limit)
            print(training_table(sorted({FEW_CORES, most}), training))
        else:
            print("not measured: torch finds no GPU")
        if missing := missing_figures({**reading, **training}):
            print(f"\n{missing}")
        print(f"\n{machine(_PACKAGES)}{f' {gpu}.' if gpu else ''}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training_machine", description=__doc__
    )
    parser.add_argument("photos", type=Path, help="folder or zip of photos")
    parser.add_argument(
        "--minutes", type=float, default=5,
        help="time for figures, after the datasets are built; what is left then is skipped"
        " [default: %(default)s]",
    )  # fmt: skip
    parser.add_argument(
        "--cores", type=_counts, default=_usual_counts(usable_cores()),
        help="numbers of cores, with commas [default: 1, 2, 4 … up to all]",
    )  # fmt: skip
    parser.add_argument(
        "--images", type=int,
        help="number of photos to use; fewer photos are repeated"
        " [default: 1,500 for each core, at most 24,000]",
    )  # fmt: skip
    parser.add_argument("--batch-size", type=int, default=256, help="[default: %(default)s]")
    parser.add_argument(
        "--seconds", type=float, default=2,
        help="seconds of a figure of reading, after as many that do not count; twice for training"
        " [default: %(default)s]",
    )  # fmt: skip
    return parser.parse_args()


def _counts(text: str) -> list[int]:
    counts = sorted({int(part) for part in text.split(",")})
    if not 1 <= counts[0] <= counts[-1] <= usable_cores():
        raise argparse.ArgumentTypeError(f"{text}: this machine has 1 to {usable_cores()} cores")
    return counts


def _usual_counts(most: int) -> list[int]:
    """Return the powers of two below the number of cores, and that number."""
    return sorted({most, *(2**power for power in range(most.bit_length()) if 2**power < most)})


def _measured(settings: Settings, figure: Figure) -> Rate | Missing:
    start = time.monotonic()
    found = measure_in_process(settings, figure)
    rate = f"{found.images_s:,.0f} images/s" if isinstance(found, Rate) else found.reason
    _say(f"{figure}: {rate}  ({time.monotonic() - start:.1f} s)")
    return found


def _gpu() -> str:
    """Return the name of the GPU that torch uses, or nothing. This process does not use CUDA."""
    done = subprocess.run([sys.executable, "-c", _GPU], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
