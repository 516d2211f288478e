"""The files that run shardprep elsewhere: container, workflows, action, hook, citation."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.documents.cli_page import parser
from tests.support.builders import animals, build, write, zip_bytes
from tests.support.paths import ROOT, WHEEL_SOURCES

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TARGETS = (ROOT / "Makefile").read_text(encoding="utf-8").rpartition(".PHONY:")[2].split()
SCHEMAS = {
    ".github/workflows/ci.yml": "vendor.github-workflows",
    ".github/workflows/wheels.yml": "vendor.github-workflows",
    "action.yml": "vendor.github-actions",
    "CITATION.cff": "vendor.citation-file-format",
}
"""File → schema that check-jsonschema brings with it."""


def document(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def tool(name: str, *arguments: str) -> None:
    """Run a program of this environment, or skip the test if it is not installed."""
    program = Path(sysconfig.get_path("scripts")) / name
    if not program.is_file():
        pytest.skip(f"{name} is not installed")
    done = subprocess.run(
        [str(program), *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_document_follows_its_schema(name: str) -> None:
    tool("check-jsonschema", "--builtin-schema", SCHEMAS[name], name)


def test_the_hook_follows_its_schema() -> None:
    tool("pre-commit", "validate-manifest", ".pre-commit-hooks.yaml")


def test_workflows_and_the_action_have_no_known_weakness() -> None:
    tool("zizmor", "--offline", "--no-progress", "--pedantic", ".github", "action.yml")


def test_workflows_and_the_devcontainer_call_targets_of_the_makefile() -> None:
    steps = [
        step["run"]
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
        for job in document(str(path.relative_to(ROOT)))["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    made = re.findall(r"make (\S+)", "\n".join((*steps, container["postCreateCommand"])))
    assert {*made} == {"test", "release", ".venv/installed-test"}
    assert {"test", "release"} <= {*TARGETS}


def test_the_citation_has_the_version_of_the_project() -> None:
    cited = document("CITATION.cff")
    assert (cited["title"], cited["version"]) == (PROJECT["name"], PROJECT["version"])
    assert cited["license"] == PROJECT["license"]


def test_the_image_has_no_compiler_and_an_ordinary_user() -> None:
    """Here is no daemon to build it. The wheel that it installs has a test."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    stages = [i for i, line in enumerate(lines) if line.startswith("FROM ")]
    first, last = lines[stages[0] : stages[-1]], lines[stages[-1] :]
    assert len(stages) == 2
    copied = [name for line in first if line.startswith("COPY ") for name in line.split()[1:-1]]
    assert sorted(copied) == sorted(WHEEL_SOURCES)
    assert not [line for line in last if re.search(r"apt|gcc|pip|COPY (?!--from=build )", line)]
    (user,) = [i for i, line in enumerate(last) if line.startswith("USER ")]
    assert last[user] != "USER root"
    assert last[-1] == 'ENTRYPOINT ["shardprep"]'
    (extras,) = [line.partition("=")[2] for line in first if line.startswith("ARG EXTRAS=")]
    assert {*extras.split(",")} <= PROJECT["optional-dependencies"].keys()


def test_the_hook_runs_a_command_of_the_program() -> None:
    (hook,) = document(".pre-commit-hooks.yaml")
    program, name = hook["entry"].split()
    assert program in PROJECT["scripts"]
    assert (
        parser().commands[name].make_context(name, ["data/pets"]).params["dataset"] == "data/pets"
    )


@pytest.mark.skipif(shutil.which("bash") is None, reason="the action runs in bash")
def test_the_action_fails_if_a_dataset_is_damaged(tmp_path: Path) -> None:
    source = write(tmp_path / "pets.zip", zip_bytes(animals(4)))
    dataset = build(source, tmp_path / "two words", size="16x16").path
    program = tmp_path / "shardprep" / "bin" / "shardprep"
    write(program, f'#!/bin/sh\nexec {sys.executable} -m shardprep "$@"\n'.encode()).chmod(0o755)
    step = document("action.yml")["runs"]["steps"][-1]

    def ended(decode: str) -> int:
        inputs = {"inputs.dataset": str(dataset), "inputs.decode": decode}
        given = {name: inputs[value.strip("${} ")] for name, value in step["env"].items()}
        told = {**os.environ, **given, "RUNNER_TEMP": str(tmp_path), "PYTHONPATH": str(ROOT)}
        return subprocess.run(["bash", "-e", "-c", step["run"]], env=told, check=False).returncode

    assert ended("true") == 0
    shard = next(dataset.glob("*.tfrecord*"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    assert ended("false") == 3
