"""Datasets written to object storage: whole or not at all, by one build, as on a disk."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from shardprep.cli.app import program
from shardprep.dataset.manifest import MANIFEST_FILE
from shardprep.errors import BuildError, DatasetError, ShardprepError, StorageError
from shardprep.recipe.recipe import make_recipe
from shardprep.writer.build import build_dataset, build_part
from shardprep.writer.engine.job import Workers
from shardprep.writer.engine.pool import write_shards
from shardprep.writer.finalize import finalize_dataset
from shardprep.writer.plan.shard_plan import Part
from shardprep.writer.workspace.find import find_workspace, workspace_of
from tests.support.builders import (
    Quiet,
    animals,
    build,
    by_chunks,
    in_process,
    tree,
    write,
    zip_bytes,
)
from tests.support.builders import build_part as one_part
from tests.support.object_store import Fault, nth, process_environment
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.object_store import Bucket, Proxy, Request

KEYS: dict[str, Any] = {"shards": 4, "size": "32x32", "format": "png"}
WHERE, INCOMPLETE = "pets/1.0.0", "pets/1.0.0.incomplete"
SHARDS = [f"pets-train.tfrecord-{i:05d}-of-00004" for i in range(4)]


@pytest.fixture(name="source", scope="module")
def _source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("source") / "pets.zip", zip_bytes(animals(30)))


@pytest.fixture(name="local", scope="module")
def _local(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return tree(build(source, tmp_path_factory.mktemp("local"), **KEYS).path)


def build_there(source: Path | str, bucket: Bucket, **keys: Any) -> Any:
    return build(source, bucket.url, **{**KEYS, **keys})  # type: ignore[arg-type]


def is_put(request: Request) -> bool:
    return request.method == "PUT"


def is_shard_put(request: Request) -> bool:
    return (
        request.method == "PUT" and ".tfrecord-" in request.path and "/index/" not in request.path
    )


def test_a_build_there_is_a_build_here_byte_for_byte(
    source: Path, bucket: Bucket, local: dict[str, bytes], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    result = build_there(source, bucket)
    assert bucket.tree() == {f"{WHERE}/{name}": data for name, data in local.items()}
    assert result.location == f"{bucket.url}/{WHERE}"
    assert [path.name for path in tmp_path.iterdir()] == ["cache"], "no path was made of an address"
    assert result.manifest.dumps().encode() == local["manifest.json"]


def test_unpacked_archives_of_a_killed_build_are_removed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not archives of a running build, of another address, or folders with a similar name."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine, other = (
        workspace_of(make_recipe({"source": "-", "out": "s3://sets", "name": name}, "test"))
        for name in ("pets", "cars")
    )
    with mine.scratch() as at_work, other.scratch() as elsewhere:
        write(at_work / "inner.zip", b"bytes")
        left = at_work.with_name(f"{at_work.name}left")
        shutil.copytree(at_work, left)
        file = write(at_work.with_name(f"{at_work.name}file"), b"bytes")
        shutil.copytree(elsewhere, elsewhere.with_name("photos"))
        before = {*tmp_path.iterdir()}
        with mine.scratch() as folder:
            assert {*tmp_path.iterdir()} == (before - {left}) | {folder}
        assert (at_work / "inner.zip").exists()
    assert {*tmp_path.iterdir()} == {tmp_path / "photos", file}


def test_workers_send_the_shards_that_they_own(
    source: Path, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one of them has died; nothing stays on the disk of what was to be sent."""
    (tmp_path / "spool").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "spool"))
    monkeypatch.setattr("tempfile.tempdir", None)
    keys = {**KEYS, "shards": 6}
    whole = tree(build(source, tmp_path / "local", **keys).path)
    recipe = make_recipe({"source": str(source), "out": bucket.url, **keys}, "test")
    mark = tmp_path / "mark"

    def engine(job: Any, *rest: Any) -> Any:
        return write_shards(replace(job, encoder=DiesOnce(job.encoder, mark)), *rest)

    build_dataset(recipe, Workers(engine, 2), Quiet())
    assert mark.exists()
    assert bucket.tree(WHERE) == whole
    left = [path for path in (tmp_path / "spool").iterdir() if path.name[:5] != "pymp-"]
    assert not left


@dataclass(frozen=True)
class DiesOnce:
    """Encodes as ever; the first chunk but one of a shard ends its process, once."""

    encoder: Any
    mark: Path

    def __call__(self, task: Any, before_item: Any) -> Any:
        if task.start and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.encoder(task, before_item)


def test_a_finished_one_is_left_alone(source: Path, bucket: Bucket, proxy: Proxy) -> None:
    build_there(source, bucket)
    proxy.reset()
    assert build_there(source, bucket).was_there
    assert proxy.count("PUT") == proxy.count("DELETE") == proxy.count("POST") == 0
    with pytest.raises(BuildError, match=r"built with other .*quality \(90, now 50\)"):
        build_there(source, bucket, format="jpeg", quality=50)


def test_one_can_be_replaced(source: Path, bucket: Bucket, local: dict[str, bytes]) -> None:
    build_there(source, bucket, size="16x16", shards=7)
    build_there(source, bucket, replace=True)
    assert bucket.tree(WHERE) == local
    assert not bucket.tree(INCOMPLETE)


def test_parts_make_one_of_any_order(source: Path, bucket: Bucket, local: dict[str, bytes]) -> None:
    keys = {"source": str(source), "out": bucket.url, **KEYS}
    recipe = make_recipe(keys, "test")
    runner: Any = in_process
    engine = by_chunks(runner)
    for number in (2, 1, 2):
        build_part(recipe, Part(number, 2), Workers(engine, 1), Quiet())
        if number == 2:
            assert not bucket.tree(WHERE).keys() & {"manifest.json"}
    for where in (bucket.url + f"/{WHERE}", bucket.url + f"/{WHERE}.incomplete/"):
        place = find_workspace(where)
        assert (
            finalize_dataset(place, num_threads=2).manifest.dumps().encode()
            == (local["manifest.json"])
        )
    assert bucket.tree() == {f"{WHERE}/{name}": data for name, data in local.items()}


def test_an_interrupted_one_goes_on_without_reading_a_shard(
    source: Path, bucket: Bucket, proxy: Proxy, local: dict[str, bytes]
) -> None:
    with pytest.raises(RuntimeError, match="power cut"):
        build_there(source, bucket, engine=stops_after(20))
    done = [name for name in bucket.tree(WHERE) if ".tfrecord-" in name]
    assert len(done) == 2
    proxy.reset()
    watcher = Quiet()
    build_there(source, bucket, watcher=watcher)
    assert bucket.tree(WHERE) == local
    assert watcher.num_done == sum(len(local[f"index/{name}.idx"].splitlines()) for name in done)
    assert not [r for r in proxy.requests if r.method == "GET" and r.path.endswith(tuple(done))]


def stops_after(num_items: int) -> Any:
    def run(encode: Any, tasks: Any, num_workers: int, limits: Any) -> Any:
        done = 0
        for chunk in in_process(encode, tasks, num_workers, limits):
            if done + len(chunk.outcomes) > num_items:
                message = "power cut"
                raise RuntimeError(message)
            done += len(chunk.outcomes)
            yield chunk

    return run


def test_an_error_before_the_first_shard_leaves_nothing(source: Path, bucket: Bucket) -> None:
    with pytest.raises(RuntimeError, match="power cut"):
        build_there(source, bucket, engine=stops_after(2))
    assert not bucket.tree()


def test_an_error_in_the_middle_of_a_shard_leaves_no_object_of_it(
    source: Path, bucket: Bucket
) -> None:
    with pytest.raises(RuntimeError, match="power cut"):
        build_there(source, bucket, shards=1, engine=stops_after(20))
    assert not bucket.tree(WHERE)
    assert not bucket.unfinished_uploads()


def test_failing_requests_are_tried_again(
    source: Path, bucket: Bucket, proxy: Proxy, local: dict[str, bytes]
) -> None:
    faults = (Fault(status=500), Fault(is_reset=True), Fault(status=503), Fault(is_deaf=True))

    def every_third(request: Request) -> Fault | None:
        return faults[request.number // 3 % 4] if request.number % 3 == 2 else None

    proxy.rule = every_third
    build_there(source, bucket)
    assert bucket.tree() == {f"{WHERE}/{name}": data for name, data in local.items()}


@pytest.mark.thorough
def test_whoever_looks_meanwhile_sees_whole_shards_only(
    source: Path, bucket: Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardprep.storage.objects._UPLOAD_BYTES", 5 << 20)
    keys: dict[str, Any] = {"shards": 2, "size": "448x448", "format": "raw"}
    proxy.rule = lambda r: Fault(bytes_per_s=40e6) if r.is_upload_part else None
    seen: set[tuple[str, str]] = set()
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            for name, data in bucket.tree(WHERE).items():
                seen.add((name, hashlib.sha256(data).hexdigest()))

    poller = threading.Thread(target=look)
    poller.start()
    result = build_there(source, bucket, **keys)
    is_over.set()
    poller.join()
    final = {name: shard.sha256 for name, shard in result.manifest.shards.items()}
    assert proxy.count("PUT", "partNumber=") >= 4
    assert {name for name, _ in seen} >= set(final)
    assert {(name, digest) for name, digest in seen if name in final} == set(final.items())


def started(bucket: Bucket, source: Path, endpoint: str, **keys: Any) -> subprocess.Popen[str]:
    options = [part for key, value in keys.items() for part in (f"--{key}", str(value))]
    return subprocess.Popen(
        [sys.executable, "-m", "shardprep", "build", str(source), "--out", bucket.url,
         "--workers", "1", *options],
        env=process_environment(endpoint, SHARDPREP_CACHE=str(source.parent / "cache")),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.mark.thorough
def test_a_driver_killed_in_the_middle_of_an_upload_leaves_no_object(
    source: Path, bucket: Bucket, proxy: Proxy, tmp_path: Path
) -> None:
    keys: dict[str, Any] = {"shards": 1, "size": "448x448", "format": "raw"}
    release = threading.Event()
    proxy.rule = nth(1, Fault(hold=release), lambda r: r.is_upload_part)
    with started(bucket, source, proxy.endpoint, **keys) as driver:
        wait_until(
            lambda: proxy.count("PUT", "partNumber=2") + proxy.count("PUT", "partNumber=1") > 1
        )
        driver.send_signal(signal.SIGKILL)
    release.set()
    assert not bucket.tree(WHERE)
    assert bucket.unfinished_uploads() == [f"{WHERE}/pets-train.tfrecord-00000-of-00001"]
    build_there(source, bucket, **keys)
    assert bucket.tree(WHERE) == tree(build(source, tmp_path / "here", **keys).path)
    assert not bucket.tree(INCOMPLETE)


def begin_together(proxy: Proxy, before_end: threading.Event | None = None) -> None:
    """Let two builds find nobody there, then begin: neither has ended before the other begins.

    If there is an event, no dataset is finished before it.
    """
    at_the_door, first_two = threading.Barrier(2), threading.Semaphore(2)

    def meet(request: Request) -> Fault | None:
        is_begin = request.method == "PUT" and request.path.endswith(".build.json")
        if is_begin and first_two.acquire(blocking=False):  # who came second may try again
            at_the_door.wait(10)
        if before_end and request.method == "PUT" and request.path.endswith(MANIFEST_FILE):
            before_end.wait(10)
        return None

    proxy.rule = meet


def at_once(*runs: Callable[[], None]) -> None:
    threads = [threading.Thread(target=run) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_one_that_is_slow_to_begin_removes_nothing_that_the_same_has_finished(
    source: Path, bucket: Bucket, proxy: Proxy, local: dict[str, bytes]
) -> None:
    """Both remove leftovers of a build with other shards; one ends while the other waits."""
    bucket.put(f"{WHERE}/pets-train.tfrecord-00007-of-00009", b"left")
    begin_together(proxy)
    together, is_first, is_over = proxy.rule, threading.Lock(), threading.Event()
    stands: list[bool] = []

    def wait(request: Request) -> Fault | None:
        if is_over.is_set():
            stands.append(bucket.has(f"{WHERE}/{MANIFEST_FILE}"))
        elif "?delete" in request.path and is_first.acquire(blocking=False):
            assert is_over.wait(20)
        return together(request)

    proxy.rule = wait

    def run() -> None:
        build_there(source, bucket)
        is_over.set()

    at_once(run, run)
    assert stands
    assert all(stands)
    assert bucket.tree() == {f"{WHERE}/{name}": data for name, data in local.items()}


def test_of_two_that_differ_one_is_refused(
    source: Path, bucket: Bucket, proxy: Proxy, local: dict[str, bytes]
) -> None:
    is_refused = threading.Event()
    begin_together(proxy, is_refused)
    found: dict[str, Any] = {}

    def run(name: str, **keys: Any) -> None:
        try:
            found[name] = build_there(source, bucket, **keys)
        except ShardprepError as error:
            found[name] = error
            is_refused.set()

    at_once(lambda: run("png"), lambda: run("jpeg", format="jpeg"))
    refused = [name for name, result in found.items() if isinstance(result, BuildError)]
    assert len(refused) == 1
    assert "begun with other format" in str(found[refused[0]])
    if refused == ["jpeg"]:
        assert bucket.tree(WHERE) == local


def test_one_that_has_lost_its_place_commits_and_publishes_nothing_more(
    source: Path, bucket: Bucket, local: dict[str, bytes]
) -> None:
    """Somebody takes a build that is at work for dead, and overwrites it."""

    def overtaken(encode: Any, tasks: Any, num_workers: int, limits: Any) -> Any:
        done = 0
        for chunk in in_process(encode, tasks, num_workers, limits):
            if done < 20 <= done + len(chunk.outcomes):
                wait_until(lambda: f".parts/{SHARDS[1]}.parquet" in bucket.tree(INCOMPLETE))
                build_there(source, bucket, replace=True)
            done += len(chunk.outcomes)
            yield chunk

    with pytest.raises(BuildError, match="another build has taken the place"):
        build_there(source, bucket, format="jpeg", engine=overtaken)
    assert bucket.tree() == {f"{WHERE}/{name}": data for name, data in local.items()}


def test_one_that_loses_its_place_as_it_publishes_takes_its_manifest_back(
    source: Path, bucket: Bucket, proxy: Proxy
) -> None:
    def take_over(request: Request) -> Fault | None:
        if request.method == "PUT" and request.path.endswith("/manifest.json"):
            key = "pets/1.0.0.incomplete/.build.json"
            bucket.put(key, bucket.read(key).replace(b'"png"', b'"raw"'))
        return None

    proxy.rule = take_over
    with pytest.raises(BuildError, match="another build has taken the place"):
        build_there(source, bucket)
    assert "manifest.json" not in bucket.tree(WHERE)


@pytest.mark.thorough
def test_a_shard_that_is_changed_by_others_is_not_published(
    source: Path, bucket: Bucket, proxy: Proxy, local: dict[str, bytes]
) -> None:
    key = f"{WHERE}/{SHARDS[1]}"

    def change(request: Request) -> Fault | None:
        if request.method == "PUT" and request.path.endswith("items.parquet"):
            bucket.put(key, bytes(len(bucket.read(key))))
        return None

    proxy.rule = change
    with pytest.raises(BuildError, match=f"1 of 4 shards are not there, or not whole: {SHARDS[1]}"):
        build_there(source, bucket)
    assert "manifest.json" not in bucket.tree(WHERE)
    proxy.reset()
    build_there(source, bucket)
    assert bucket.tree(WHERE) == local


def test_what_the_same_bytes_are_called_by_another_store_does_not_matter(
    source: Path, bucket: Bucket, local: dict[str, bytes]
) -> None:
    """Multipart or not, the ETag differs and the bytes do not: they are read then."""
    with pytest.raises(RuntimeError):
        build_there(source, bucket, engine=stops_after(20))
    key = f"{WHERE}/{SHARDS[0]}"
    upload = bucket.client.create_multipart_upload(Bucket=bucket.name, Key=key)
    names = {"Bucket": bucket.name, "Key": key, "UploadId": upload["UploadId"]}
    part = bucket.client.upload_part(**names, PartNumber=1, Body=bucket.read(key))
    bucket.client.complete_multipart_upload(
        **names, MultipartUpload={"Parts": [{"ETag": part["ETag"], "PartNumber": 1}]}
    )
    watcher = Quiet()
    build_there(source, bucket, watcher=watcher)
    assert watcher.num_done == 15
    assert bucket.tree(WHERE) == local


def test_what_a_dead_build_has_left_goes(
    source: Path, bucket: Bucket, local: dict[str, bytes]
) -> None:
    bucket.put(f"{WHERE}/pets-train.tfrecord-00000-of-00009", b"old")
    bucket.put("pets/1.0.0.incomplete/.parts/old.parquet", b"old")
    other = bucket.put("pets/1.0.01/other", b"not ours")
    build_there(source, bucket)
    assert bucket.tree(WHERE) == local
    assert not bucket.tree(INCOMPLETE)
    assert bucket.read(other.removeprefix(f"{bucket.url}/")) == b"not ours"


def test_credentials_that_end_midway_are_what_the_user_is_told_of(
    source: Path, bucket: Bucket, proxy: Proxy
) -> None:
    denied = Fault(status=403, body="<Error><Code>ExpiredToken</Code></Error>")
    is_over = threading.Event()

    def deny(request: Request) -> Fault | None:
        if is_shard_put(request):
            is_over.set()
        return denied if is_over.is_set() else None

    proxy.rule = deny
    with pytest.raises(StorageError, match=r"tfrecord-0000.-of-00004: cannot be written .*Expired"):
        build_there(source, bucket)


def test_a_full_temporary_folder_is_named(
    source: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", partial(open, "/dev/full", "wb"))
    with pytest.raises(StorageError, match=r"tmp.*No space left on device.*TMPDIR"):
        build_there(source, bucket)
    assert not bucket.tree()


@pytest.mark.thorough
def test_a_shard_costs_the_requests_that_the_document_says(
    source: Path, bucket: Bucket, proxy: Proxy
) -> None:
    counts = []
    for name, shards in (("one", 1), ("six", 6)):
        build(source, f"{bucket.url}/{name}", **{**KEYS, "shards": shards})  # type: ignore[arg-type]
        counts.append(len(proxy.requests))
        proxy.reset()
    assert (counts[1] - counts[0]) / 5 == 10
    assert counts[0] - 10 == 47


# --- finalize ------------------------------------------------------------------------------------


def parts_there(source: Path, bucket: Bucket, **keys: Any) -> None:
    for part in ("1/2", "2/2"):
        one_part(source, bucket.url + "/tp", part, **{**KEYS, **keys})  # type: ignore[arg-type]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "where", ["tp", "tp/", "tp/pets", "tp/pets/1.0.0", "tp/pets/1.0.0.incomplete", "2.0.0"]
)
def test_finalize_finds_parts_at_any_address_above_them(
    source: Path, bucket: Bucket, where: str, local: dict[str, bytes]
) -> None:
    out = f"{bucket.url}/{'2.0.0' if where == '2.0.0' else 'tp'}"
    for part in ("1/2", "2/2"):
        one_part(source, out, part, **KEYS)  # type: ignore[arg-type]
    found = finalize_dataset(find_workspace(f"{bucket.url}/{where}"), num_threads=2)
    assert found.location == f"{out}/pets/1.0.0"
    below = f"{out}/pets/1.0.0".removeprefix(f"{bucket.url}/")
    assert bucket.tree() == {f"{below}/{name}": data for name, data in local.items()}
    assert finalize_dataset(find_workspace(f"{bucket.url}/{where}"), num_threads=2).was_there


def test_finalize_at_an_address_means_the_one_that_is_unfinished(
    source: Path, bucket: Bucket
) -> None:
    build(source, f"{bucket.url}/tp", version="0.9.0", **KEYS)  # type: ignore[arg-type]
    parts_there(source, bucket)
    assert find_workspace(f"{bucket.url}/tp").location == f"{bucket.url}/tp/pets/1.0.0"
    parts_there(source, bucket, name="cats")
    with pytest.raises(DatasetError, match=r"several unfinished builds: .*cats/1.0.0, .*pets/1.0"):
        find_workspace(f"{bucket.url}/tp")
    with pytest.raises(DatasetError, match="holds no dataset, finished or not; give"):
        find_workspace(f"{bucket.url}/nowhere")


@pytest.mark.thorough
@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("is_remote", [True, False])
def test_finalize_without_an_argument_names_the_parts_of_others(
    is_there: bool, is_remote: bool, source: Path, bucket: Bucket, tmp_path: Path,  # noqa: FBT001 - cases
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    out = f"{bucket.url}/tp" if is_remote else "tp"
    recipe = f'source = "{source}"\nout = "{out}"\nshards = 4\nsize = "32x32"\nformat = "png"\n'
    write(tmp_path / "shardprep.toml", recipe.encode())
    if is_there:
        build(source, out, **KEYS)  # type: ignore[arg-type]
        result = CliRunner().invoke(program(), ["finalize"])
        assert result.exit_code == 0, result.output
    one_part(source, out, "1/2", version="2.0.0", **KEYS)  # type: ignore[arg-type]
    one_part(source, out, "1/2", name="cats", **KEYS)  # type: ignore[arg-type]
    result = CliRunner().invoke(program(), ["finalize"])
    assert result.exit_code == 1
    line = str(result.exception)
    for other in ("cats/1.0.0", "pets/2.0.0"):
        assert f"`shardprep finalize {out}/{other}`" in line
    asked = CliRunner().invoke(program(), ["finalize", f"{out}/pets/1.0.0"])
    assert asked.exit_code == (0 if is_there else 1)
