"""A zip of a million members: its catalog and plan, and the rerun of its finished build.

The members are tiny and stored: what is measured is the listing, the join to a table of as many
rows and the shuffle, not the images. The plan runs in a process of its own, imports aside.
`--members 1000000 5000000` plans zips of these sizes, and says what an item costs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks import photos
from benchmarks.measure import Measure, Row, built, interleaved, run, shardprep
from benchmarks.table import alone, table

PLAIN_S = Measure("catalog and plan of 1,000,000 members, no labels", "< 20 s", "s")
TABLE_S = Measure("catalog and plan of 1,000,000 members, labels joined", "< 20 s", "s")
PLAIN_GB = Measure("peak memory of that plan, no labels", "< 1.5 GB", "GB")
TABLE_GB = Measure("peak memory of that plan, labels joined", "< 1.5 GB", "GB")
RERUN = Measure("rerun of a finished build of 1,000,000 items", "< 5 s", "s")
MEASURES = (PLAIN_S, PLAIN_GB, TABLE_S, TABLE_GB, RERUN)

RULES = {"no labels": "none", "labels joined": "csv:labels.csv:id:label"}
_PLAN = """
import json, sys, time
from pathlib import Path
from types import SimpleNamespace
from shardprep.writer.plan import make_plan
from shardprep.recipe.recipe import make_recipe
report, source, labels, folder = sys.argv[1:]
keys = {"source": source, "labels": labels, "split": "train=0.9,validation=0.1"}
start = time.perf_counter()
plan = make_plan(make_recipe(keys, "benchmark"), Path(folder), SimpleNamespace(notice=print))
seconds = time.perf_counter() - start
status = Path("/proc/self/status").read_text()
peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
Path(report).write_text(json.dumps([plan.num_items, seconds, peak]))
"""


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return seconds and memory; the plans run once each, the rerun so many rounds."""
    source = photos.write_tiny_zip(folder / "many.zip", 1000 if quick else 1_000_000)
    found = []
    for rule, seconds, memory in zip(RULES, (PLAIN_S, TABLE_S), (PLAIN_GB, TABLE_GB), strict=True):
        num_items, taken_s, peak_bytes = planned(source, RULES[rule], folder)
        found.append(seconds.came_to(taken_s, f"{num_items:,} items"))
        found.append(memory.came_to(peak_bytes / 1e9, "of the one process"))
    return [*found, _rerun(folder, source, rounds)]


def planned(source: Path, labels: str, folder: Path) -> tuple[int, float, int]:
    """Plan once, in a process of its own; return the items, the seconds and the peak in bytes."""
    report = folder / "plan.json"
    run([sys.executable, "-c", _PLAN, report, source, labels, folder], folder)
    num_items, seconds, peak_bytes = json.loads(report.read_text())
    return num_items, seconds, peak_bytes


def growth(folder: Path, members: int) -> list[Row]:
    """Return what an item costs in a plan of so many."""
    source = photos.write_tiny_zip(folder / f"{members}.zip", members)
    found = []
    for rule, labels in RULES.items():
        num_items, seconds, peak_bytes = planned(source, labels, folder)
        name = f"an item of {num_items:,}, {rule}"
        detail = f"{seconds:.1f} s, peak {peak_bytes / 1e9:.2f} GB"
        per_item = seconds / num_items * 1e6
        found.append(Measure(f"time of {name}", unit="µs").came_to(per_item, detail))
        memory = Measure(f"memory of {name}", unit="bytes")
        found.append(memory.came_to(peak_bytes / num_items, detail))
    source.unlink()
    return found


def main() -> None:
    """Measure as asked on the command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--members", type=int, nargs="+", default=[])
    members = parser.parse_known_args()[0].members
    if not members:
        alone(rows, __doc__)
        return
    with tempfile.TemporaryDirectory() as folder:
        print(table(row for number in members for row in growth(Path(folder), number)))


def _rerun(folder: Path, source: Path, rounds: int) -> Row:
    out = folder / "out"
    options = ("--labels", "none", "--size", "none", "--format", "keep")
    path = built(out, source, *options)
    before = (path / "manifest.json").stat().st_mtime_ns
    again = interleaved(
        {"rerun": lambda: shardprep(out, "build", source, "--out", out, *options)}, rounds
    )["rerun"]
    if (path / "manifest.json").stat().st_mtime_ns != before:
        sys.exit("the rerun built anew")
    return RERUN.came_to(again.wall_s, "a whole process")


if __name__ == "__main__":
    main()
