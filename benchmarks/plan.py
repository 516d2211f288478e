"""A zip of a million members: its catalog and plan, and the rerun of its finished build.

The members are tiny and not compressed. So the listing, the join with a label table of a million
rows and the shuffle take the time, not the images. The plan runs in a process of its own, whose
imports do not count. `--members 1000000 10000000` plans generated zips of these sizes, and prints
the cost of an item.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks import photos
from benchmarks.made_zip import write_made_zip
from benchmarks.measure import Measure, Row, built, interleaved, run, shardprep
from benchmarks.table import alone, table

PLAIN_S = Measure("catalog and plan of 1,000,000 members, no labels", "< 4 s", "s")
TABLE_S = Measure("catalog and plan of 1,000,000 members, labels joined", "< 7 s", "s")
PLAIN_GB = Measure("peak memory of that plan, no labels", "< 0.35 GB", "GB")
TABLE_GB = Measure("peak memory of that plan, labels joined", "< 0.35 GB", "GB")
MANY_S = Measure("catalog and plan of a generated directory of 10,000,000 members", "< 60 s", "s")
MANY_GB = Measure("peak memory of that plan", "< 2.5 GB", "GB")
PART = Measure("an item of that plan, in memory of one part of 100", "<= 40 bytes", "bytes")
RERUN = Measure("rerun of a finished build of 1,000,000 items", "< 5 s", "s")
MEASURES = (PLAIN_S, PLAIN_GB, TABLE_S, TABLE_GB, MANY_S, MANY_GB, PART, RERUN)

RULES = {"no labels": "none", "labels joined": "csv:labels.csv:id:label"}
_PLAN = """
import json, sys, time
from pathlib import Path
from types import SimpleNamespace
from shardprep.writer.plan.source_plan import make_plan
from shardprep.writer.plan.shard_plan import Part
from shardprep.recipe.recipe import make_recipe
report, source, labels, folder = sys.argv[1:]
keys = {"source": source, "labels": labels, "split": "train=0.9,validation=0.1"}
recipe = make_recipe({**keys, "max_members": 100_000_000}, "benchmark")
def memory(name):
    status = Path("/proc/self/status").read_text()
    return int(status.split(name + ":")[1].split()[0]) * 1024
before = memory("VmRSS")
start = time.perf_counter()
plan = make_plan(recipe, Path(folder), SimpleNamespace(notice=print))
seconds = time.perf_counter() - start
number, peak = plan.num_items, memory("VmHWM")
plan = plan.without_others(Part(1, 100))
held = memory("VmRSS") - before
Path(report).write_text(json.dumps([number, seconds, peak, held]))
"""


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return seconds and memory; each plan runs once, the rerun `rounds` times."""
    source = photos.write_tiny_zip(folder / "many.zip", 1000 if quick else 1_000_000)
    found = []
    for rule, seconds, memory in zip(RULES, (PLAIN_S, TABLE_S), (PLAIN_GB, TABLE_GB), strict=True):
        num_items, taken_s, peak_bytes, _ = planned(source, RULES[rule], folder)
        found.append(seconds.came_to(taken_s, f"{num_items:,} items"))
        found.append(memory.came_to(peak_bytes / 1e9, "of the one process"))
    rerun = _rerun(folder, source, rounds)
    source.unlink()
    return [*found, *_many(folder, 1000 if quick else 10_000_000), rerun]


def planned(source: Path, labels: str, folder: Path) -> tuple[int, float, int, int]:
    """Plan once, in a process of its own.

    Return the number of items, the seconds, the peak memory, and the memory that is left when only
    the first part of 100 is kept. Memory is in bytes.
    """
    report = folder / "plan.json"
    run([sys.executable, "-c", _PLAN, report, source, labels, folder], folder)
    num_items, seconds, peak_bytes, held_bytes = json.loads(report.read_text())
    return num_items, seconds, peak_bytes, held_bytes


def growth(folder: Path, members: int) -> list[Row]:
    """Return the time and memory of an item in plans of `members` items, by rule of labels."""
    source = write_made_zip(folder / f"{members}.zip", members)
    found = []
    for rule, labels in RULES.items():
        num_items, seconds, peak_bytes, _ = planned(source, labels, folder)
        name = f"an item of {num_items:,}, {rule}"
        detail = f"{seconds:.1f} s, peak {peak_bytes / 1e9:.2f} GB"
        per_item = seconds / num_items * 1e6
        found.append(Measure(f"time of {name}", unit="µs").came_to(per_item, detail))
        memory = Measure(f"memory of {name}", unit="bytes")
        found.append(memory.came_to(peak_bytes / num_items, detail))
    source.unlink()
    return found


def main() -> None:
    """Print the figures, or with `--members` the costs of an item."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--members", type=int, nargs="+", default=[])
    members = parser.parse_known_args()[0].members
    if not members:
        alone(rows, __doc__)
        return
    with tempfile.TemporaryDirectory() as folder:
        print(table(row for number in members for row in growth(Path(folder), number)))


def _many(folder: Path, members: int) -> list[Row]:
    """Return the rows of a plan of `members` items, without labels."""
    source = write_made_zip(folder / "made.zip", members)
    num_items, seconds, peak_bytes, held_bytes = planned(source, "none", folder)
    source.unlink()
    return [
        MANY_S.came_to(seconds, f"{num_items:,} items, no labels"),
        MANY_GB.came_to(peak_bytes / 1e9, "of the one process"),
        PART.came_to(held_bytes / num_items, "all that the process has grown by"),
    ]


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
