"""`shardprep verify` without `--decode` against the checksum tools, on the same shards.

    python benchmarks/verify.py [--images 70000] [--side 224] [--shards 8] [--rounds 5]

Prints the median of each way in MB/s of shards, and its ratio to `sha256sum`; the ways take turns.
The shards are in the page cache: what is measured is the processor, not the disk.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

_DIFFERENT = 50


def write_images(folder: Path, number: int, side: int) -> None:
    """Write some images, coarse noise that takes the bytes of photographs, under many names."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(number):
        path = folder / f"{('cat', 'dog')[i % 2]}.{i}.jpg"
        if i < _DIFFERENT:
            noise = rng.integers(0, 256, (side // 3, side // 3, 3), np.uint8)
            image = Image.fromarray(noise).resize((side, side), Image.Resampling.BICUBIC)
            image.save(path, quality=60)
        else:
            first = i % _DIFFERENT
            os.link(folder / f"{('cat', 'dog')[first % 2]}.{first}.jpg", path)


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=70_000)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        images, out = Path(place, "images"), Path(place, "out")
        write_images(images, arguments.images, arguments.side)
        tool = [sys.executable, "-m", "shardprep"]
        build = ["build", str(images), "--out", str(out), "--name", "bench", "--format", "keep"]
        print(f"build: {seconds([*tool, *build, '--shards', str(arguments.shards)]):.0f} s")
        paths = sorted(out.glob("bench/1.0.0/*.tfrecord-*"))
        shards = list(map(str, paths))
        num_bytes = sum(path.stat().st_size for path in paths)
        print(f"{len(shards)} shards, {num_bytes / 1e9:.2f} GB, {os.cpu_count()} processors")
        ways = {
            "sha256sum": ["sha256sum", *shards],
            "openssl sha256": ["openssl", "dgst", "-sha256", *shards],
            "verify": [*tool, "verify", str(out)],
            "verify, 1 worker": [*tool, "verify", str(out), "--workers", "1"],
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(arguments.rounds):
            for name, command in ways.items():
                times[name].append(seconds(command))
        base = statistics.median(times["sha256sum"])
        for name, all_s in times.items():
            median = statistics.median(all_s)
            print(f"{name:18} {num_bytes / median / 1e6:7,.0f} MB/s  {base / median:5.2f}x")


if __name__ == "__main__":
    main()
