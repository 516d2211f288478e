"""The documents say what the program does: their examples are run, their tables compared."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest
from PIL import Image

from shardprep.dataset.item_table import ANNOTATION_COLUMNS, COLUMNS, POINT_COLUMNS, TARGET_COLUMNS
from shardprep.dataset.schema import PROVIDED, shipped_schemas
from shardprep.image.process import RejectionKind
from shardprep.reporter.findings.finding import MEANINGS as FINDINGS
from shardprep.verifier.problem import MEANINGS, Kind
from tests.documents.cli_page import page_text
from tests.documents.manual_pages import COMPLETIONS, MAN, completions, pages
from tests.documents.report_picture import MOST_BYTES, PICTURE, SIZE, draw
from tests.support.builders import animals, build, write, zip_bytes
from tests.support.command import run
from tests.support.layouts import LAYOUTS
from tests.support.paths import README, ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FORMAT = (ROOT / "docs" / "format.md").read_text()
OF_OTHERS = {
    "--diagnose",  # of train_keras.py
    "--members",  # of benchmarks.plan
    "--before",  # of benchmarks.first_batch
    "--minutes",  # of benchmarks.training_machine
    "--nproc-per-node",  # of torchrun
    "--bucket", "--lifecycle-configuration", "--format",  # of aws
    "--job-name", "--array", "--cpus-per-task", "--mem", "--time", "--requeue", "--parsable",
    "--dependency", "--kill-on-invalid-dep", "--wrap", "--for",  # of sbatch and kubectl
    "--repo-type",  # of hf
    "--tag", "--rm", "--volume", "--user", "--build-arg", "--cpus", "--memory",  # of docker
}  # fmt: skip


MARK = "<!-- demo -->\n"
DEMO = [README, *((ROOT / "docs" / f"{name}.md").read_text() for name in ("labels", "verify"))]
"""Pages that show a part of one session, in its order."""


def masked(text: str) -> str:
    """Replace sizes, rates, times and hashes, and leave out progress, as machines differ."""
    text = re.sub(r"^.*[\d,]+ of [\d,]+ images.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\b[kM]B/s", "B/s", text)
    text = re.sub(r"\d[\d.,]* (MB|kB|B|s|images/s|bytes)\b", r"# \1", text)
    text = re.sub(r"\(\d\.\d\dx\)", "(#x)", text)
    text = re.sub(r"\d+,\d{3}|[0-9a-f]{12}…", "#", text)
    return "\n".join(re.sub(r" +", " ", line).rstrip() for line in text.splitlines())


@pytest.mark.thorough
@pytest.mark.usefixtures("drawn")
def test_the_demo_of_the_pages_is_the_output_of_the_program(tmp_path: Path) -> None:
    blocks = [
        part.split("```")[0] for page in DEMO for part in page.split(f"{MARK}```console\n")[1:]
    ]
    assert len(blocks) == 4
    shown = re.split(r"^\$ (.*)\n", "".join(blocks), flags=re.MULTILINE)[1:]
    for command, output in zip(shown[::2], shown[1::2], strict=True):
        if command.startswith("shardprep "):
            done = run(*command.removeprefix("shardprep ").split(), cwd=tmp_path)
        else:
            done = subprocess.run(
                command.split(), cwd=tmp_path, capture_output=True, text=True, check=True
            )
        assert masked(done.stderr + done.stdout) == masked(output), command


@pytest.mark.thorough
def test_the_model_of_the_readme_learns(shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keras = pytest.importorskip("keras")
    keras.utils.set_random_seed(0)
    monkeypatch.chdir(shapes)
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    found: dict[str, object] = {}
    exec(compile(block, "README.md", "exec"), found)
    history: Any = found["history"]
    assert history.history["accuracy"][-1] > history.history["accuracy"][0]


def test_make_demo_runs_the_commands_of_the_readme() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in re.findall(r"^\$ (shardprep .*)$", README.split("## Use it")[0], re.MULTILINE):
        assert f"$(BIN)/{command}\n" in makefile
    assert "$(BIN)/shardprep inspect\n" in makefile


def test_every_build_command_of_the_readme_is_understood(tmp_path: Path) -> None:
    """Their sources do not exist, so each must fail because of its source."""
    commands = re.findall(r"^\$ (shardprep build .*)$", README.split("## Use it")[1], re.MULTILINE)
    assert len(commands) >= 3
    alone = {"HOME": str(tmp_path), "SHARDPREP_CACHE": str(tmp_path), "PATH": os.environ["PATH"]}
    for command in commands:
        done = run(*command.split("#")[0].split()[1:], cwd=tmp_path, environment=alone)
        expected = "no Kaggle credentials" if "kaggle:" in command else "no such file"
        assert (done.returncode, expected in done.stderr) == (1, True), done.stderr


def test_the_readme_counts_the_tested_kaggle_datasets() -> None:
    tried = (ROOT / "docs" / "kaggle.md").read_text().split("## Datasets that are tested")[1]
    rows = set(re.findall(r"^\| (\d+) \|", tried.split("\n## ")[0], re.MULTILINE))
    working = {layout.row for layout in LAYOUTS}
    assert {str(row) for row in working} <= rows
    assert f"the flags for {len(working)} well-known Kaggle sets" in " ".join(README.split())


def test_every_option_of_the_documents_exists() -> None:
    benchmarks = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--help"], cwd=ROOT, capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip
    known = set(re.findall(r"--[a-z-]+", page_text() + benchmarks)) | OF_OTHERS
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        assert set(re.findall(r"`?(--[a-z][a-z-]+)", path.read_text())) <= known, path


def test_only_the_page_on_installing_says_how_and_no_page_uses_an_index() -> None:
    """No index has the package, but pip adds extras to it once it is installed."""
    sentence = "shardprep is not on a package index: install it with `pip install .` in a clone"
    root_pages = (ROOT / "README.md", ROOT / "CONTRIBUTING.md")
    said = []
    for path in (*root_pages, *(ROOT / "docs").rglob("*.md"), *(ROOT / "notebooks").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        commands = re.findall(r"pip install ([^`#\n]+)", text)
        packages = [package.strip("'\"") for line in commands for package in line.split()]
        assert "shardprep" not in packages, path
        if any(package.startswith("shardprep[") for package in packages):
            assert re.search(r"\]\((\.\./docs/|docs/)?platforms\.md\)", text) or (
                path.name == "platforms.md"
            ), path
        said += [path.name] * (sentence in " ".join(text.split()))
    assert said == ["platforms.md"]


def test_man_pages_and_completions_are_those_of_the_commands() -> None:
    again = "run python -m tests.documents.manual_pages"
    assert {path.name: path.read_text() for path in MAN.iterdir()} == pages(), again
    stored = {path.name: path.read_text() for path in COMPLETIONS.iterdir()}
    assert stored == completions(), again
    assert stored["_shardprep"].startswith("#compdef shardprep\n")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    write(tmp_path / "shardprep", f'#!/bin/sh\nexec {sys.executable} -m shardprep "$@"\n'.encode())
    (tmp_path / "shardprep").chmod(0o755)
    program = 'source "$0"; COMP_WORDS=(shardprep export --cro); COMP_CWORD=2;'
    program += '_shardprep_completion shardprep; echo "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", program, str(COMPLETIONS / "shardprep")], text=True, check=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, capture_output=True,
    )  # fmt: skip
    assert done.stdout.split() == ["--croissant"]


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_man_pages_have_no_error_and_show_every_option() -> None:
    form = ["groff", "-ww", "-Kutf8", "-man", "-Tutf8", "-P-cbou"]
    for name, page in pages().items():
        done = subprocess.run(form, input=page, capture_output=True, text=True, check=True)
        assert done.stderr == "", name
        shown = {*re.findall(r"--[a-z-]+[a-z]", done.stdout)}
        assert {*re.findall(r"--[a-z-]+[a-z]", page.replace("\\-", "-"))} == shown, name


def table(title: str) -> str:
    return FORMAT.split(f"## {title}\n")[1].split("\n## ")[0]


def test_format_names_the_columns_of_items() -> None:
    rows = re.findall(r"^\| (`.*?) \|", table("items.parquet"), re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(rows)) == [
        *COLUMNS.names[: COLUMNS.names.index("original_width")],
        "original_width", "original_height", "original_format", "original_bytes",
        "original_sha256",
        *TARGET_COLUMNS.names,
        *ANNOTATION_COLUMNS.names,
        *POINT_COLUMNS.names,
    ]  # fmt: skip


def test_format_names_the_kinds_of_rejection() -> None:
    row = next(line for line in FORMAT.splitlines() if line.startswith("| `kind`"))
    assert set(re.findall(r"`(\w+)`", row)) - {"kind"} == set(get_args(RejectionKind))


def test_format_names_the_kinds_of_problem() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", table("Problems"), re.MULTILINE)
    assert rows == list(MEANINGS.items())
    assert list(MEANINGS) == list(get_args(Kind))


def test_format_says_how_the_manifest_is_hashed(tmp_path: Path) -> None:
    source = write(tmp_path / "pets.zip", zip_bytes(animals(4)))
    text = (build(source, tmp_path / "out", size="16x16").path / "manifest.json").read_text()
    found = re.search(r'"sha256": "(\w+)"\n}\n$', text)
    assert found is not None
    unsigned = text.replace(found[1], "").removesuffix("\n")
    assert hashlib.sha256(unsigned.encode()).hexdigest() == found[1]


def test_format_names_the_features() -> None:
    rows = re.findall(r"^\| (`.*?) \|", table("Features"), re.MULTILINE)
    assert set(re.findall(r"`([\w/]+)`", " ".join(rows))) == {
        *PROVIDED,
        "label/NAME",
        "rows/COLUMN",
    }


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)#]+)\)", README))
def test_links_of_the_readme_lead_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


def test_the_top_level_has_only_known_entries() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    top = {line.split("/")[0] for line in listed.stdout.splitlines()}
    assert top <= {
        "pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "Makefile",
        "SECURITY.md", "CITATION.cff", "Dockerfile", "action.yml", ".pre-commit-hooks.yaml",
        ".ci", ".devcontainer", ".github", ".gitignore", "shardprep", "schemas", "tests",
        "benchmarks", "docs", "notebooks",
    }  # fmt: skip


def test_shipped_schemas_equal_the_folder() -> None:
    assert set(shipped_schemas()) == {path.stem for path in (ROOT / "schemas").glob("*.json")}


def test_report_names_every_finding_and_its_meaning() -> None:
    page = (ROOT / "docs" / "report.md").read_text()
    rows = re.findall(r"^\| `([a-z][a-z-]*)` \| (.*) \|$", page, re.MULTILINE)
    assert rows == list(FINDINGS.items())


def test_the_picture_of_the_readme_is_small() -> None:
    assert f"]({PICTURE.relative_to(ROOT)})" in README
    assert PICTURE.stat().st_size <= MOST_BYTES
    assert Image.open(PICTURE).size == SIZE


@pytest.mark.thorough
def test_the_picture_can_be_drawn_anew(tmp_path: Path, browser: Browser) -> None:
    """Fonts differ between machines, so only mean colours are compared."""
    drawn = draw(browser, tmp_path)
    (tmp_path / "drawn.png").write_bytes(drawn)
    assert len(drawn) <= MOST_BYTES
    colours = Image.open(tmp_path / "drawn.png").convert("RGB").resize((60, 39))
    kept = Image.open(PICTURE).convert("RGB").resize((60, 39))
    apart = [abs(a - b) for a, b in zip(colours.tobytes(), kept.tobytes(), strict=True)]
    assert sum(apart) / len(apart) < 8
