"""A build on a Ray cluster gives the bytes of one machine, also if processes or nodes die."""

from __future__ import annotations

import json
import os
import platform
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardprep.api.arguments import engine_of
from shardprep.catalog.items import Item
from shardprep.errors import BuildError, RecipeError
from shardprep.processes.worker_process import WorkerLimits, limited, start_clock
from shardprep.source.byte_range import PlainExtent
from shardprep.storage.folder import LocalFolder
from shardprep.writer.engine.ray_cluster import (
    _LAST_WORDS,
    Terms,
    connected,
    difference,
    terms,
    unfit,
)
from shardprep.writer.plan.shard_plan import plan_shards
from tests.support.annotated import outlined
from tests.support.builders import Deadly, animals, build, in_workers, tree, write, zip_bytes
from tests.support.processes import wait_until, written
from tests.writer.ray_cluster import ROOT, RayCluster, can_be_alone, ray_cluster
from tests.writer.ray_driver import DEADLY, KEYS

MOST_S = 5.0
NUM_IMAGES, NUM_SHARDS = 240, 12
LONG: dict[str, Any] = {"shards": NUM_SHARDS, "size": "128x128", "format": "png"}
"""Takes long enough to be disturbed."""
OPTIONS = [str(word) for key, value in LONG.items() for word in (f"--{key}", value)]


@pytest.fixture(scope="module", name="cluster")
def _cluster() -> Iterator[RayCluster]:
    pytest.importorskip("ray")
    if not can_be_alone():
        pytest.skip("no network of its own is to be had here, and Ray listens on all interfaces")
    with ray_cluster() as cluster:
        yield cluster


@dataclass
class Shardprep:
    """The command line, in a folder, where the cluster can be reached."""

    cluster: RayCluster
    folder: Path

    def start(self, *arguments: object, **environment: str) -> subprocess.Popen[str]:
        command = self.cluster.inside(sys.executable, "-m", "shardprep", *arguments)
        return subprocess.Popen(
            command, cwd=self.folder, env={**self.cluster.environment, **environment}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def build(self, *arguments: object, **environment: str) -> subprocess.Popen[str]:
        where = ("--engine", "ray", "--ray-address", self.cluster.address)
        return self.start("build", "pets.zip", *where, *arguments, **environment)


@pytest.fixture(name="shardprep")
def _shardprep(cluster: RayCluster, tmp_path: Path) -> Shardprep:
    write(tmp_path / "pets.zip", zip_bytes(animals(NUM_IMAGES)))
    return Shardprep(cluster, tmp_path)


def whole(folder: Path) -> dict[str, bytes]:
    return tree(build(folder / "pets.zip", folder / "whole", **LONG).path)


def finished(folder: Path) -> dict[str, int]:
    """Return the shards that count as done in an unfinished build, and when they were written."""
    work = folder / "out/pets/1.0.0.incomplete"
    parts = [path.name.removesuffix(".parquet") for path in written(work, ".parts/pets-*")]
    return {name: (work / name).stat().st_mtime_ns for name in parts}


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    """Wait for the end; return the last line on the error output, for an error, else all output."""
    said, errors = process.communicate(timeout=120)
    assert process.returncode == code, said + errors
    assert "Traceback" not in errors
    assert "raylet" not in said + errors
    if code:
        assert len(errors.splitlines()) == 1 + ("images to" in errors)
    return errors.splitlines()[-1] if code else said


@pytest.mark.thorough
def test_shards_and_manifest_equal_those_of_one_machine(
    cluster: RayCluster, tmp_path: Path
) -> None:
    """With labels, boxes and masks, and with an image that ends every process that decodes it."""
    source = write(tmp_path / "pets.zip", zip_bytes(outlined(animals(40))))
    command = cluster.inside(
        sys.executable, "-m", "tests.writer.ray_driver", cluster.address, tmp_path
    )
    done = subprocess.run(
        command, cwd=tmp_path, env=cluster.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["as ever"] == found["a deadly image"] == found["a worker that dies"] == ""
    assert tree(tmp_path / "ray") == tree(build(source, tmp_path / "local", **KEYS).path.parents[1])

    def with_a_deadly_image(encoder: Any, *rest: Any) -> Any:
        return in_workers(Deadly(encoder, DEADLY), *rest)

    local = build(source, tmp_path / "deadly", engine=with_a_deadly_image, **KEYS)
    assert local.manifest.totals.rejected == {"crashed": 1}
    assert tree(tmp_path / "ray-deadly") == tree(tmp_path / "deadly")

    for what in ("libjpeg", "shardprep"):
        said = found[f"another {what}"]
        assert said.startswith(f"node 127.0.0.1: has {what}")
        assert "where the build was started 9.9.9" in said


@pytest.mark.thorough
def test_finished_shards_outlive_the_death_of_the_build_and_then_of_a_worker_and_a_node(
    shardprep: Shardprep,
) -> None:
    here = shardprep.folder
    with shardprep.build("--out", "out", *OPTIONS) as process:
        wait_until(lambda: len(finished(here)) >= 3)
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: not shardprep.cluster.writers())
    before = finished(here)
    assert 3 <= len(before) < NUM_SHARDS

    process = shardprep.build("--out", "out", "--json", *OPTIONS)
    wait_until(shardprep.cluster.writers)
    os.kill(shardprep.cluster.writers()[0], signal.SIGKILL)
    wait_until(lambda: len(finished(here)) > len(before))
    shardprep.cluster.kill_a_node()
    report = json.loads(ended(process))
    dataset = here / "out/pets/1.0.0"
    after = {name: (dataset / name).stat().st_mtime_ns for name in before}
    assert after == before
    share = NUM_IMAGES // NUM_SHARDS
    assert report["num_new_items"] == NUM_IMAGES - share * len(before)
    assert tree(dataset) == whole(here)


@pytest.mark.thorough
def test_a_missing_token_is_one_line(shardprep: Shardprep) -> None:
    process = shardprep.build(RAY_AUTH_MODE="disabled")
    assert "the cluster wants a token" in ended(process, 1)
    assert not (shardprep.folder / "tfrecords").exists()


@pytest.mark.thorough
def test_a_node_that_cannot_read_the_source_is_named(shardprep: Shardprep) -> None:
    """The build alone sees a disk that holds the source."""
    inside = shardprep.cluster.inside
    mount = "mkdir mine && mount -t tmpfs none mine && cp pets.zip mine && exec $0 -m shardprep $*"
    arguments = ("build", "mine/pets.zip", "--engine", "ray")
    process = subprocess.Popen(
        inside("unshare", "--mount", "sh", "-ec", mount, sys.executable, *arguments),
        cwd=shardprep.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**shardprep.cluster.environment, "RAY_ADDRESS": shardprep.cluster.address},
    )  # fmt: skip
    said = ended(process, 1)
    assert said.startswith("node 127.0.0.1: does not read mine/pets.zip as where the build was")
    assert "no such file" in said.lower()
    assert not (shardprep.folder / "tfrecords").exists()


def test_a_cluster_that_does_not_answer_is_refused_within_seconds() -> None:
    pytest.importorskip("ray")  # imported here: that has its own seconds
    start = time.monotonic()
    with pytest.raises(BuildError) as error, connected("127.0.0.1:1"):
        pass
    assert time.monotonic() - start < MOST_S
    assert str(error.value).startswith("127.0.0.1:1: no Ray cluster answers (connection refused); ")


def test_other_versions_of_ray_and_python_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    from ray._private.utils import check_version_info

    def init(**_: object) -> None:
        other = {"ray_version": "2.52.0", "python_version": "3.12.1"}
        check_version_info(other, "10.0.0.5", raise_on_mismatch=True)

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(BuildError) as error, connected("auto"):
        pass
    here = f"Ray {ray.__version__} and Python {platform.python_version()}"
    assert f"the cluster has Ray 2.52.0 and Python 3.12.1, this machine {here}" in str(error.value)


def test_a_missing_ray_is_an_error_that_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BuildError, match=r"pip install 'shardprep\[ray\]'"), connected("auto"):
        pass


def test_the_death_of_the_command_s_own_node_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    from ray.exceptions import LocalRayletDiedError

    from shardprep.writer.engine import ray_engine

    def get(_: object) -> None:
        raise LocalRayletDiedError

    monkeypatch.setattr(ray, "get", get)
    (shard,) = plan_shards("pets", [Item("0", PlainExtent("pets", 0, 8), "train")], 1, 0, 0)
    with pytest.raises(BuildError) as error:
        ray_engine._result(None, shard)
    assert str(error.value) == (
        "the Ray node of this machine: has lost the cluster: its raylet was ended; finished shards "
        "are kept: ray start it again, and run the same command again"
    )


ENDS = {
    "at once, as Ray's core does": ("os._exit(1)", 1, True),
    "by SIGKILL": ("os.kill(os.getpid(), 9)", -9, True),
    "well": ("pass", 0, False),
    "by Ctrl-C": ("os.killpg(0, 2)", 130, False),
    "by an error": ("sys.exit(3)", 3, False),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_command_that_is_ended_at_once_leaves_one_line(end: str) -> None:
    code, exit_code, speaks = ENDS[end]
    program = (
        "import os, signal, sys\n"
        "from shardprep.writer.engine.ray_cluster import last_words\n"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(130))\n"
        f"with last_words():\n    {code}"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False,
        start_new_session=True,
    )  # fmt: skip
    assert done.returncode == exit_code, done.stderr
    assert done.stderr == (f"{_LAST_WORDS}\n" if speaks else "")


def test_the_document_says_what_is_said_and_counted() -> None:
    pytest.importorskip("ray")
    from shardprep.writer.engine import ray_engine

    text = (ROOT / "docs" / "ray.md").read_text()
    problem = "has libjpeg_turbo 3.1.0, where the build was started 3.2.0"
    assert str(unfit("10.0.0.7", problem)) in text
    assert ray_engine._MOST_DEATHS == 4
    assert "four workers over one shard" in text
    megabytes = round(ray_engine._BASE_BYTES / 1e6)
    assert f"{megabytes} MB and {ray_engine._BYTES_A_BYTE} bytes for each" in text


WRONG = {
    "an unknown engine": (("spark", None), "", "'spark' is not one of local, ray"),
    "an address for no cluster": (("local", "auto"), "", "needs --engine ray"),
    "no address": (("ray", None), "", "no cluster is named"),
    "an address without a port": (("ray", "10.0.0.5"), "", "--ray-address: '10.0.0.5' is not HOST"),
    "the job server's": (("ray", "http://10.0.0.5:8265"), "", "ray job submit"),
    "a client's, in the environment": (("ray", None), "ray://head:10001", "RAY_ADDRESS: 'ray://h"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_missing_or_wrong_cluster_address_is_an_error(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (engine, address), environment, said = WRONG[case]
    monkeypatch.setenv("RAY_ADDRESS", environment)
    with pytest.raises(RecipeError) as error:
        engine_of(engine, address, None)
    assert said in str(error.value)


def test_a_task_that_is_ended_stays_where_its_commits_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that is committing a shard would make its folder wherever Ray was started."""
    pytest.importorskip("ray")
    from shardprep.writer.engine.ray_engine import _in

    monkeypatch.chdir(tmp_path)
    (tmp_path / "build").mkdir()
    with _in("build"):
        assert Path.cwd() == tmp_path / "build"
    assert Path.cwd() == tmp_path
    with _in("no such folder"):
        assert Path.cwd() == tmp_path
    with pytest.raises(SystemExit), _in("build"):
        sys.exit(1)
    assert Path.cwd() == tmp_path / "build"


@pytest.fixture(name="agreed")
def _agreed(tmp_path: Path) -> Iterator[Terms]:
    source = write(tmp_path / "pets.tar", b"a source")
    item = Item("0", PlainExtent(str(source), 0, 8), "train")
    shards = plan_shards("pets", [item], 1, 0, 0)
    (tmp_path / "out").mkdir()
    with terms(shards, LocalFolder(tmp_path / "out")) as agreed:
        yield agreed
    assert list((tmp_path / "out").iterdir()) == []


def test_a_node_differs_by_versions_source_or_output_folder(agreed: Terms, tmp_path: Path) -> None:
    assert difference(agreed) == difference(replace(agreed, versions={})) == ""
    for name in ("Python", "pillow", "libjpeg_turbo", "shardprep"):
        other = replace(agreed, versions={**agreed.versions, name: "0.0.1"})
        expected = f"has {name} {agreed.versions[name]}, where the build was started 0.0.1"
        assert difference(other) == expected
    other = replace(agreed, folder=LocalFolder(tmp_path / "elsewhere"))
    assert difference(other).startswith("does not see ")
    assert not (tmp_path / "elsewhere").exists()
    write(tmp_path / "pets.tar", b"an other")
    assert "pets.tar as where the build was started (other bytes)" in difference(agreed)


def test_limits_are_lifted_from_a_process_that_serves_others() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA), signal.getsignal(signal.SIGALRM)
    with limited(WorkerLimits(item_s=60, worker_bytes=1 << 28)):
        start_clock(60)
        with pytest.raises(MemoryError):
            bytearray(1 << 29)
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert (resource.getrlimit(resource.RLIMIT_DATA), signal.getsignal(signal.SIGALRM)) == before
    assert np.empty(1 << 29, np.uint8).size == 1 << 29  # memory that is not touched costs nothing
