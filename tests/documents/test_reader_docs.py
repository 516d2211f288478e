"""docs/reading.md does what it says: its code runs, in its order, on a small set."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from shardprep.reader import ReadConfig
from tests.support.builders import animals, build, write, zip_bytes

TEXT = (Path(__file__).parents[2] / "docs" / "reading.md").read_text()


@pytest.mark.thorough
def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {**animals(90), **animals(10, folder="validation/")}
    source = write(tmp_path / "dogs_vs_cats.zip", zip_bytes(members))
    build(source, tmp_path / "tfrecords", size="16x12", labels="prefix", shards=3)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == len(re.findall(r"^## ", TEXT, re.MULTILINE)) - 1
    found: dict[str, Any] = {}
    for block in blocks:
        code = block.replace("/tmp/dogs", str(tmp_path / "cache"))
        exec(compile(code, "docs/reading.md", "exec"), found)  # the test is of that code
    assert found["state"]["batch"] == 1
    images, labels = next(iter(found["train"]))
    assert (images.shape, labels.shape) == ((64, 12, 16, 3), (64,))


def test_options_that_are_named_exist() -> None:
    fields = set(ReadConfig.__dataclass_fields__)
    named = set(re.findall(r"ReadConfig\((\w+)=|, (\w+)=3\)`", TEXT))
    assert {one for pair in named for one in pair if one} <= fields
