"""Datasets written to object storage: whole or not at all, by one build, as on a disk."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shardprep.errors import BuildError, DatasetError, StorageError
from shardprep.recipe.recipe import make_recipe
from shardprep.writer.build import build_dataset
from shardprep.writer.engine.job import Workers
from shardprep.writer.engine.pool import write_shards
from shardprep.writer.finalize import finalize_dataset
from shardprep.writer.plan.fingerprint import make_fingerprint
from shardprep.writer.workspace.states import find_workspace, workspace_of
from tests.support.builders import (
    Quiet,
    StopAfter,
    StoppedError,
    animals,
    build,
    in_process,
    tree,
    write,
    zip_bytes,
)
from tests.support.builders import build_part as one_part
from tests.support.command import invoke
from tests.support.object_store import Bucket, Fault, Proxy, Request, nth, process_environment
from tests.support.processes import wait_until

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


def is_shard_put(request: Request) -> bool:
    return (
        request.method == "PUT" and ".tfrecord-" in request.path and "/index/" not in request.path
    )


def test_a_build_in_object_storage_has_the_bytes_of_a_local_build(
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
    """Encodes chunks, but the second chunk of a shard ends its process once."""

    encoder: Any
    mark: Path

    def __call__(self, task: Any, before_item: Any) -> Any:
        if task.start and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.encoder(task, before_item)


def test_a_finished_dataset_is_not_changed(source: Path, bucket: Bucket, proxy: Proxy) -> None:
    build_there(source, bucket)
    proxy.reset()
    assert build_there(source, bucket).was_there
    assert proxy.count("PUT") == proxy.count("DELETE") == proxy.count("POST") == 0
    with pytest.raises(BuildError, match=r"built with other .*quality \(90, now 50\)"):
        build_there(source, bucket, format="jpeg", quality=50)


def test_overwrite_replaces_a_dataset(
    source: Path, bucket: Bucket, local: dict[str, bytes]
) -> None:
    build_there(source, bucket, size="16x16", shards=7)
    build_there(source, bucket, replace=True)
    assert bucket.tree(WHERE) == local
    assert not bucket.tree(INCOMPLETE)


def test_a_build_that_is_interrupted_after_its_draft_was_moved_is_ended_by_the_next_one(
    source: Path, bucket: Bucket, local: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    build_there(source, bucket, size="16x16", shards=7)

    def cut(*_: object) -> None:
        raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr("shardprep.writer.workspace.remote.ObjectWorkspace._forget", cut)
        with pytest.raises(RuntimeError, match="power cut"):
            build_there(source, bucket, replace=True)
    assert bucket.tree(INCOMPLETE)
    build_there(source, bucket)
    assert bucket.tree(WHERE) == local
    assert not bucket.tree(INCOMPLETE)


def test_an_interrupted_build_is_resumed_without_reading_a_shard(
    source: Path, bucket: Bucket, proxy: Proxy, local: dict[str, bytes]
) -> None:
    with pytest.raises(StoppedError):
        build_there(source, bucket, watcher=StopAfter(20))
    done = [name for name in bucket.tree(WHERE) if ".tfrecord-" in name]
    assert len(done) == 2
    proxy.reset()
    watcher = Quiet()
    build_there(source, bucket, watcher=watcher)
    assert bucket.tree(WHERE) == local
    assert watcher.num_done == sum(len(local[f"index/{name}.idx"].splitlines()) for name in done)
    assert not [r for r in proxy.requests if r.method == "GET" and r.path.endswith(tuple(done))]


def test_an_error_in_a_shard_leaves_no_object_of_it(source: Path, bucket: Bucket) -> None:
    with pytest.raises(StoppedError):
        build_there(source, bucket, watcher=StopAfter(2))
    assert not bucket.tree()
    with pytest.raises(StoppedError):
        build_there(source, bucket, shards=1, watcher=StopAfter(20))
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


def test_an_unfinished_build_with_other_options_is_refused(source: Path, bucket: Bucket) -> None:
    keys = {"source": str(source), "out": bucket.url, **KEYS, "format": "jpeg"}
    other = make_fingerprint(make_recipe(keys, "test"))
    bucket.put(f"{INCOMPLETE}/.build.json", other.model_dump_json().encode())
    with pytest.raises(BuildError, match=r"begun with other format .*if that has ended"):
        build_there(source, bucket)
    assert [*bucket.tree()] == [f"{INCOMPLETE}/.build.json"]


def test_a_build_that_was_overwritten_commits_and_publishes_nothing_more(
    source: Path, bucket: Bucket, local: dict[str, bytes]
) -> None:
    def overtaken(encode: Any, tasks: Any, num_workers: int, limits: Any) -> Any:
        done = 0
        for chunk in in_process(encode, tasks, num_workers, limits):
            if done < 20 <= done + len(chunk.outcomes):
                wait_until(lambda: f".parts/{SHARDS[1]}.parquet" in bucket.tree(INCOMPLETE))
                build_there(source, bucket, replace=True)
            done += len(chunk.outcomes)
            yield chunk

    with pytest.raises(BuildError, match="another build has replaced this one"):
        build_there(source, bucket, format="jpeg", engine=overtaken)
    assert bucket.tree() == {f"{WHERE}/{name}": data for name, data in local.items()}


def test_a_build_that_is_overwritten_while_it_publishes_removes_its_manifest(
    source: Path, bucket: Bucket, proxy: Proxy
) -> None:
    def take_over(request: Request) -> Fault | None:
        if request.method == "PUT" and request.path.endswith("/manifest.json"):
            key = "pets/1.0.0.incomplete/.build.json"
            bucket.put(key, bucket.read(key).replace(b'"png"', b'"raw"'))
        return None

    proxy.rule = take_over
    with pytest.raises(BuildError, match="another build has replaced this one"):
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
    with pytest.raises(BuildError, match=f"1 of 4 shards are missing or incomplete: {SHARDS[1]}"):
        build_there(source, bucket)
    assert "manifest.json" not in bucket.tree(WHERE)
    proxy.reset()
    build_there(source, bucket)
    assert bucket.tree(WHERE) == local


def test_a_shard_with_another_etag_and_equal_bytes_is_not_written_again(
    source: Path, bucket: Bucket, local: dict[str, bytes]
) -> None:
    """Multipart or not, the ETag differs and the bytes do not: they are read then."""
    with pytest.raises(StoppedError):
        build_there(source, bucket, watcher=StopAfter(20))
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


def test_files_of_a_killed_build_are_removed(
    source: Path, bucket: Bucket, local: dict[str, bytes]
) -> None:
    bucket.put(f"{WHERE}/pets-train.tfrecord-00000-of-00009", b"old")
    bucket.put("pets/1.0.0.incomplete/.parts/old.parquet", b"old")
    other = bucket.put("pets/1.0.01/other", b"not ours")
    build_there(source, bucket)
    assert bucket.tree(WHERE) == local
    assert not bucket.tree(INCOMPLETE)
    assert bucket.read(other.removeprefix(f"{bucket.url}/")) == b"not ours"


def test_expired_credentials_are_the_reported_error(
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
    said = rf"{tempfile.gettempdir()}: .*No space left on device.*TMPDIR"
    with pytest.raises(StorageError, match=said):
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


@pytest.mark.parametrize("out", ["tp", "2.0.0"])
def test_finalize_finds_parts_at_any_address_above_them(
    source: Path, bucket: Bucket, out: str, local: dict[str, bytes]
) -> None:
    for part in ("2/2", "1/2", "2/2"):
        one_part(source, f"{bucket.url}/{out}", part, **KEYS)  # type: ignore[arg-type]
    assert not bucket.has(f"{out}/pets/1.0.0/manifest.json")
    wheres = [out, f"{out}/", f"{out}/pets", f"{out}/pets/1.0.0", f"{out}/pets/1.0.0.incomplete"]
    found = [find_workspace(f"{bucket.url}/{where}") for where in wheres]
    assert {one.location for one in found} == {f"{bucket.url}/{out}/pets/1.0.0"}
    finalize_dataset(found[0], num_threads=2)
    assert bucket.tree() == {f"{out}/pets/1.0.0/{name}": data for name, data in local.items()}
    for where in wheres:
        place = find_workspace(f"{bucket.url}/{where}")
        assert finalize_dataset(place, num_threads=2).was_there


def test_finalize_at_an_address_chooses_the_unfinished_build(source: Path, bucket: Bucket) -> None:
    build(source, f"{bucket.url}/tp", version="0.9.0", **KEYS)  # type: ignore[arg-type]
    parts_there(source, bucket)
    assert find_workspace(f"{bucket.url}/tp").location == f"{bucket.url}/tp/pets/1.0.0"
    parts_there(source, bucket, name="cats")
    with pytest.raises(DatasetError, match=r"several unfinished builds: .*cats/1.0.0, .*pets/1.0"):
        find_workspace(f"{bucket.url}/tp")
    with pytest.raises(DatasetError, match="holds no dataset, finished or not; give"):
        find_workspace(f"{bucket.url}/nowhere")


@pytest.mark.thorough
@pytest.mark.parametrize(("is_there", "is_remote"), [(True, True), (False, False)])
def test_finalize_without_an_argument_names_unfinished_parts_of_other_datasets(
    is_there: bool, is_remote: bool, source: Path, bucket: Bucket, tmp_path: Path,  # noqa: FBT001 - cases
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    out = f"{bucket.url}/tp" if is_remote else "tp"
    recipe = f'source = "{source}"\nout = "{out}"\nshards = 4\nsize = "32x32"\nformat = "png"\n'
    write(tmp_path / "shardprep.toml", recipe.encode())
    if is_there:
        build(source, out, **KEYS)  # type: ignore[arg-type]
        result = invoke("finalize")
        assert result.exit_code == 0, result.output
    one_part(source, out, "1/2", version="2.0.0", **KEYS)  # type: ignore[arg-type]
    one_part(source, out, "1/2", name="cats", **KEYS)  # type: ignore[arg-type]
    result = invoke("finalize")
    assert result.exit_code == 1
    line = str(result.exception)
    for other in ("cats/1.0.0", "pets/2.0.0"):
        assert f"`shardprep finalize {out}/{other}`" in line
    asked = invoke("finalize", f"{out}/pets/1.0.0")
    assert asked.exit_code == (0 if is_there else 1)
