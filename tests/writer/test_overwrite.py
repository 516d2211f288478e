"""A dataset in object storage stays whole until its replacement is complete."""

import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shardprep.dataset.fetch import fetch_dataset
from shardprep.dataset.locate import locate
from shardprep.dataset.remote_files import RemoteFiles
from shardprep.errors import BuildError, ShardprepError, StorageError
from shardprep.reader import Dataset, load
from shardprep.storage import objects
from shardprep.storage.url import ObjectUrl
from shardprep.verifier.dataset import verify_dataset
from shardprep.writer.finalize import finalize_dataset
from shardprep.writer.workspace.states import find_workspace
from tests.support.builders import (
    Quiet,
    Told,
    animals,
    build,
    in_process,
    tree,
    write,
    write_folder,
    zip_bytes,
)
from tests.support.command import invoke
from tests.support.object_store import Bucket, Fault, Proxy, nth, process_environment
from tests.support.processes import wait_until

WHERE, INCOMPLETE = "pets/1.0.0", "pets/1.0.0.incomplete"
OLD: dict[str, Any] = {"shards": 3, "size": "16x16", "format": "png"}
NEW: dict[str, Any] = {"shards": 2, "size": "16x16", "format": "raw"}


@pytest.fixture(name="source", scope="module")
def _source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    members = {**animals(9), "train/cat.90.jpg": b"junk"}
    return write(tmp_path_factory.mktemp("source") / "pets.zip", zip_bytes(members))


@pytest.fixture(name="old", scope="module")
def _old(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return tree(build(source, tmp_path_factory.mktemp("old"), max_rejected=1, **OLD).path)


@pytest.fixture(name="new", scope="module")
def _new(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return tree(build(source, tmp_path_factory.mktemp("new"), max_rejected=1, **NEW).path)


@pytest.fixture(name="there")
def _there(bucket: Bucket, old: dict[str, bytes]) -> Bucket:
    for name, data in old.items():
        bucket.put(f"{WHERE}/{name}", data)
    return bucket


def overwrite(source: Path, bucket: Bucket, **keys: Any) -> Any:
    keys = {**NEW, "max_rejected": 1, **keys}
    return build(source, bucket.url, replace=True, **keys)  # type: ignore[arg-type]


def find_there(bucket: Bucket) -> RemoteFiles:
    found = locate(f"{bucket.url}/{WHERE}")
    assert isinstance(found, RemoteFiles)
    return found


def seen(bucket: Bucket) -> dict[str, bytes]:
    """Return the files of the dataset as a reader sees them, after a check by verify."""
    found = find_there(bucket)
    assert not verify_dataset(found, decode=False, num_workers=1, watcher=Told()).problems
    own = {name: facts for name, facts in found.objects.items() if not name.startswith(".")}
    return {name: bucket.read(f"{WHERE}/{facts.name}") for name, facts in own.items()}


def is_whole(bucket: Bucket, old: Mapping[str, bytes]) -> bool:
    """Return whether the objects of a dataset are unchanged and a reader reads every record."""
    there = bucket.tree(WHERE)
    assert seen(bucket) == old
    num_records = sum(len(data.splitlines()) for name, data in old.items() if name[-4:] == ".idx")
    assert len([item for item in Dataset(f"{bucket.url}/{WHERE}", "train")]) == num_records  # noqa: C416 - read, not counted
    return {name: there.get(name) for name in old} == old


WRONG: dict[str, dict[str, Any]] = {
    "a missing source": {"file": "nothing.zip", "name": "pets"},
    "labels": {"labels": "csv:nothing.csv:id:y"},
    "classes": {"labels": "prefix", "classes": ["bird", "fish"]},
    "include": {"include": ["*.bmp"]},
    "root": {"root": "nowhere"},
    "schema": {"schema": "mask"},
    "too many rejections": {"max_rejected": 0},
}


@pytest.mark.parametrize("option", WRONG)
def test_a_failed_build_leaves_the_old_dataset(
    option: str, source: Path, there: Bucket, old: dict[str, bytes], tmp_path: Path
) -> None:
    here = write_folder(tmp_path / "out" / WHERE, old).parents[1]
    keys = {**NEW, "max_rejected": 1, **WRONG[option]}
    source = source.with_name(keys.pop("file", source.name))
    for out in (there.url, here):
        with pytest.raises(ShardprepError):
            build(source, out, replace=True, **keys)  # type: ignore[arg-type]
    assert is_whole(there, old)
    assert tree(tmp_path / "out" / WHERE) == old
    if option != "too many rejections":
        assert there.tree() == {f"{WHERE}/{name}": data for name, data in old.items()}


def test_an_interrupted_build_leaves_the_old_dataset_and_can_be_resumed(
    source: Path, there: Bucket, proxy: Proxy, old: dict[str, bytes], new: dict[str, bytes]
) -> None:
    release = threading.Event()
    proxy.rule = lambda r: Fault(hold=release) if r.path.endswith("00001-of-00002") else None
    command = [sys.executable, "-m", "shardprep", "build", str(source), "--out", there.url]
    options = ["--workers", "1", "--overwrite", "--max-rejected", "1"]
    options += [word for key, value in NEW.items() for word in (f"--{key}", str(value))]
    with subprocess.Popen(
        [*command, *options], env=process_environment(proxy.endpoint), stderr=subprocess.DEVNULL
    ) as driver:
        wait_until(lambda: any("parts/pets-train" in name for name in there.tree(INCOMPLETE)))
        driver.send_signal(signal.SIGINT)
        release.set()
        driver.wait(20)
    proxy.reset()
    assert is_whole(there, old)
    watcher = Quiet()
    overwrite(source, there, watcher=watcher)
    assert watcher.num_done > 0
    assert there.tree() == {f"{WHERE}/{name}": data for name, data in new.items()}


class Killed(BaseException):
    """The driver is killed at a change of the store."""


@pytest.mark.thorough
@pytest.mark.parametrize(("how", "copied"), [("build", 1), ("finalize", 0), ("--repair", 99)])
def test_the_next_command_finishes_an_interrupted_publishing(
    how: str,
    copied: int,
    source: Path,
    there: Bucket,
    new: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A driver dies after `copied` copies, or before it removes the first file."""
    done: list[ObjectUrl] = []
    copy, delete = objects.copy, objects.delete

    def copy_some(one: ObjectUrl, to: ObjectUrl, num_bytes: int) -> bool:
        done.append(to)
        if len(done) > copied:
            raise Killed
        return copy(one, to, num_bytes)

    def delete_none(urls: list[ObjectUrl]) -> None:
        if done:
            raise Killed
        delete(urls)

    with monkeypatch.context() as patch:
        patch.setattr(objects, "copy", copy_some)
        patch.setattr(objects, "delete", delete_none)
        with pytest.raises(Killed):
            overwrite(source, there)
    assert seen(there) == new
    address = f"{there.url}/{WHERE}"
    if how == "build":
        here = fetch_dataset(find_there(there), tmp_path, num_threads=2, watcher=Told())
        assert tree(here.path) == new
        here_and_there = [
            [images.numpy().tobytes() for images, _ in load(place, batch_size=4, seed=1)]
            for place in (here.path, address)
        ]
        assert here_and_there[0] == here_and_there[1] != []
    if how == "build":
        assert build(source, there.url, max_rejected=1, **NEW).was_there  # type: ignore[arg-type]
    elif how == "finalize":
        finalize_dataset(find_workspace(address), num_threads=2)
    else:
        repaired = invoke("verify", address, "--repair", "--source", str(source))
        assert repaired.exit_code == 0
    assert there.tree() == {f"{WHERE}/{name}": data for name, data in new.items()}


def test_a_draft_is_not_part_of_the_dataset_before_its_manifest_is_published(
    source: Path, there: Bucket, old: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def die(*_: object) -> None:
            raise Killed

        patch.setattr(objects, "replace", die)
        with pytest.raises(Killed):
            overwrite(source, there)
    assert is_whole(there, old)
    found = verify_dataset(
        locate(f"{there.url}/{WHERE}"), decode=False, num_workers=1, watcher=Told()
    )
    drafts, beside = found.unknown
    assert drafts.startswith(".draft-")
    assert drafts.endswith("/")
    assert beside == "../1.0.0.incomplete"


def test_readers_see_the_old_dataset_until_a_rebuild_with_equal_options_has_ended(
    source: Path, there: Bucket, old: dict[str, bytes]
) -> None:
    """Rejections may differ between runs, though the fingerprint does not."""

    def stops(encode: Any, tasks: Any, num_workers: int, limits: Any) -> Any:
        for number, chunk in enumerate(in_process(encode, tasks, num_workers, limits)):
            if number == 2:
                assert is_whole(there, old)
                raise Killed
            yield chunk

    with pytest.raises(Killed):
        overwrite(source, there, **OLD, engine=stops)
    assert is_whole(there, old)
    overwrite(source, there, **OLD)
    assert there.tree() == {f"{WHERE}/{name}": data for name, data in old.items()}


def test_a_reader_of_the_old_dataset_gets_an_error_after_it_was_replaced(
    source: Path, there: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDPREP_CACHE_BYTES", "0")
    opened = Dataset(f"{there.url}/{WHERE}", "train")
    first = opened[0]
    assert first
    overwrite(source, there)
    with pytest.raises(
        StorageError, match=r"(does not exist any more|has changed).*open the dataset"
    ):
        opened[len(opened) - 1]
    assert len(list(Dataset(f"{there.url}/{WHERE}", "train"))) == 9


def test_a_manifest_of_another_build_is_not_overwritten(
    source: Path, there: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = objects.replace

    def late(url: ObjectUrl, old: bytes, new: bytes) -> bool:
        there.put(f"{WHERE}/manifest.json", b"{}")
        return replace(url, old, new)

    monkeypatch.setattr(objects, "replace", late)
    with pytest.raises(BuildError, match="another build was published here at the same time"):
        overwrite(source, there)
    assert there.read(f"{WHERE}/manifest.json") == b"{}"


@pytest.mark.thorough
@pytest.mark.parametrize("manifest", [b"{", b""])
def test_a_dataset_with_a_damaged_manifest_can_be_replaced(
    manifest: bytes, source: Path, there: Bucket, new: dict[str, bytes], tmp_path: Path
) -> None:
    there.put(f"{WHERE}/manifest.json", manifest)
    write(tmp_path / WHERE / "manifest.json", manifest)
    for out in (there.url, tmp_path):
        build(source, out, replace=True, max_rejected=1, **NEW)  # type: ignore[arg-type]
    assert there.tree() == {f"{WHERE}/{name}": data for name, data in new.items()}
    assert tree(tmp_path / WHERE) == new


def test_files_of_others_stay(source: Path, there: Bucket, new: dict[str, bytes]) -> None:
    there.put(f"{WHERE}/notes/mine.txt", b"keep me")
    there.put(f"{WHERE}/labels.labels.txt", b"of an older dataset")
    overwrite(source, there)
    assert there.tree(WHERE) == {**new, "notes/mine.txt": b"keep me"}


def test_objects_too_large_for_a_server_side_copy_are_copied_by_this_machine(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardprep.storage.objects._COPY_BYTES", 5)
    data = bytes(range(256)) * 1024
    one, two = ObjectUrl.parse(bucket.put("one", data)), ObjectUrl.parse(f"{bucket.url}/two")
    assert objects.copy(one, two, len(data))
    assert bucket.read("two") == data
    assert not objects.copy(one / "gone", two, 10)
    assert not objects.copy(one / "gone", two, 1)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "fault", [Fault(status=503), Fault(is_reset=True), Fault(is_deaf=True)], ids=repr
)
def test_a_replaced_object_is_recognised_after_a_failed_answer(
    bucket: Bucket, proxy: Proxy, fault: Fault
) -> None:
    url = ObjectUrl.parse(bucket.put("one", b"old"))
    proxy.rule = nth(0, fault, lambda r: r.method == "PUT")
    assert objects.get(url) == b"old"
    assert objects.replace(url, b"old", b"new")
    assert bucket.read("one") == b"new"
    assert not objects.replace(url, b"old", b"newer")
    assert not objects.replace(url / "gone", b"old", b"newer")
    assert bucket.read("one") == b"new"


@pytest.mark.thorough
def test_a_shard_over_a_finished_dataset_costs_the_requests_that_the_document_says(
    source: Path, there: Bucket, proxy: Proxy
) -> None:
    counts = []
    for shards in (2, 6):
        overwrite(source, there, shards=3, size="8x8")
        proxy.reset()
        overwrite(source, there, shards=shards)
        counts.append(len(proxy.requests))
    assert (counts[1] - counts[0]) / 4 == 15
