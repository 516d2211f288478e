"""docs/selections.md does what it says: its code runs, in its order, on small sets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import animals, build, jpeg, write, zip_bytes
from tests.support.paths import ROOT

TEXT = (ROOT / "docs" / "selections.md").read_text()


@pytest.mark.thorough
def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {**animals(90), **{f"test/{i:03}.jpg": jpeg(seed=i) for i in range(9)}}
    source = write(tmp_path / "dogs_vs_cats.zip", zip_bytes(members))
    build(source, tmp_path / "tfrecords", size="16x12", labels="prefix", shards=3)
    shapes = {f"train/cat.{i}.jpg": jpeg(60, 40 + 10 * (i % 8), seed=i) for i in range(24)}
    mixed = write(tmp_path / "mixed.zip", zip_bytes(shapes | {"train/dog.1.jpg": jpeg()}))
    build(mixed, tmp_path / "tfrecords", fit="none", labels="prefix", shards=2)
    (tmp_path / "near-leaks.csv").write_text("key\ntrain/cat.1.jpg\ntest/001.jpg\n")
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(block, "docs/selections.md", "exec"), found)  # the test is of that code
    assert (len(found["named"]), len(found["clean"]), len(found["few"])) == (2, 89, 10)
    assert len(found["dogs"]) == 45
    assert found["scores"][0] == (72, 18)
    assert found["weights"] == {0: 1.0, 1: 1.0}
    assert sum(len(one) for one in found["buckets"].values()) == 25
    assert len(found["shape"]) == 4
