"""Whatever happens to a build, the next run ends with the bytes of an undisturbed one.

Nothing incomplete ever has its final name, and no process is left behind.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shardprep.errors import BuildError
from shardprep.writer.chunk import EncodedChunk
from shardprep.writer.chunk_encoder import ChunkEncoder
from tests.support.builders import (
    Deadly,
    Quiet,
    animals,
    build,
    in_process,
    in_workers,
    jpeg,
    tree,
    write,
    write_folder,
    zip_bytes,
)
from tests.support.command import run as run_command
from tests.support.processes import Program, is_gone, wait_until, workers, written
from tests.writer.faulty import (
    CHANGES,
    GATE_STEP,
    LEAST,
    MIN_WORKER_KILLS,
    PARENT_KILLS,
    QUICK_STEP,
    SOURCE_CHANGES,
    SOURCES,
)

KEYS: dict[str, Any] = {"shards": 4, "size": "32x32", "format": "png"}
LONG: dict[str, Any] = {"shards": 12, "size": "200x200", "format": "png"}
"""A shard of `Run` takes a worker a tenth of a second: faults strike in the middle of a build."""


@pytest.mark.parametrize("plan", LEAST)
def test_disk_and_kill_faults_leave_nothing_half_done(
    plan: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """`make soak` makes all of them."""
    step = QUICK_STEP if request.config.getoption("--quick") else GATE_STEP
    source = write(tmp_path / "pets.zip", zip_bytes(animals(8)))
    code = "import sys; from tests.writer.faulty import print_plan; print_plan(*sys.argv[1:])"
    done = Program(code, plan, source, tmp_path, step, framework="none").wait(300)
    assert done.returncode == 0, done.stderr
    if not int(done.stdout):
        pytest.skip("no disk of its own may be mounted here")
    assert int(done.stdout) >= max(1, LEAST[plan] // step)


@dataclass
class Run:
    """A `shardprep build` with two workers, in a process group of its own."""

    source: Path

    @property
    def command(self) -> list[str]:
        flags = [f"--{key}={value}" for key, value in LONG.items()]
        command = [sys.executable, "-m", "shardprep", "build", str(self.source), *flags]
        return [*command, "--workers", "2"]

    def start(self, out: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.command, "--out", str(out)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def here(self, out: Path) -> dict[str, bytes]:
        build(self.source, out, **LONG)
        return tree(out)


@pytest.fixture(name="run", scope="module")
def _run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    inner = zip_bytes({f"train/{n}": d for n, d in animals(96, folder="").items()})
    folder = tmp_path_factory.mktemp("source")
    return Run(write(folder / "pets.zip", zip_bytes({"train.zip": inner})))


@pytest.fixture(name="whole", scope="module")
def _whole(run: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return run.here(tmp_path_factory.mktemp("whole") / "out")


def shards(out: Path) -> list[Path]:
    return written(out, "pets/1.0.0.incomplete/pets-train*")


@pytest.mark.thorough
def test_killed_workers_cost_nothing(run: Run, whole: dict[str, bytes], tmp_path: Path) -> None:
    kills = num_shards = 0
    with run.start(tmp_path / "out") as process:
        while process.poll() is None:
            time.sleep(0.005)
            done = len(shards(tmp_path / "out"))
            if done > num_shards and kills < 5:
                num_shards = done
                for number in workers(process.pid)[:1]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(number, signal.SIGKILL)
                        kills += 1
        assert process.returncode == 0
    assert kills >= MIN_WORKER_KILLS
    assert tree(tmp_path / "out") == whole


def has_more_shards(out: Path, num_before: int) -> bool:
    return len(shards(out)) > num_before


@pytest.mark.thorough
def test_ctrl_c_and_a_killed_parent_leave_no_worker_and_the_next_run_goes_on(
    run: Run, whole: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = run.start(out)
    wait_until(lambda: shards(out))
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert said.splitlines()[-1].startswith("interrupted; run the same command again")
    assert "Traceback" not in said
    wait_until(partial(is_gone, process.pid), 10)

    draw = random.Random(20261121)
    for _ in range(PARENT_KILLS):
        num_shards = len(shards(out))
        with run.start(out) as process:
            wait_until(partial(has_more_shards, out, num_shards))
            time.sleep(draw.uniform(0, 0.1))
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            wait_until(partial(is_gone, process.pid), 5)
        assert not (out / "pets/1.0.0").exists()
    assert run.here(out) == whole


@pytest.mark.thorough
def test_workers_start_where_the_temporary_folder_has_a_long_name(tmp_path: Path) -> None:
    """As in batch systems: the name of a socket in it would be too long for the system."""
    source = write(tmp_path / "pets.zip", zip_bytes(animals(4)))
    temporary = tmp_path / ("job-" * 30)
    temporary.mkdir()
    code = """
    import sys, tempfile, shardprep
    tempfile.tempdir = None  # so that it is read from the environment
    shardprep.build(sys.argv[1], sys.argv[2])
    """
    done = Program(code, source, tmp_path, framework="none", TMPDIR=str(temporary)).wait()
    assert done.returncode == 0, done.stderr


def test_an_image_that_kills_its_worker_is_rejected_and_counted(tmp_path: Path) -> None:
    source = write(tmp_path / "pets.zip", zip_bytes(animals(40)))

    def engine(encoder: ChunkEncoder, *rest: Any) -> Iterator[EncodedChunk]:
        return in_workers(Deadly(encoder, "train/dog.7.jpg"), *rest)

    result = build(source, tmp_path / "out", engine=engine, **KEYS)
    totals = result.manifest.totals
    assert (totals.num_written, totals.rejected) == (39, {"crashed": 1})


def _file_of(source: Path) -> Path:
    return next(source.glob("train/dog.9.jpg")) if source.is_dir() else source


@pytest.mark.parametrize(("kind", "change"), SOURCE_CHANGES)
def test_a_source_that_changes_while_it_is_read_gives_no_dataset(
    kind: str, change: str, tmp_path: Path
) -> None:
    source = SOURCES[kind](tmp_path, animals(20))
    whole = tree(build(source, tmp_path / "whole", **KEYS).path)
    file = _file_of(source)
    data, status = file.read_bytes(), file.stat()

    def engine(*arguments: Any) -> Iterator[EncodedChunk]:
        chunks = in_process(*arguments)
        yield next(chunks)
        CHANGES[change](file)
        yield from chunks

    with pytest.raises(BuildError, match="was changed or removed while it was read"):
        build(source, tmp_path / "out", engine=engine, max_rejected="100%", **KEYS)
    assert not (tmp_path / "out").exists()
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert tree(build(source, tmp_path / "out", **KEYS).path) == whole


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["zip", "folder"])
def test_a_source_that_is_away_for_a_while_costs_no_image(kind: str, tmp_path: Path) -> None:
    """Its name and times are unchanged: nothing else shows that images are missing."""
    source = SOURCES[kind](tmp_path, animals(100))
    whole = tree(build(source, tmp_path / "whole", **KEYS).path)

    times = iter(range(2))

    def engine(*arguments: Any) -> Iterator[EncodedChunk]:
        chunks = in_process(*arguments)
        if next(times, None) is not None:
            source.rename(tmp_path / "away")
            yield next(chunks)
            (tmp_path / "away").rename(source)
        yield from chunks

    watcher = Quiet()
    result = build(source, tmp_path / "out", engine=engine, watcher=watcher, **KEYS)
    assert tree(result.path) == whole
    assert result.num_new_items == watcher.num_new == 100
    again = "1 shard is written again: images that could not be read are readable now"
    assert watcher.lines.count(again) == 2


def test_a_member_that_could_not_be_read_is_tried_again_by_the_next_run(tmp_path: Path) -> None:
    """A disk that was away for a while must not have cost the images on it."""
    source = write_folder(tmp_path / "pets", animals(20))
    whole = tree(build(source, tmp_path / "whole", **KEYS).path)
    away = tmp_path / "away"

    def engine(*arguments: Any) -> Iterator[EncodedChunk]:
        source.rename(away)
        chunks = in_process(*arguments)
        yield next(chunks)
        away.rename(source)
        for _ in range(8):
            yield next(chunks)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(source, tmp_path / "out", engine=engine, **KEYS)
    watcher = Quiet()
    assert tree(build(source, tmp_path / "out", watcher=watcher, **KEYS).path) == whole
    assert watcher.num_done == 0


def test_rejected_images_are_copied_out_with_their_reasons(tmp_path: Path) -> None:
    good = {f"a/{i}.jpg": jpeg(seed=i) for i in range(40)}
    bad = {"b/x y.jpg": b"nothing", "a/cut.jpg": jpeg()[:-200], "a/\x1b[2J.jpg": b"<html>"}
    write(tmp_path / "pets.zip", zip_bytes({"train.zip": zip_bytes({**good, **bad})}))
    command = ("build", "pets.zip", "--save-rejected", "bad")
    for limit, code in (("1%", 1), ("50%", 0), ("50%", 0)):
        done = run_command(*command, "--max-rejected", limit, cwd=tmp_path)
        assert done.returncode == code, done.stderr
        assert "3 of 3 rejected images copied to bad" in done.stderr
        saved = {p.read_bytes() for p in (tmp_path / "bad").glob("*/*")}
        assert saved == set(bad.values())
        text = (tmp_path / "bad" / "rejected.csv").read_text()
        assert text.splitlines()[0] == "key,kind,reason,file"
        assert "train.zip/a/cut.jpg," in text
    assert all(p.name.isascii() and p.name.isprintable() for p in (tmp_path / "bad").rglob("*"))
