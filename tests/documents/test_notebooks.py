"""The notebooks run in new kernels, and their pages show what they printed."""

import csv
import importlib.util
import io
import re
from pathlib import Path
from typing import Any

import jupytext
import pytest
from PIL import Image

import shardprep
from shardprep.reader import Dataset
from tests.documents.notebooks import NOTEBOOKS, PAGES, executed, page_text, pictures, run, steady
from tests.support.builders import code_for_sample, tree
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
LEAST = {
    "classify": r"accuracy (0\.\d+)",
    "detect": r"right in ([01]\.\d+)",
    "segment": r"IoU (0\.\d+)",
}
"""Notebook → its score, which must be above 0.5; guessing gives at most a third."""
NEEDED = {"detect": "torch", "cluster": "obstore", "segment": "tensorflow"}
MOST_BYTES = 20_000_000
"""Limit for the output of a notebook."""


def shown(name: str) -> str:
    return (DOCS / f"{PAGES[name]}.md").read_text(encoding="utf-8")


def need(name: str) -> None:
    module = NEEDED.get(name, "keras")
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"needs {module}")


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in PAGES if name != "kaggle"])
def test_a_notebook_prints_what_its_page_shows(name: str, tmp_path: Path) -> None:
    need(name)
    notebook = run(name, tmp_path)
    compare(name, notebook)
    if name in LEAST:
        score = re.search(LEAST[name], page_text(name, notebook))
        assert score is not None
        assert float(score[1]) > 0.5


def compare(name: str, notebook: Any) -> None:
    """Compare with the page. Pictures have the same sizes; their fonts differ between machines."""
    assert steady(page_text(name, notebook)) == steady(shown(name)), "run `make notebooks`"
    for file, data in pictures(name, notebook).items():
        drawn, kept = Image.open(io.BytesIO(data)), Image.open(DOCS / "tutorials" / file)
        assert drawn.width == kept.width
        assert abs(drawn.height - kept.height) <= 8


@pytest.mark.thorough
def test_the_kaggle_notebook_goes_from_a_mount_to_a_submission(tmp_path: Path) -> None:
    need("kaggle")
    notebook = run("kaggle", tmp_path)
    compare("kaggle", notebook)
    working = tmp_path / "kaggle"
    assert [*tree(tmp_path / "input")] == [
        f"competitions/dogs-vs-cats/{file}"
        for file in ("sampleSubmission.csv", "test1.zip", "train.zip")
    ]
    assert {path.name for path in working.iterdir()} - {".cache"} == {
        "tfrecords", "report.html", "model.keras", "submission.csv",
    }  # fmt: skip
    assert sum(map(len, tree(working).values())) < MOST_BYTES
    header, *rows = csv.reader((working / "submission.csv").read_text().splitlines())
    assert header == ["id", "label"]
    assert sorted(int(name) for name, _ in rows) == [*range(1, 11)]
    assert all(0 <= float(score) <= 1 for _, score in rows)
    splits = shardprep.inspect(working / "tfrecords" / "dogs_vs_cats").manifest.splits
    numbers = {name: split.num_records for name, split in splits.items()}
    assert numbers == {"train": 108, "validation": 12, "test": 10}


@pytest.mark.thorough
def test_without_a_store_machines_share_a_folder(tmp_path: Path) -> None:
    before = code_for_sample(tmp_path / "drawn")
    notebook = executed("cluster", tmp_path, before=before)
    text = page_text("cluster", notebook)
    assert "```text\na folder\n```" in text
    stored = shown("cluster").replace("```text\nobject storage\n```", "```text\na folder\n```")
    assert steady(text) == steady(stored)
    assert len(Dataset(tmp_path / "bucket" / "tfrecords", "train")) == 407


def test_notebooks_say_what_one_will_have_and_what_to_read_next() -> None:
    assert {path.stem for path in NOTEBOOKS.glob("*.py")} == {*PAGES}
    for name in PAGES:
        cells = jupytext.read(NOTEBOOKS / f"{name}.py").cells
        first, last = cells[0].source, cells[-1].source
        assert re.match(r"# .*\n\nThis page [^#]* At the end you will\s", first), name
        assert "$ pip install " in first
        assert last.startswith("## Next\n\n- [")


def test_pages_have_the_cells_of_their_notebooks_and_links_that_lead_somewhere() -> None:
    """Without running them: a change of a cell needs `make notebooks`."""
    for name in PAGES:
        cells = jupytext.read(NOTEBOOKS / f"{name}.py").cells
        code = [cell.source for cell in cells if cell.cell_type == "code"]
        assert re.findall(r"```python\n(.*?)\n```", shown(name), re.DOTALL) == code, name
        prose = [cell.source for cell in cells if cell.cell_type == "markdown"]
        assert all(text.replace("../docs/", "") in shown(name) for text in prose), name
        links = re.findall(r"\]\(([^)#]+)", shown(name))
        assert all((DOCS / link).exists() for link in links), links
        assert {link for link in links if link.endswith("png")} == {
            f"tutorials/{path.name}" for path in DOCS.glob(f"tutorials/{name}_*.png")
        }
