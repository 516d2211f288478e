"""docs/tasks.md does what it says: its code runs on the sets that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardprep import reader
from tests.support.builders import SHARED_DATA, build
from tests.support.paths import shared_folder

TEXT = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
FEWER = {"epochs=12": "epochs=8", "epochs=7": "epochs=3"}
"""Epochs of the page → epochs after which both models have learned."""


def block_with(name: str) -> str:
    """Return the block about a model, which is trained for fewer epochs."""
    code: str = next(one for one in BLOCKS if name in one)
    found = [epochs for epochs in FEWER if epochs in code]
    assert len(found) == 1
    return code.replace(found[0], FEWER[found[0]])


OTHERS = [one for one in BLOCKS if "unet" not in one and "detector" not in one]

pytestmark = [
    pytest.mark.skipif(not (SHARED_DATA / "camvid.zip").exists(), reason="needs the real sets"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),  # by Keras itself
]


@pytest.fixture(scope="module", name="place")
def _place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with `tfrecords/bccd` and `tfrecords/camvid`, built as the page says."""

    def make(folder: Path) -> None:
        out = folder / "tfrecords"
        build(SHARED_DATA / "bccd.zip", out, boxes="voc", size="128x96")
        build(SHARED_DATA / "camvid.zip", out, size="96x72", fit="stretch")

    return shared_folder(tmp_path_factory, "tasks", make)


def run(code: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    keras = pytest.importorskip("keras")
    keras.utils.set_random_seed(0)
    if "import torch" in code or "from torch" in code:
        pytest.importorskip("torch")
    monkeypatch.chdir(place)
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, "docs/tasks.md", "exec"), names)
    return names


@pytest.mark.thorough
@pytest.mark.parametrize("code", OTHERS, ids=range(len(OTHERS)))
def test_the_code_runs(code: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run(code, place, monkeypatch)
    if "first" in names:
        assert set(names["first"]) == set(re.findall(r'^ +"(\w+)": ', code, re.MULTILINE))


@pytest.mark.thorough
def test_a_small_unet_beats_the_most_frequent_class(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = run(block_with("unet"), place, monkeypatch)
    masks = {
        split: np.concatenate([
            mask.ravel()
            for _, mask in reader.Dataset("tfrecords/camvid", split, as_supervised=True)
        ])
        for split in ("train+validation", "test")
    }  # fmt: skip
    values = masks["test"][masks["test"] != 255]
    frequent = np.bincount(masks["train+validation"], minlength=256)[:255].argmax()
    majority = (values == frequent).mean() / len(np.unique(values))
    assert names["scores"]["iou"] > max(3 * majority, 0.06)


@pytest.mark.thorough
def test_a_small_detector_finds_the_white_cells(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In images it has not seen; the boxes of white cells cover a ninth of them."""
    names = run(block_with("detector"), place, monkeypatch)
    test = reader.Dataset("tfrecords/bccd", "test", as_supervised=True)
    white = test.class_names.index("WBC")
    cells = names["detector"].predict(np.stack([image for image, _ in test]), verbose=0)
    hits = []
    for (_, target), cell in zip(test, cells, strict=True):
        boxes = target["boxes"][target["labels"] == white]
        if len(boxes) == 1:
            place_of = np.unravel_index(cell[..., white].argmax(), cell.shape[:2])
            middle = (np.array(place_of) + 0.5) / cell.shape[:2]
            hits.append((boxes[0, :2] <= middle).all() and (middle <= boxes[0, 2:]).all())
    assert len(hits) > 50
    assert np.mean(hits) > 0.5
    assert names["history"][-1] < names["history"][0] / 1.5
