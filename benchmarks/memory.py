"""Peak memory of builds of 1,000 and of 100,000 images: it must not grow with the dataset.

The peak is the sum of the peaks of the parent and of its processes, which are the kernel's marks
(`VmHWM`), read every 20 ms until the build ends. Pages that processes share count for each of them.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import photos
from benchmarks.measure import ROOT, Measure, Row
from benchmarks.table import alone

GROWTH = Measure("peak memory of 100,000 images − of 1,000", "< 150 MB", "MB")
MEASURES = (GROWTH,)


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return the difference of the peaks; one run of each, since peaks hardly scatter."""
    del rounds
    peaks = {}
    for number in (100, 300) if quick else (1000, 100_000):
        source = photos.write_tiny_zip(folder / f"{number}.zip", number)
        options = ("--labels", "none", "--size", "8x8", "--workers", 2)
        peaks[number] = peak_bytes("build", source, "--out", folder / str(number), *options) / 1e6
    few, many = peaks.values()
    return [GROWTH.came_to(many - few, f"{many:,.0f} − {few:,.0f} MB, parent and 2 workers")]


def peak_bytes(*arguments: object) -> int:
    """Run a `shardprep` command; return the sum of the peaks of its process and all below it."""
    command = [sys.executable, "-m", "shardprep", *map(str, arguments)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    peaks: dict[int, int] = {}
    while process.poll() is None:
        for pid in (process.pid, *_descendants(process.pid)):
            peaks[pid] = max(peaks.get(pid, 0), high_water(pid))
        time.sleep(0.02)
    if process.returncode:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}")
    return sum(peaks.values())


def _descendants(pid: int) -> list[int]:
    """Return the ids of all processes below `pid`: the fork server, the workers and others."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        children = list(map(int, text.split()))
        return children + [one for child in children for one in _descendants(child)]
    return []


def high_water(pid: int) -> int:
    """Return the peak memory of a process in bytes; 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    alone(rows, __doc__)
