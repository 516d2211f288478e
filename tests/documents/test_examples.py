"""Pages whose code runs, in its order, on small sets, and does what they say."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardprep
from shardprep.reader import Dataset, ReadConfig
from tests.support.builders import animals, build, jpeg, tree, write, write_folder, zip_bytes
from tests.support.paths import ROOT
from tests.support.processes import run_program

MOST_BYTES = 20_000_000
"""Bytes that the output of a notebook may have, for some hundred small images."""


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


def examples(name: str) -> list[str]:
    """Return the code of a page, block by block."""
    return re.findall(r"```python\n(.*?)```", page(name), re.DOTALL)


def executed(blocks: list[str]) -> dict[str, Any]:
    """Run blocks one after the other; return their names."""
    found: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "a page", "exec"), found)  # the test is of that code
    return found


@pytest.mark.thorough
def test_python_md(tmp_path: Path) -> None:
    blocks = examples("python")
    assert len(blocks) == 4
    code = "\n".join(["import os, sys", "os.chdir(sys.argv[1])", *blocks, "print(images.shape)"])
    assert run_program(code, tmp_path) == "(32, 64, 64, 3)\n"


@pytest.mark.thorough
def test_reading_md(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {**animals(90), **{f"test/{i:03}.jpg": jpeg(seed=i) for i in range(70)}}
    source = write(tmp_path / "dogs_vs_cats.zip", zip_bytes(members))
    build(source, tmp_path / "tfrecords", size="16x12", shards=3)
    monkeypatch.chdir(tmp_path)
    blocks = examples("reading")
    assert len(blocks) == len(re.findall(r"^## ", page("reading"), re.MULTILINE)) - 1
    found = executed([block.replace("/tmp/dogs", str(tmp_path / "cache")) for block in blocks])
    assert found["state"]["batch"] == 1
    header, *rows = csv.reader((tmp_path / "submission.csv").read_text().splitlines())
    test = Dataset("tfrecords/dogs_vs_cats", "test", as_supervised=False)
    scores = found["model"].predict(np.stack([item["image"] for item in test]), verbose=0)
    assert header == ["id", "label"]
    assert dict(rows) == {
        item["image/filename"].split("/")[-1][:3]: ("cat", "dog")[int(score.argmax())]
        for item, score in zip(test, scores, strict=True)
    }
    assert sorted(dict(rows)) == [f"{i:03}" for i in range(70)]
    images, labels = next(iter(found["train"]))
    assert (images.shape, labels.shape) == ((64, 12, 16, 3), (64,))


def test_options_that_reading_md_names_exist() -> None:
    fields = set(ReadConfig.__dataclass_fields__)
    named = set(re.findall(r"ReadConfig\((\w+)=|, (\w+)=3\)`", page("reading")))
    assert {one for pair in named for one in pair if one} <= fields


@pytest.mark.thorough
def test_selections_md(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {**animals(90), **{f"test/{i:03}.jpg": jpeg(seed=i) for i in range(9)}}
    source = write(tmp_path / "dogs_vs_cats.zip", zip_bytes(members))
    build(source, tmp_path / "tfrecords", size="16x12", labels="prefix", shards=3)
    shapes = {f"train/cat.{i}.jpg": jpeg(60, 40 + 10 * (i % 8), seed=i) for i in range(24)}
    mixed = write(tmp_path / "mixed.zip", zip_bytes(shapes | {"train/dog.1.jpg": jpeg()}))
    build(mixed, tmp_path / "tfrecords", fit="none", labels="prefix", shards=2)
    (tmp_path / "near-leaks.csv").write_text("key\ntrain/cat.1.jpg\ntest/001.jpg\n")
    monkeypatch.chdir(tmp_path)
    found = executed(examples("selections"))
    assert (len(found["named"]), len(found["clean"]), len(found["few"])) == (2, 89, 10)
    assert len(found["dogs"]) == 45
    assert found["scores"][0] == (72, 18)
    assert found["weights"] == {0: 1.0, 1: 1.0}
    assert sum(len(one) for one in found["buckets"].values()) == 25
    assert len(found["shape"]) == 4


@pytest.mark.thorough
def test_notebook_md(tmp_path: Path) -> None:
    """With the folders of a Kaggle notebook: from read-only input to a submission."""
    given, working = tmp_path / "input", tmp_path / "working"
    members = {
        "train.zip": zip_bytes(animals(60)),
        "test1.zip": zip_bytes({f"test1/{i}.jpg": jpeg(seed=i) for i in range(1, 11)}),
        "sampleSubmission.csv": b"id,label\n1,0\n2,0\n",
    }
    source = write_folder(given / "competitions" / "dogs-vs-cats", members)
    working.mkdir()
    for path in (*source.iterdir(), source, source.parent, given):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = tree(given)

    cells = [cell.replace("/kaggle", str(tmp_path)) for cell in examples("notebook")]
    program = "\n".join(cells) + "\nprint(history.history['loss'])"
    start = (
        "import os, pathlib\n"
        "from shardprep.source.kaggle import archive_cache\n"
        f"archive_cache.MOUNT_ROOT = pathlib.Path({str(given)!r})\n"
        f"os.chdir({str(working)!r})\n"
    )
    run_program(start + program)

    assert tree(given) == before
    assert {path.name for path in working.iterdir()} == {
        "tfrecords", "report.html", "model.keras", "submission.csv",
    }  # fmt: skip
    assert sum(map(len, tree(working).values())) < MOST_BYTES
    header, *rows = csv.reader((working / "submission.csv").read_text().splitlines())
    assert header == ["id", "label"]
    assert sorted(int(name) for name, _ in rows) == [*range(1, 11)]
    assert all(0 <= float(score) <= 1 for _, score in rows)
    splits = shardprep.inspect(working / "tfrecords" / "dogs_vs_cats").manifest.splits
    assert {name: split.num_records for name, split in splits.items()} == {
        "train": 54, "validation": 6, "test": 10,
    }  # fmt: skip
