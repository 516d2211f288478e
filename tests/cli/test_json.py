"""`--json`: one object of the types that docs/json.md is made of, whatever happens."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from shardprep.api import COMMANDS, reports
from shardprep.api import sample_archive as drawn
from shardprep.api.builds import Sample
from shardprep.api.json_types import (
    BuildJson,
    ErrorJson,
    PartJson,
    PlanJson,
    ReportJson,
    VerifyJson,
)
from shardprep.catalog.survey import Survey
from shardprep.dataset.describe import Facts
from shardprep.exporter.export import Exported
from tests.support.builders import animals, jpeg, write, zip_bytes
from tests.support.command import COMMAND_ERRORS, NARROW, Done, python
from tests.support.command import run as command
from tests.support.json_page import PAGE, page_text, printed

FIRST = "tfrecords/pets/1.0.0/pets-train.tfrecord-00000-of-00002"


@pytest.fixture(name="here")
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path / "pets.zip", zip_bytes({**animals(20), "notes.txt": b"hello"}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture(name="run")
def _run(here: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    monkeypatch.setattr(drawn, "_archive", lambda *_: b"seconds of drawing")
    return partial(command, cwd=here)


def test_the_page_is_made_of_the_types() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_text(), "run: python -m tests.support.json_page"


def test_results_have_every_key_of_their_types_and_no_other(
    run: Callable[..., Done], here: Path
) -> None:

    def said(result: Any, *arguments: str, code: int = 0) -> Any:
        done = run(*arguments, "--json")
        assert done.returncode == code, done.stderr
        return printed(done.stdout, result)

    said(PlanJson, "build", "pets.zip", "--dry-run")
    said(PlanJson, "build", "pets.zip", "--dry-run", "--part", "1/2")
    said(Survey, "init", "pets.zip")
    said(PartJson, "build", "--part", "1/1", "--shards", "2")
    said(BuildJson, "finalize")
    assert "profile" in said(BuildJson, "build", "--shards", "2", "--overwrite", "--profile")
    said(Facts, "inspect")
    assert said(ReportJson, "report")["num_measured"] == 20
    assert said(ReportJson, "report", "--no-pixels")["channels"] is None
    assert said(VerifyJson, "verify")["problems"] == []
    (here / FIRST).write_bytes((here / FIRST).read_bytes()[:2000])
    before = said(VerifyJson, "verify", code=3)["problems"]
    assert before
    assert said(VerifyJson, "verify", "--repair")["repaired"] == before
    exported = said(Exported, "export", "--to", "webdataset")
    assert (exported["splits"], exported["num_new_shards"]) == ({"train": 20}, 2)
    assert exported["layout"] == "webdataset"
    assert said(Exported, "export", "--to", "webdataset")["was_there"]
    said(Sample, "sample", "demo")


def failed(done: Done, code: int) -> Any:
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    found = printed(done.stdout, ErrorJson)
    error = found["error"]
    assert error["exit"] == code
    assert error["what"]
    for said in (error["where"], error["what"], error["hint"]):
        assert said in done.stderr
    assert done.stderr.count("\n") == 1 or "totals" in found
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_each_error_of_a_command_is_one_json_object(run: Callable[..., Done], command: str) -> None:
    arguments, code = COMMAND_ERRORS["failures"][command]
    failed(run(*arguments.split(), "--json"), code)
    error = failed(run(command, "--nope", "--json"), 2)["error"]
    assert error["where"] == f"shardprep {command}"
    assert error["what"].startswith("no such option: --nope")
    assert error["hint"] == f"see shardprep {command} --help"


def test_wrong_arguments_are_one_line_and_one_object(run: Callable[..., Done]) -> None:
    for arguments, what in (
        (("nonsense",), "no such command 'nonsense'"),
        (("verify", "--workers", "0"), "'0' is not a whole number"),
        (("fetch",), "missing argument"),
        (("inspect", "a", "b"), "got unexpected extra argument"),
        (("build", "pets.zip", "--size", "big"), "'big' is not WIDTHxHEIGHT"),
    ):
        assert what in failed(run(*arguments, "--json"), 2)["error"]["what"]
        plain = run(*arguments)
        assert (plain.returncode, plain.stdout, plain.stderr.count("\n")) == (2, "", 1)


def test_the_error_for_too_many_rejections_has_the_totals(
    run: Callable[..., Done], here: Path
) -> None:
    write(here / "bad.zip", zip_bytes({"a/1.jpg": jpeg(), "b/2.jpg": b"no", "b/3.jpg": b""}))
    found = failed(run("build", "bad.zip", "--json"), 1)
    assert found["totals"]["rejected"] == {"not_an_image": 2}
    assert run("build", "bad.zip", "--part", "1/1", "--name", "p").returncode == 0
    assert failed(run("finalize", "tfrecords/p", "--json"), 1)["totals"] == found["totals"]


def test_ctrl_c_is_one_json_object(here: Path) -> None:
    """A real signal needs a process of its own."""
    program = (
        "import os, signal\n"
        "from shardprep.cli import app\n"
        "from shardprep.api import reports\n"
        "reports.dataset_at = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)\n"
        "app.main()\n"
    )
    done = python("-c", program, "inspect", "--json", cwd=here, env=NARROW)
    assert failed(done, 130)["error"]["what"] == "interrupted"


@pytest.mark.thorough
@pytest.mark.parametrize("module", ["typer", "shardprep.cli.streams", "numpy"])
def test_ctrl_c_while_modules_are_imported_is_one_line(here: Path, module: str) -> None:
    program = (
        "import runpy, signal, sys\n"
        "class Pressed:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Pressed())\n"
        "runpy.run_module('shardprep', run_name='__main__')\n"
    )
    done = python("-c", program, "build", "pets.zip", "--json", cwd=here, env=NARROW)
    assert failed(done, 130)["error"]["what"] == "interrupted"
    assert done.stderr == "interrupted; run the same command again to continue\n"


def test_an_oserror_is_one_json_object(
    run: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OSError(5, "Input/output error", "a/b")
    monkeypatch.setattr(reports, "dataset_at", mock.Mock(side_effect=error))
    assert failed(run("inspect", "--json"), 1)["error"]["where"] == "a/b"


def test_a_bug_shows_a_traceback_and_is_one_object(
    run: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "dataset_at", mock.Mock(side_effect=ValueError("x \x1b")))
    done = run("inspect", "--json")
    assert "ValueError: x \\x1b\n" in done.stderr
    assert "Traceback" in done.stderr
    assert "ValueError" in printed(done.stdout, ErrorJson)["error"]["what"]


def test_after_two_dashes_json_is_a_name(run: Callable[..., Done]) -> None:
    done = run("inspect", "--", "--json")
    assert (done.returncode, done.stdout) == (1, "")
    failed(run("inspect", "--json", "--", "x"), 1)
