"""docs/scale.md does what it says: its scripts and commands run, and give the build of one run."""

import os
import re
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Listener
from pathlib import Path
from unittest import mock

import pytest

from shardprep.api import sample_archive
from shardprep.source.limits import DEFAULT_LIMITS
from shardprep.writer.plan.shard_plan import MAX_CHUNK_ITEMS
from tests.documents import cluster
from tests.support import command
from tests.support.builders import sample, tree, write_folder
from tests.support.paths import shared_folder

TEXT = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
FEWER = {"1-16": "1-3", "completions: 16": "completions: 3", "))/16": "))/3", "2,5,7-9": "1,3"}
"""Text for sixteen parts → text for three."""
NUM_IMAGES = 120


def section(title: str, data: Path) -> str:
    """Return a section for three parts, with paths of the test."""
    text = TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0].replace("/data", str(data))
    for sixteen, three in FEWER.items():
        text = text.replace(sixteen, three)
    return text.replace("PARTS=16", "PARTS=3")


def files(text: str) -> dict[str, str]:
    return dict(re.findall(r"^`([\w.]+)`:\n\n```\w+\n(.*?)```", text, re.DOTALL | re.MULTILINE))


def commands(text: str) -> str:
    """Return the commands of a text as one script, because later ones use variables."""
    return "\n".join(re.findall(r"^\$ (.*)$", text, re.MULTILINE))


@pytest.fixture(scope="module", name="few")
def _few(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    def make(folder: Path) -> None:
        with mock.patch.object(sample_archive, "NUM_IMAGES", NUM_IMAGES):
            sample_archive.write_sample(folder)

    return tree(shared_folder(tmp_path_factory, "few", make))


@pytest.fixture(scope="module", name="whole")
def _whole(tmp_path_factory: pytest.TempPathFactory, few: dict[str, bytes]) -> dict[str, bytes]:
    def make(folder: Path) -> None:
        done = command.run("build", "shapes.zip", "--shards", 20, cwd=write_folder(folder, few))
        assert done.returncode == 0, done.stderr

    return tree(shared_folder(tmp_path_factory, "whole-of-few", make) / "tfrecords")


@pytest.fixture(name="data")
def _data(tmp_path: Path, few: dict[str, bytes]) -> Path:
    return write_folder(tmp_path / "data", few)


def run(script: str, data: Path, shown: Mapping[str, str] | None = None) -> str:
    """Run a script with the stand-ins; this process runs its commands of shardprep."""
    here, programs = data.parent / "home", data.parent / "bin"
    here.mkdir(exist_ok=True)
    for name, text in (shown or {}).items():
        (here / name).write_text(text)
    if not programs.exists():
        cluster.install(programs)
    with Listener(family="AF_UNIX") as listener, ThreadPoolExecutor(1) as pool:
        address = str(listener.address)
        path = f"{programs}:{os.environ['PATH']}"
        script_done = pool.submit(
            subprocess.run,
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=here,
            env={**os.environ, "PATH": path, "COLUMNS": "80", cluster.ADDRESS: address},
            capture_output=True,
            text=True,
            check=False,
        )
        script_done.add_done_callback(lambda _: cluster.order(address, None))
        while True:
            with listener.accept() as connection:
                if (order := connection.recv()) is None:
                    break
                arguments, cwd, variables = order
                done = command.run(*arguments, cwd=cwd, environment=variables)
                connection.send((done.stdout, done.stderr, done.returncode))
    said = script_done.result()
    assert said.returncode == 0, said.stderr
    return said.stderr + said.stdout


@pytest.mark.thorough
def test_the_first_commands_give_the_same_bytes_as_one_build(
    data: Path, whole: dict[str, bytes]
) -> None:
    run(commands(TEXT.split("\n## ")[0].replace("/data", str(data))), data)
    assert tree(data / "tfrecords") == whole


@pytest.mark.thorough
def test_the_slurm_array_gives_the_same_bytes_as_one_build(
    data: Path, whole: dict[str, bytes]
) -> None:
    text = section("Slurm", data)
    shown = files(text)
    array, finalize, again = commands(text).splitlines()
    said = run(f"{array}\n{again}\n{finalize}", data, shown)
    assert re.findall(r"^part (./.) is done", said, re.MULTILINE) == [
        "1/3", "2/3", "3/3", "1/3", "3/3"
    ]  # fmt: skip
    assert tree(data / "tfrecords") == whole


@pytest.mark.thorough
def test_the_indexed_job_gives_the_same_bytes_as_one_build(
    data: Path, whole: dict[str, bytes]
) -> None:
    text = section("Kubernetes", data)
    said = run(commands(text), data, files(text))
    assert re.findall(r"^part (./.) is done", said, re.MULTILINE) == ["1/3", "2/3", "3/3"]
    assert tree(data / "tfrecords") == whole


@pytest.mark.thorough
def test_the_ssh_loop_gives_the_same_bytes_as_one_build(
    data: Path, whole: dict[str, bytes]
) -> None:
    text = section("Machines without a scheduler", data)
    run(re.findall(r"```bash\n(.*?)```", text, re.DOTALL)[0], data)
    assert tree(data / "tfrecords") == whole


@pytest.mark.thorough
def test_the_dry_run_shows_a_part(data: Path) -> None:
    sample(data)
    assert "--dry-run --part 3/16" in " ".join(TEXT.split())
    said = run(f"cd {data}; shardprep build --shards 20 --dry-run --part 3/16", data)
    assert "part 3/16: 2 of 29 shards" in said
    assert not (data / "tfrecords").exists()


@pytest.mark.thorough
def test_the_page_shows_the_error_of_finalize_for_missing_shards(data: Path) -> None:
    shown = re.findall(r"`(\d+ of \d+ shards are .*? again)`", " ".join(TEXT.split()))
    part = "shardprep build --shards 20 --part"
    run(f"cd {data}; {part} 1/1; {part} 16/16", data)
    for number in (1, 4, 17):
        next(data.glob(f"tfrecords/*/*/shapes-train.tfrecord-{number:05d}-of-00020")).unlink()
    said = run(f"shardprep finalize {data}/tfrecords || true", data)
    assert len(shown) == 1
    assert re.search(re.escape(shown[0]).replace("…", ".*"), said)


def test_every_command_of_the_page_is_run_by_a_test() -> None:
    sections = [part.split("\n")[0] for part in TEXT.split("\n## ")[1:] if "\n```" in part]
    assert sections == ["Slurm", "Kubernetes", "Machines without a scheduler"]


def test_the_figures_of_large_plans_fit_each_other() -> None:
    """The last row is the row before it, scaled by the number of items."""
    pattern = r"^\| ([\d,]+)[^|]*\| ([\d.]+) GB \| ([\d,]+) bytes \| ([\d,]+) s \| ([\d.]+) µs \|$"
    rows = re.findall(pattern, TEXT, re.MULTILINE)
    table = [[float(cell.replace(",", "")) for cell in row] for row in rows]
    assert [row[0] for row in table] == [1e6, 1e7, 1e8]
    for num_items, gigabytes, item_bytes, seconds, microseconds in table:
        assert gigabytes * 1e9 / num_items == pytest.approx(item_bytes, rel=0.01)
        assert seconds / num_items * 1e6 == pytest.approx(microseconds, rel=0.02)
    assert table[1][2:5:2] == table[2][2:5:2]


def test_the_limits_of_large_plans_equal_those_of_the_program() -> None:
    assert DEFAULT_LIMITS.max_members == 10_000_000
    assert MAX_CHUNK_ITEMS == 256
