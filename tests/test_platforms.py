"""Systems without locks, fork server, alarm and reads at a position.

Windows lacks these, macOS some. An interpreter without them stands for both.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shardprep
from tests.support.builders import build, jpeg, write_folder

WITHOUT = """
import os, signal, sys
for module in (
    "fcntl", "resource", "multiprocessing.forkserver", "multiprocessing.popen_forkserver",
    "jax", "sklearn",  # which TensorFlow and Keras import if they can, for seconds
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
"""Code that every interpreter runs at its start."""
PROGRAM = """
import json, sys
from pathlib import Path
import shardprep, shardprep.cli.app
from shardprep import reader
from shardprep.benchmark.pipelines import Source
from shardprep.benchmark.run import measure
one, other, source = sys.argv[1:]
shards = tuple(sorted(path.name for path in Path(one).glob("*.tfrecord-*")))
few = Source(Path(one), "train", shards, 4)
with reader.Dataset(one, "train").batches(4, shuffle=True, seed=1, epochs=1) as batches:
    labels = [int(label) for _, labels in batches for label in labels]
if "tensorflow" in sys.modules:
    sys.exit("TensorFlow is imported before its reader is used")
loaded = reader.load(one, "train", batch_size=5, shuffle=True, seed=1)

again = shardprep.build(source, one + "-again", size="32x32", workers=1)
out = one + "-written"
keys = {"size": "32x32", "workers": 1, "labels": "regex:(?P<label>[a-z]+)/[0-9]+[.]jpg"}
found = {"dedup": "near", "group": "near", "split": "train=0.5,test=0.5"}
near = shardprep.build(source, out + "-near", **found, **keys)
for part in ("1/2", "2/2"):
    shardprep.build(source, out + "-parts", part=part, **keys)
parts = shardprep.finalize(out + "-parts")
small = shardprep.repack(one, out=out + "-small", shards=2)
files = shardprep.export(one, out=out + "-files", to="folder")
print(json.dumps({
    "records": shardprep.inspect(one).manifest.splits["train"].num_records,
    "problems": [str(problem) for problem in shardprep.verify(one, workers=1).problems],
    "findings": len(shardprep.report(one).findings),
    "same": shardprep.diff(one, other).num_same,
    "shape": reader.Dataset(one, "train", as_supervised=False)[0]["image"].shape,
    "labels": sorted(labels),
    "is_measured": measure("dataset", few, 0.001)[0].num_images > 0,
    "loaded": sorted(int(label) for _, labels in loaded for label in labels),
    "shards": {name: shard.sha256 for name, shard in again.manifest.shards.items()},
    "near": near.manifest.totals.num_written + near.manifest.totals.num_skipped,
    "written": [one.manifest.totals.num_written for one in (parts, small)],
    "has_files": files.num_files > 0,
}))
"""


@pytest.mark.thorough
def test_every_command_runs_and_a_build_gives_the_same_bytes(tmp_path: Path) -> None:
    """Both readers; copies found by pixels, patterns with a time limit, parts, repack, export."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    photos = {f"{name}/{i}.jpg": jpeg(seed=i) for name in ("cat", "dog") for i in range(6)}
    source = write_folder(tmp_path / "photos", photos)
    built = build(source, tmp_path / "one", size="32x32")
    other = build(source, tmp_path / "other", size="32x32", exclude=["0.jpg"])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, built.path, other.path, source],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "records": 12,
        "problems": [],
        "findings": len(shardprep.report(built.path).findings),
        "same": 10,
        "shape": [32, 32, 3],
        "labels": [0] * 6 + [1] * 6,
        "is_measured": True,
        "loaded": [0] * 6 + [1] * 6,
        "shards": {name: shard.sha256 for name, shard in built.manifest.shards.items()},
        "near": 12,
        "written": [12, 12],
        "has_files": True,
    }


def test_functions_that_some_systems_lack_are_used_only_after_a_check() -> None:
    """A module that names such a function of `os` has a `hasattr` or `getattr` for it."""
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
