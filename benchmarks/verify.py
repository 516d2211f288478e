"""`shardprep verify` without `--decode` against the checksum tools, on the same shards.

The shards are in the page cache, so the processor is measured, not the disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import photos
from benchmarks.measure import Measure, Row, built, interleaved, run, shardprep
from benchmarks.table import alone

if TYPE_CHECKING:
    from pathlib import Path

SHA = Measure("verify without `--decode` / `sha256sum`", ">= 0.6")
SHA_ONE = Measure("the same with 1 worker")
OPENSSL = Measure("`openssl dgst -sha256` / `sha256sum`")
MEASURES = (SHA, SHA_ONE, OPENSSL)


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return the ratios, on about a gigabyte of shards."""
    source = photos.write_folder(folder / "photos", 60 if quick else 70_000, links=True)
    path = built(folder / "out", source, "--shards", 8)
    shards = sorted(path.glob("*.tfrecord-*"))
    num_bytes = sum(shard.stat().st_size for shard in shards)
    cost = interleaved(
        {
            "sha256sum": lambda: run(["sha256sum", *shards], folder),
            "openssl": lambda: run(["openssl", "dgst", "-sha256", *shards], folder),
            "verify": lambda: shardprep(folder, "verify", path),
            "one worker": lambda: shardprep(folder, "verify", path, "--workers", 1),
        },
        rounds,
    )
    base = cost["sha256sum"].wall_s

    def row(measure: Measure, way: str) -> Row:
        rates = [f"{num_bytes / wall / 1e6:,.0f}" for wall in (cost[way].wall_s, base)]
        return measure.came_to(base / cost[way].wall_s, f"{rates[0]} / {rates[1]} MB/s")

    return [row(SHA, "verify"), row(SHA_ONE, "one worker"), row(OPENSSL, "openssl")]


if __name__ == "__main__":
    alone(rows, __doc__)
