"""docs/notebook.md is run cell by cell, with the folders of a Kaggle notebook."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

import shardprep
from tests.support.builders import animals, jpeg, tree, write_folder, zip_bytes
from tests.support.paths import ROOT
from tests.support.processes import run_program

PAGE = (ROOT / "docs" / "notebook.md").read_text()
CELLS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
MOST_BYTES = 20_000_000
"""Bytes that the output may have, for some hundred small images."""


@pytest.mark.thorough
def test_a_notebook_from_read_only_input_to_a_submission(tmp_path: Path) -> None:
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

    cells = [cell.replace("/kaggle", str(tmp_path)) for cell in CELLS]
    program = "\n".join(cells) + "\nprint(history.history['loss'])"
    start = (
        "import os, pathlib\n"
        "from shardprep.source.kaggle import download\n"
        f"download.MOUNT_ROOT = pathlib.Path({str(given)!r})\n"
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
