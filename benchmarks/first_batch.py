"""Seconds to the first batch: after opening a dataset of 1,000 shards, and in an epoch.

Each opening is timed in a process of its own, after it has read another small dataset: the setup of
TensorFlow, once per program, does not count. `--before CHECKOUT` compares two checkouts of the
package, in turn; `--after` is this checkout by default. The first batches of epochs are timed
in one process, from the second epoch on, and each epoch is read to its end.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import photos, read
from benchmarks.measure import ROOT, Cost, Measure, Row, built, interleaved, run, timed
from benchmarks.table import alone, table

LOAD = Measure("first batch of a set of 1,000 shards, `load`", unit="s")
ARRAYS = Measure("first batch of a set of 1,000 shards, `Dataset.batches`", unit="s")
EPOCH = Measure("first batch of an epoch, `load` / hand-tuned `tf.data`", "<= 1.0")
EPOCH_RECORDS = Measure("the same, `load` without its batch decoder / hand-tuned `tf.data`")
MEASURES = (LOAD, ARRAYS, EPOCH, EPOCH_RECORDS)

READERS = {
    LOAD: "reader.load(path, 'train', batch_size=64)",
    ARRAYS: "reader.Dataset(path, 'train').batches(64, shuffle=True)",
}
_NUM_SHARDS, _RECORDS_A_SHARD = 1000, 10
_BAR = ">= 0.95"
_FIRST_BATCH = """
import json, resource, sys, time
from pathlib import Path
import shardprep
from shardprep import reader
root, report, small, path, read = sys.argv[1:]
if not Path(shardprep.__file__).is_relative_to(root):
    sys.exit(f"measured would be {shardprep.__file__}, not {root}")
first_batch = compile(f"next(iter({read}))", "first batch", "eval")
eval(first_batch, {"reader": reader, "path": small})
usage = resource.getrusage(resource.RUSAGE_SELF)
start, cpu = time.perf_counter(), usage.ru_utime + usage.ru_stime
batch = eval(first_batch, {"reader": reader, "path": path})
wall = time.perf_counter() - start
usage = resource.getrusage(resource.RUSAGE_SELF)
Path(report).write_text(json.dumps([wall, usage.ru_utime + usage.ru_stime - cpu]))
"""


class _Sets(NamedTuple):
    """Two datasets, and the folder of both."""

    folder: Path
    small: Path
    large: Path


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return the seconds of both readers after opening, and the ratios of `epochs`."""
    sets = _built(folder, ROOT, quick=quick)
    ways = {call: partial(_timed, ROOT, sets, call) for call in READERS.values()}
    cost = interleaved(ways, rounds)
    opening = [
        measure.came_to(cost[call].wall_s, f"{cost[call].cpu_s:.2f} s of processor time")
        for measure, call in READERS.items()
    ]
    return [*opening, *epochs(folder, rounds, quick=quick)]


def epochs(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return the time to the first batch of an epoch, divided by that of hand-tuned `tf.data`."""
    source = photos.write_folder(folder / "photos", 2 * read.BATCH if quick else 2000)
    path = built(folder / "jpeg", source, "--shards", 8)
    datasets = {
        "hand-tuned": read.hand_tuned(path, repeat=False),
        "load": read.load(path, repeat=False),
        "records": read.load(path, repeat=False, as_supervised=False),
    }
    ways = {name: partial(_first_of_an_epoch, dataset) for name, dataset in datasets.items()}
    for way in ways.values():
        way()  # the first epoch sets up what later ones share
    cost = interleaved(ways, rounds)
    found = []
    for measure, name in ((EPOCH, "load"), (EPOCH_RECORDS, "records")):
        one, two = cost[name], cost["hand-tuned"]
        figures = (
            f"{one.wall_s * 1e3:.0f} / {two.wall_s * 1e3:.0f} ms, "
            f"by processor time {one.cpu_s / two.cpu_s:.2f}"
        )
        found.append(measure.came_to(one.wall_s / two.wall_s, figures))
    return found


def _first_of_an_epoch(dataset: Any) -> Cost:
    """Return the cost of the first batch of an epoch; the other batches are read uncounted."""
    batches: list[Any] = []

    def draw() -> None:
        batches.append(iter(dataset))
        next(batches[0])

    cost = timed(draw)
    for _ in batches[0]:
        pass
    return cost


def compared(folder: Path, before: Path, after: Path, rounds: int) -> list[Row]:
    """Return the time to the first batch of `before` divided by the time of `after`, by reader.

    `before` builds the datasets, because the newer checkout can read datasets of the older one.
    """
    sets = _built(folder, before, quick=False)
    roots = {"before": before, "after": after}
    ways = {
        f"{name} {call}": partial(_timed, root, sets, call)
        for call in READERS.values()
        for name, root in roots.items()
    }
    cost = interleaved(ways, rounds)
    found = []
    for measure, call in READERS.items():
        one, two = (cost[f"{name} {call}"] for name in roots)
        figures = (
            f"{one.wall_s:.3f} / {two.wall_s:.3f} s, by processor time {one.cpu_s / two.cpu_s:.2f}"
        )
        ratio = Measure(f"{measure.name}: before / after", _BAR)
        found.append(ratio.came_to(one.wall_s / two.wall_s, figures))
    return found


def main() -> None:
    """Print the figures, or with `--before` the comparison of two checkouts."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--after", type=Path, default=ROOT)
    parser.add_argument("--rounds", type=int, default=11)
    arguments, _ = parser.parse_known_args()
    if arguments.before is None:
        alone(rows, __doc__)
        return
    with tempfile.TemporaryDirectory() as folder:
        before, after = arguments.before.resolve(), arguments.after.resolve()
        print(table(compared(Path(folder), before, after, arguments.rounds)))


def _built(folder: Path, root: Path, *, quick: bool) -> _Sets:
    num_shards = 20 if quick else _NUM_SHARDS
    number = num_shards * _RECORDS_A_SHARD
    source = photos.write_tiny_zip(folder / "many.zip", number)
    options = ("--labels", "csv:labels.csv:id:label", "--split", "train=1", "--size", "16x16")
    paths = []
    for shards in (1, num_shards):
        out = folder / f"of-{shards}"
        command = (sys.executable, "-m", "shardprep", "build", source, "--out", out, *options)
        run((*command, "--shards", shards), folder, root)
        paths.append(next(path.parent for path in out.glob("*/*/manifest.json")))
    return _Sets(folder, *paths)


def _timed(root: Path, sets: _Sets, call: str) -> Cost:
    """Return the cost of opening a dataset and reading its first batch, in a process of its own."""
    report = sets.folder / "report.json"
    command = (sys.executable, "-c", _FIRST_BATCH, root, report, sets.small, sets.large, call)
    run(command, sets.folder, root)
    wall_s, cpu_s = json.loads(report.read_text())
    return Cost(wall_s, cpu_s)


if __name__ == "__main__":
    main()
