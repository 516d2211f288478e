"""Systems without locks, fork server, alarm and reads at a position: what runs there.

Windows lacks these, macOS some; interpreters from which they were taken stand for both.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import shardprep
from tests.support.builders import build, jpeg, write_folder

WITHOUT = """
import os, signal, sys
for module in (
    "fcntl", "resource", "multiprocessing.forkserver", "multiprocessing.popen_forkserver"
):
    sys.modules[module] = None
for name in (
    "fork", "forkpty", "pread", "preadv", "readv", "posix_fadvise", "sched_getaffinity", "sync",
    "O_NOFOLLOW", "O_DIRECTORY",
):
    delattr(os, name)
for name in ("SIGALRM", "SIGVTALRM", "setitimer"):
    delattr(signal, name)
"""
"""Code that every interpreter runs at its start, those of workers as well."""
READ = """
import json, sys
from pathlib import Path
import shardprep, shardprep.cli.app
from shardprep import reader
from shardprep.benchmark.pipelines import PIPELINES, Source
from shardprep.benchmark.run import measure
one, other, _ = sys.argv[1:]
few = Source(Path(one), "train", 12, 4)
with reader.Dataset(one, "train").batches(4, shuffle=True, seed=1, epochs=1) as batches:
    labels = [int(label) for _, labels in batches for label in labels]
print(json.dumps({
    "records": shardprep.inspect(one).manifest.splits["train"].num_records,
    "problems": [str(problem) for problem in shardprep.verify(one, workers=2).problems],
    "findings": len(shardprep.report(one).findings),
    "same": shardprep.diff(one, other).num_same,
    "shape": reader.Dataset(one, "train", as_supervised=False)[0]["image"].shape,
    "labels": sorted(labels),
    "is_measured": measure(PIPELINES["dataset"].make, few, 0.001).num_images > 0,
}))
"""
LOAD = """
import json, sys
from shardprep import reader
found = reader.load(sys.argv[1], "train", batch_size=5, shuffle=True, seed=1)
print(json.dumps(sorted(int(label) for _, labels in found for label in labels)))
"""
BUILD = """
import json, sys
import shardprep
built = shardprep.build(sys.argv[3], sys.argv[1] + "-again", size="32x32", workers=2)
print(json.dumps({name: shard.sha256 for name, shard in built.manifest.shards.items()}))
"""
WRITE = """
import json, sys
import shardprep
one, _, source = sys.argv[1:]
out = one + "-written"
keys = {"size": "32x32", "workers": 2, "labels": "regex:(?P<label>[a-z]+)/[0-9]+[.]jpg"}
found = {"dedup": "near", "group": "near", "split": "train=0.5,test=0.5"}
near = shardprep.build(source, out + "-near", **found, **keys)
for part in ("1/2", "2/2"):
    shardprep.build(source, out + "-parts", part=part, **keys)
parts = shardprep.finalize(out + "-parts")
small = shardprep.repack(one, out=out + "-small", shards=2)
files = shardprep.export(one, out=out + "-files", to="folder")
print(json.dumps([near.manifest.totals.num_written + near.manifest.totals.num_skipped,
                  parts.manifest.totals.num_written, small.manifest.totals.num_written,
                  files.num_files > 0]))
"""


class Sets(NamedTuple):
    """Two datasets, the second without one of the photos; and the photos."""

    one: Path
    other: Path
    source: Path


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    folder = tmp_path_factory.mktemp("platforms")
    (folder / "sitecustomize.py").write_text(WITHOUT)
    photos = {f"{name}/{i}.jpg": jpeg(seed=i) for name in ("cat", "dog") for i in range(6)}
    source = write_folder(folder / "photos", photos)
    one = build(source, folder / "one", size="32x32").path
    return Sets(one, build(source, folder / "other", size="32x32", exclude=["0.jpg"]).path, source)


def printed(program: str, sets: Sets) -> Any:
    """Return what a program prints, as JSON, where nothing of `WITHOUT` is."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, sets)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(sets.source.parent)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.thorough
def test_the_reader_of_arrays_and_what_looks_at_datasets_run(sets: Sets) -> None:
    assert printed(READ, sets) == {
        "records": 12,
        "problems": [],
        "findings": len(shardprep.report(sets.one).findings),
        "same": 10,
        "shape": [32, 32, 3],
        "labels": [0] * 6 + [1] * 6,
        "is_measured": True,
    }


@pytest.mark.thorough
def test_the_reader_of_tensorflow_runs(sets: Sets) -> None:
    assert printed(LOAD, sets) == [0] * 6 + [1] * 6


@pytest.mark.thorough
def test_a_build_by_fresh_processes_gives_the_same_bytes(sets: Sets) -> None:
    shards = shardprep.inspect(sets.one).manifest.shards
    assert printed(BUILD, sets) == {name: shard.sha256 for name, shard in shards.items()}


@pytest.mark.thorough
def test_whatever_else_writes_runs(sets: Sets) -> None:
    """Copies that are found by pixels, patterns with a time limit, parts, `repack` and `export`."""
    assert printed(WRITE, sets) == [12, 12, 12, True]


def test_what_some_systems_lack_is_only_used_where_it_is_asked_for_first() -> None:
    """Of `os`: a module that names such a function has a `hasattr` for it, or a `getattr`."""
    lacking = re.search(r"for name in \((.*?)\):\n    delattr\(os", WITHOUT, re.DOTALL)
    assert lacking is not None
    names = re.findall(r'"(\w+)"', lacking[1])
    assert "sched_getaffinity" in names
    bare = [
        f"{path.name}: os.{name}"
        for path in Path(shardprep.__file__).parent.rglob("*.py")
        for name in names
        if re.search(rf"\bos\.{name}\b", text := path.read_text())
        and not re.search(rf'attr\(os, "{name}"', text)
    ]
    assert not bare
