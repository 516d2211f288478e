"""docs/export.md does what it says: its commands and its code run, on the sample."""

from __future__ import annotations

import contextlib
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from shardprep.dataset.schema import BOX, BOX_LABEL
from shardprep.exporter.export import LAYOUTS
from tests.support.annotated import annotated
from tests.support.command import run
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "export.md").read_text()


@pytest.fixture(name="here", scope="module")
def _here(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the commands of the page have been run."""
    here = tmp_path_factory.mktemp("export_docs")
    (here / "tfrecords").symlink_to(shapes / "tfrecords")
    boxes = annotated(tmp_path_factory.mktemp("boxes"), BOX, BOX_LABEL)
    (here / "sets").mkdir()
    (here / "sets" / "bccd").symlink_to(boxes.parent)
    commands = re.findall(r"^\$ shardprep (.*)$", PAGE, re.MULTILINE)
    assert commands[:2] == ["sample", "build --shards 20"], "what made the shapes, but for a number"
    for command in commands[2:]:
        done = run(*shlex.split(command), cwd=here)
        assert done.returncode == 0, done.stderr
    return here


def test_the_page_has_a_command_a_row_and_a_section_for_each_layout() -> None:
    assert re.findall(r"--to (\w+)", PAGE.split("```")[1]) == list(LAYOUTS)
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(LAYOUTS)
    assert len(re.findall(r"^## ", PAGE, re.MULTILINE)) == len(LAYOUTS) + 1


@pytest.mark.thorough
def test_the_code_runs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(here / "home"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(here / "cache"))
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    with contextlib.chdir(here):
        for block in blocks:
            found: dict[str, Any] = {}
            exec(compile(block, "docs/export.md", "exec"), found)  # the test is of that code
            assert found["image"].size == (64, 64)
            assert found["label"] in (0, 1, 2, ["circle", "square", "triangle"])


def test_files_are_called_as_the_page_says(here: Path) -> None:
    folder = here / "exports/shapes-1.0.0-folder"
    assert (folder / "train/square/square.6.jpg").is_file()
    assert (folder / "test/_unlabelled/1.jpg").is_file()
    tars = [path.name for path in (here / "exports/shapes-1.0.0-webdataset").glob("*.tar")]
    assert "shapes-train-000000.tar" in tars
    assert (here / "exports/shapes-1.0.0-tfod/label_map.pbtxt").is_file()
    assert (here / "exports/marked-1.0.0-coco/annotations/instances_train.json").is_file()
    assert (here / "exports/marked-1.0.0-yolo/data.yaml").is_file()
    assert (here / "exports/marked-1.0.0-yolo/labels/train/b.txt").read_text() == ""


@pytest.mark.thorough
def test_keras_takes_the_folder(here: Path) -> None:
    import keras

    found = keras.utils.image_dataset_from_directory(
        here / "exports/shapes-1.0.0-folder/train", image_size=(64, 64), verbose=False
    )
    assert found.class_names == ["circle", "square", "triangle"]
