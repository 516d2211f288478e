"""Catalog and plan of a zip with many members, joined to a CSV of as many rows.

    python benchmarks/plan.py [--members 1000000]

Prints seconds and peak memory of the plan, in a process of its own. The members are tiny and
stored: what is measured is the listing, the join and the shuffle, not the images.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from PIL import Image

PLAN = """
import resource, sys, time
from pathlib import Path
from shardprep.prepare import make_plan
from shardprep.recipe import make_recipe
keys = {"source": sys.argv[1], "labels": sys.argv[2], "split": "train=0.9,validation=0.1"}
start = time.perf_counter()
plan = make_plan(make_recipe(keys, "benchmark"), Path(sys.argv[3]), print)
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(f"{plan.num_items:,} items: {seconds:.1f} s, {peak / 1e9:.2f} GB")
"""


def write_source(folder: Path, members: int) -> Path:
    """Write the zip; every member is the same image of one pixel."""
    image = folder / "pixel.png"
    Image.new("RGB", (1, 1)).save(image)
    data = image.read_bytes()
    path = folder / "many.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for i in range(members):
            archive.writestr(f"images/{i % 1000:03d}/{i:07d}.png", data)
        rows = "".join(f"{i:07d},class_{i * 7919 % 100}\n" for i in range(members))
        archive.writestr("labels.csv", "id,label\n" + rows)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        source = write_source(Path(folder), arguments.members)
        print(f"wrote {source.stat().st_size / 1e6:,.0f} MB in {time.perf_counter() - start:.0f} s")
        for labels in ("none", "csv:labels.csv:id:label"):
            print(f"labels {labels}:", end=" ", flush=True)
            command = [sys.executable, "-c", PLAN, str(source), labels, folder]
            subprocess.run(command, check=True)
    own = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(f"largest child: {own / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
