"""docs/reading.md does what it says: its code runs, in its order, on a small set."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardprep.reader import Dataset, ReadConfig
from tests.support.builders import animals, build, jpeg, write, zip_bytes

TEXT = (Path(__file__).parents[2] / "docs" / "reading.md").read_text()


@pytest.mark.thorough
def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {**animals(90), **{f"test/{i:03}.jpg": jpeg(seed=i) for i in range(70)}}
    source = write(tmp_path / "dogs_vs_cats.zip", zip_bytes(members))
    build(source, tmp_path / "tfrecords", size="16x12", shards=3)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == len(re.findall(r"^## ", TEXT, re.MULTILINE)) - 1
    found: dict[str, Any] = {}
    for block in blocks:
        code = block.replace("/tmp/dogs", str(tmp_path / "cache"))
        exec(compile(code, "docs/reading.md", "exec"), found)  # the test is of that code
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


def test_options_that_are_named_exist() -> None:
    fields = set(ReadConfig.__dataclass_fields__)
    named = set(re.findall(r"ReadConfig\((\w+)=|, (\w+)=3\)`", TEXT))
    assert {one for pair in named for one in pair if one} <= fields
