"""`shardprep build --engine ray` against the local pool: python -m benchmarks.ray.

The cluster is on this machine, two nodes of one processor each, and is up before the clock starts.
Both ways read the same folder of photos and write the same shards, 400 images each; what is timed
is the whole process: for Ray also the start of its workers, which every build has of its own.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from typing import TYPE_CHECKING

from benchmarks import photos
from benchmarks.measure import Cost, Measure, Row, interleaved, run
from benchmarks.table import alone
from tests.writer.ray_cluster import RayCluster, can_be_alone, ray_cluster

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = Measure("seconds with Ray, two nodes of one core / with 2 local workers", "<= 1.1")
START = Measure("what starting adds: the same for two photos", "", "s")
MEASURES = (SECONDS, START)

_SHARD_IMAGES = 400


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return the ratio of whole processes, and the difference of empty ones."""
    if not can_be_alone():
        return [one.came_to(math.nan, "no network of its own to be had here") for one in MEASURES]
    number = 800 if quick else 32_000
    many = photos.write_folder(folder / "many", number, links=True)
    few = photos.write_folder(folder / "few", 2)
    with ray_cluster() as cluster:
        os.environ.update(cluster.environment)
        cost = interleaved(
            {
                "local": lambda: _local(folder, many, number // _SHARD_IMAGES),
                "ray": lambda: _on(cluster, folder, many, number // _SHARD_IMAGES),
                "local, few": lambda: _local(folder, few, 1),
                "ray, few": lambda: _on(cluster, folder, few, 1),
            },
            rounds,
        )
    local, on_ray = cost["local"].wall_s, cost["ray"].wall_s
    start = cost["local, few"].wall_s, cost["ray, few"].wall_s
    figures = f"{on_ray:.1f} / {local:.1f} s, {number // _SHARD_IMAGES} shards of {_SHARD_IMAGES}"
    return [
        SECONDS.came_to(on_ray / local, figures),
        START.came_to(start[1] - start[0], f"{start[1]:.1f} / {start[0]:.1f} s"),
    ]


def _local(folder: Path, source: Path, shards: int) -> Cost:
    return _build(folder, [], source, "--shards", shards, "--workers", 2)


def _on(cluster: RayCluster, folder: Path, source: Path, shards: int) -> Cost:
    where = ("--engine", "ray", "--ray-address", cluster.address)
    return _build(folder, cluster.inside(), source, "--shards", shards, *where)


def _build(folder: Path, before: list[str], source: Path, *options: object) -> Cost:
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "shardprep", "build", source, "--out", out]
    return run([*before, *command, *options], folder)


if __name__ == "__main__":
    alone(rows, __doc__)
