"""The examples and reports of docs/bottlenecks.md are real, and the example scripts run."""

import re
import runpy
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardprep.benchmark.pipelines import PIPELINES
from shardprep.benchmark.result import Benchmark, Round, Settings, Way
from tests.support.benchmark import example
from tests.support.builders import write
from tests.support.command import run
from tests.support.processes import Program

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENT = (DOCS / "bottlenecks.md").read_text()


def shape(text: str) -> list[str]:
    """Return the lines of a report without numbers and spaces, which differ from run to run."""
    text = re.sub(r"\d[\d.,]*( [kMG]B)?", "#", text)
    return [re.sub(r" +", " ", line).strip() for line in text.strip().splitlines()]


def block(mark: str) -> str:
    return DOCUMENT.split(f"<!-- {mark} -->\n```")[1].split("\n", 1)[1].split("```")[0]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")  # by Keras itself
def test_the_examples_of_the_document_run(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    names: dict[str, Any] = {"__name__": "example"}
    for code in re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL):
        few = code.replace("seconds=2", "seconds=0.3")
        exec(compile(few, "example", "exec"), names)
    assert "seconds=2" in code
    assert len(names["history"].history["stall"]) == 2
    # The bound and the advice differ between machines.
    for said in (block("diagnosis"), capsys.readouterr().out):
        (sentence,) = shape(said.splitlines()[-1])
        limit = r".* limits? you: at most # images/s, you get #( \(speeds vary by #% .+\))?"
        doubt = "(; not sure, because .+: repeat .+)?"
        assert re.fullmatch(rf"{limit}{doubt}; (try .+|no change of reading helps)", sentence)


@pytest.mark.thorough
def test_bench_prints_the_table_of_the_document(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With made-up figures: `test_bench` has a real measurement."""
    asked: list[Path] = []

    def measured(folder: Path, _split: str, settings: Settings, _say: object) -> Benchmark:
        asked.append(folder)
        rounds = [Round(0.06, 9986, 1.0, 1.0)]
        naive = Way.measured("naive", rounds, "float32", 677 << 20)
        return replace(example(naive=naive), path=str(folder), settings=settings)

    monkeypatch.setattr("shardprep.benchmark.run.run_benchmark", measured)
    command, shown = block("bench").split("\n", 1)
    arguments = command.removeprefix("$ ").split()
    assert arguments[0] == "shardprep"
    done = run(*arguments[1:], cwd=place)
    assert done.returncode == 0, done.stderr
    assert len(asked) == 1
    # Where a line is wrapped depends on its numbers.
    assert " ".join(shape(done.stdout)) == " ".join(shape(shown))
    assert [row.title for row in PIPELINES.values() if row.title not in DOCUMENT] == []


Train = Callable[..., str]


@pytest.fixture(name="train")
def _train(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Train:
    """Return a function that runs an example for two steps; it returns what was printed."""

    def train(script: str, *options: object) -> str:
        few = ("--epochs", 1, "--steps", 2, "--batch-size", 8)
        monkeypatch.chdir(place)
        monkeypatch.setattr(sys, "argv", [script, "tfrecords/shapes", *map(str, (*few, *options))])
        runpy.run_path(str(DOCS / script), run_name="__main__")
        return capsys.readouterr().out

    return train


@pytest.mark.thorough
def test_the_keras_example_trains_from_scratch(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a backbone of one layer: to trace MobileNetV2 takes half a minute."""
    import keras

    def backbone(shape: tuple[int, ...], *, include_top: bool, weights: None) -> Any:
        assert (include_top, weights) == (False, None)
        return keras.Sequential([keras.Input(shape), keras.layers.Conv2D(8, 8, 8)])

    monkeypatch.setattr(keras.applications, "MobileNetV2", backbone)
    said = train("train_keras.py")
    losses = re.findall(r"loss: (\d+\.\d+)", said)
    assert len(losses) == 2, said  # of training and of validation
    assert "stall: " in said


@pytest.mark.thorough
def test_the_models_of_the_examples_give_probabilities_and_scores() -> None:
    model = runpy.run_path(str(DOCS / "train_keras.py"))["make_model"](32, 32, 3)
    assert model.count_params() > 2_000_000
    found = np.asarray(model(np.zeros((2, 32, 32, 3), np.uint8)))
    np.testing.assert_allclose(found.sum(axis=1), [1, 1], rtol=1e-5)
    torch = pytest.importorskip("torch")
    scoring = runpy.run_path(str(DOCS / "train_torch.py"))["make_model"](3)
    assert sum(one.numel() for one in scoring.parameters()) > 2_000_000
    assert scoring(torch.zeros(2, 3, 64, 64)).shape == (2, 3)


KILLED = """
import os, runpy, signal, sys

left = int(sys.argv.pop(1))

def kill(event, arguments):
    global left
    if event == "os.rename" and str(arguments[1]) == sys.argv[-1]:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Code that runs a script, killed before it replaces a file, its last argument, the n-th time."""


@pytest.mark.thorough
def test_the_torch_example_resumes_where_it_was_killed(place: Path, tmp_path: Path) -> None:
    """Its weights are bit for bit those of an undisturbed run. Each run is killed before a save.

    Its model has 2 blocks instead of 17: with all, most of the time is for saving 300 arrays.
    """
    torch = pytest.importorskip("torch")
    head, rest = (DOCS / "train_torch.py").read_text().split("BLOCKS = [\n")
    code = f"{head}BLOCKS = [(1, 16, 1, 2), (6, 24, 1, 4)]{rest.partition(']')[2]}"
    script = write(tmp_path / "train.py", code.encode())
    few = ("--epochs", 2, "--steps", 4, "--batch-size", 8, "--save-every", 1, "--threads", 1)

    def begin(state: Path, saves: int = 0) -> Program:
        arguments = (script, place / "tfrecords/shapes")
        return Program(KILLED, saves, *arguments, *few, "--state", state, framework="torch")

    def read(state: Path) -> Any:
        return torch.load(state)

    whole, killed = tmp_path / "whole" / "state", tmp_path / "killed" / "state"
    undisturbed = begin(whole).wait()
    assert undisturbed.returncode == 0, undisturbed.stderr
    said, places = "", []
    for saves in (2, 3, 3):
        run = begin(killed, saves).wait()
        assert run.returncode == -signal.SIGKILL, run.stderr
        said += run.stdout
        places.append((read(killed)["batches"]["epoch"], read(killed)["batches"]["batch"]))
    last = begin(killed).wait()
    assert last.returncode == 0, last.stderr
    said += last.stdout
    assert places == [(0, 1), (0, 3), (1, 1)]
    lines = undisturbed.stdout.splitlines()
    assert len(lines) == 2
    for number, line in enumerate(lines, 1):
        told = rf"epoch {number}: loss \d+\.\d+, validation \d+\.\d% right"
        assert re.fullmatch(told, line), line
    assert list(dict.fromkeys(said.splitlines())) == lines, "the end of an epoch can occur twice"
    one, other = read(whole), read(killed)
    assert (one["batches"]["epoch"], one["batches"]) == (2, other["batches"])
    for name, value in one["model"].items():
        assert torch.equal(value, other["model"][name]), name


@pytest.mark.parametrize("script", ["train_keras.py", "train_torch.py"])
@pytest.mark.thorough
def test_a_batch_larger_than_the_set_is_a_usage_error_of_the_examples(
    place: Path, script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", [script, "tfrecords/shapes", "--batch-size", "10000"])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(DOCS / script), run_name="__main__")
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"{script}: error: --batch-size 10000: there are 458 images to train on"
