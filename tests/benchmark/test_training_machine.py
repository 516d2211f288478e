"""benchmarks.training_machine: the command that measures a user's photos."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from benchmarks.training_machine.__main__ import main
from benchmarks.training_machine.figures import (
    Figure,
    Missing,
    Rate,
    Results,
    Settings,
    measure_all,
    measure_in_process,
    reading_figures,
    training_figures,
)
from benchmarks.training_machine.inputs import prepare, read_photos
from benchmarks.training_machine.tables import missing_figures, reading_table, training_table
from tests.support.builders import encoded, write, zip_bytes
from tests.support.paths import shared_folder
from tests.support.processes import Program
from tests.support.torchvision import need_module


def photo(shade: int, size: tuple[int, int] = (40, 30)) -> bytes:
    return encoded(Image.new("RGB", size, (shade, 90, 120)))


@pytest.fixture(name="nested", scope="module")
def _nested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A zip in a zip, as Kaggle packs competitions, with 12 photos and a table."""
    photos = {f"train/cat.{number}.jpg": photo(20 * number) for number in range(12)}
    members = {
        "train.zip": zip_bytes({**photos, "train/labels.csv": b"a,b\n"}),
        "sample.csv": b"id\n",
    }
    return write(tmp_path_factory.mktemp("nested") / "photos.zip", zip_bytes(members))


@pytest.fixture(name="prepared", scope="module")
def _prepared(tmp_path_factory: pytest.TempPathFactory, nested: Path) -> Path:
    """Return the datasets and files of the photos, made once: that takes longer than a figure."""
    return shared_folder(tmp_path_factory, "prepared", lambda folder: prepare(nested, folder, 12))


class _Forked:
    """A process of a figure, forked from one that has imported torchvision."""

    def __init__(self, command: list[Any], *, stderr: Any, env: dict[str, str], **_: Any) -> None:
        code = """
            import os
            from benchmarks.training_machine import child
            os.setsid()
            child.main()
        """
        self._program = Program(code, *command[-2:], framework="torchvision", **env)
        self.pid, self.returncode, self._errors = self._program.pid, -1, stderr

    def wait(self, timeout: float | None = None) -> None:
        if timeout is not None:
            done = self._program.wait(timeout)
            self.returncode = done.returncode
            self._errors.write(done.stderr.encode())


@pytest.fixture(name="forked_figures")
def _forked_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("torch", "torchvision")
    forked = SimpleNamespace(Popen=_Forked, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr("benchmarks.training_machine.figures.subprocess", forked)


def rows(text: str) -> dict[str, list[str]]:
    """Return the cells of each row after its name."""
    found = re.findall(r"^\| (.*) \|$", text, re.MULTILINE)
    return {name: cells for name, *cells in (row.split(" | ") for row in found)}


@pytest.mark.thorough
@pytest.mark.usefixtures("forked_figures")
def test_the_command_prints_a_rate_for_each_way_to_read(
    nested: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(
        sys, "argv",
        ["", str(nested), "--images", "24", "--cores", "1", "--batch-size", "8",
         "--seconds", "0.01", "--minutes", "4"],
    )  # fmt: skip
    main()
    done = capsys.readouterr()
    table = rows(done.out)
    assert table.pop("images/s, by cores") == ["1"]
    assert len(table) == 5
    assert all(re.fullmatch(r"[1-9][\d,]*", rate) for (rate,) in table.values()), done.err
    assert "Reading 24 photos, batches of 8\n" in done.out
    assert "not measured: torch finds no GPU\n" in done.out
    assert "failed" not in done.out
    assert "skipped" not in done.out


@pytest.mark.thorough
@pytest.mark.usefixtures("forked_figures")
@pytest.mark.parametrize("way", ["resident", "files", "jpeg", "raw", "crop"])
def test_a_model_trains_on_batches_and_waiting_is_a_share(way: str, prepared: Path) -> None:
    small = "shufflenet_v2_x0_5"
    found = measure_in_process(Settings(prepared, 2, 0.01, "cpu"), Figure(way, 1, small))
    assert isinstance(found, Rate), found
    assert found.images_s > 0
    assert 0 < found.waiting < 1


def test_a_figure_that_fails_has_the_last_line_of_its_error(tmp_path: Path) -> None:
    found = measure_in_process(Settings(tmp_path, 2, 0.1), Figure("jpeg", 1))
    assert isinstance(found, Missing)
    assert "StopIteration" in found.reason  # the folder has no dataset


def test_no_figure_is_started_when_the_time_is_over() -> None:
    now = 0.0

    def measure(figure: Figure) -> Rate:
        nonlocal now
        now += 10
        return Rate(figure.cores)

    figures = [Figure("jpeg", cores) for cores in (1, 2, 3, 4)]
    found = measure_all(figures, measure, 15, lambda: now)
    assert list(found.values()) == [Rate(1), Rate(2), Missing(""), Missing("")]
    assert missing_figures(found).startswith("skipped: 2 figures,")


def test_tables_have_a_row_for_each_way_and_a_column_for_each_number_of_cores() -> None:
    found = {figure: Rate(1000.0 * figure.cores) for figure in reading_figures([1, 2, 16])}
    table = rows(reading_table([1, 2, 16], {**found, Figure("raw", 2): Missing("no memory")}))
    assert table.pop("images/s, by cores") == ["1", "2", "16"]
    assert table.pop("raw images of 224x224") == ["1,000", "failed", "16,000"]
    assert list(table.values()) == [["1,000", "2,000", "16,000"]] * 4


def test_the_table_of_training_has_the_share_of_waiting() -> None:
    found: dict[Figure, Rate | Missing] = {
        figure: Rate(4000, 0.125) for figure in training_figures(16)
    }
    found[Figure("files", 2, "resnet18")] = Missing("")
    lines = training_table([2, 16], found).splitlines()
    measured = "4,000 | 12.5% | 4,000 | 12.5%"
    assert [line for line in lines if "GPU already" in line] == [
        f"| a batch that is on the GPU already | 16 | {measured} |"
    ]
    assert sum(line.endswith(f"| 16 | {measured} |") for line in lines) == 5
    assert sum(line.endswith(f"| 2 | {measured} |") for line in lines) == 3
    assert sum(line.endswith("| 2 | 4,000 | 12.5% | skipped | – |") for line in lines) == 1


def test_reasons_of_failures_are_told() -> None:
    found: Results = {Figure("jpeg", 2): Missing("no memory"), Figure("raw", 2): Rate(1)}
    assert missing_figures(found) == "failed: JPEG of 224x224, 2 cores: no memory"


@pytest.mark.parametrize("counts", [[1], [1, 2], [1, 2, 4, 8, 16]])
def test_each_figure_is_measured_once_and_all_cores_first(counts: list[int]) -> None:
    for figures in (reading_figures(counts), training_figures(max(counts))):
        assert len(figures) == len(set(figures))
        assert figures[0].cores == max(counts)
    assert {figure.cores for figure in reading_figures(counts)} == {*counts}


def test_photos_are_spread_over_folders_and_nested_zips(nested: Path, tmp_path: Path) -> None:
    whole = [photo(20 * number) for number in range(12)]
    assert sorted(read_photos(nested, 100)) == sorted(whole)
    with zipfile.ZipFile(nested) as outer, zipfile.ZipFile(outer.open("train.zip")) as inner:
        inner.extractall(tmp_path / "folder")
    spread = read_photos(tmp_path / "folder", 3)
    assert len(spread) == 3
    assert {*spread} < {*whole}
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no photos"):
        read_photos(tmp_path / "empty", 3)
