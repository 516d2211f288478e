"""A dataset in object storage is whole until the one that takes its place is: whatever happens."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from shardprep.complete import finalize_dataset
from shardprep.errors import BuildError, ShardprepError
from shardprep.reader import Dataset
from shardprep.remote import RemoteDataset, find
from shardprep.storage import objects
from shardprep.storage.url import ObjectUrl
from shardprep.unfinished import find_place
from shardprep.verify.dataset import verify_dataset
from tests.builders import Quiet, animals, build, in_process, jpeg, tree, write, zip_bytes
from tests.object_store import Fault, process_environment, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.object_store import Bucket, Proxy, Request

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
    """A bucket with the old dataset."""
    for name, data in old.items():
        bucket.put(f"{WHERE}/{name}", data)
    return bucket


def overwrite(source: Path, bucket: Bucket, **keys: Any) -> Any:
    keys = {**NEW, "max_rejected": 1, **keys}
    return build(source, bucket.url, replace=True, **keys)  # type: ignore[arg-type]


def seen(bucket: Bucket) -> dict[str, bytes]:
    """Return the files of the dataset as whoever reads it sees them, checked by verify."""
    found = find(f"{bucket.url}/{WHERE}")
    assert isinstance(found, RemoteDataset)
    assert not verify_dataset(found, decode=False, num_workers=1, watcher=Quiet_()).problems
    own = {name: facts for name, facts in found.objects.items() if not name.startswith(".")}
    return {name: bucket.read(f"{WHERE}/{facts.name}") for name, facts in own.items()}


class Quiet_:  # noqa: N801 - one that hears of bytes
    def begin(self, what: str, num_bytes: int | None) -> None:
        del what, num_bytes

    def progress(self, num_bytes: int) -> None:
        del num_bytes


def is_whole(bucket: Bucket, old: Mapping[str, bytes]) -> bool:
    """Tell whether all objects of a dataset are there, none changed, and a reader reads all."""
    there = bucket.tree(WHERE)
    assert seen(bucket) == old
    num_records = sum(len(data.splitlines()) for name, data in old.items() if name[-4:] == ".idx")
    assert len([item for item in Dataset(f"{bucket.url}/{WHERE}", "train")]) == num_records  # noqa: C416 - read, not counted
    return {name: there.get(name) for name in old} == old


WRONG: dict[str, dict[str, Any]] = {
    "labels": {"labels": "csv:nothing.csv:id:y"},
    "classes": {"labels": "prefix", "classes": ["bird", "fish"]},
    "include": {"include": ["*.bmp"]},
    "root": {"root": "nowhere"},
    "schema": {"schema": "mask"},
    "too many rejections": {"max_rejected": 0},
}


@pytest.mark.parametrize("option", WRONG)
def test_a_build_that_comes_to_nothing_leaves_the_old_dataset(
    option: str, source: Path, there: Bucket, old: dict[str, bytes]
) -> None:
    with pytest.raises(ShardprepError):
        overwrite(source, there, **WRONG[option])
    assert is_whole(there, old)
    if option != "too many rejections":
        assert there.tree() == {f"{WHERE}/{name}": data for name, data in old.items()}


def test_a_source_that_is_gone_leaves_it(there: Bucket, old: dict[str, bytes]) -> None:
    from pathlib import Path

    with pytest.raises(ShardprepError, match="no such file"):
        overwrite(Path("nothing.zip"), there, name="pets")
    assert there.tree() == {f"{WHERE}/{name}": data for name, data in old.items()}


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interruption_in_the_middle_leaves_it_and_the_same_command_goes_on(
    how: signal.Signals,
    source: Path,
    there: Bucket,
    proxy: Proxy,
    old: dict[str, bytes],
    new: dict[str, bytes],
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
        driver.send_signal(how)
        release.set()
        driver.wait(20)
    proxy.reset()
    assert is_whole(there, old)
    watcher = Quiet()
    overwrite(source, there, watcher=watcher)
    assert watcher.num_done > 0
    assert there.tree() == {f"{WHERE}/{name}": data for name, data in new.items()}


def is_change(request: Request) -> bool:
    return request.method in ("PUT", "DELETE", "POST")


class Killed(BaseException):
    """A driver is no more from a change of the store on."""


def killed_before(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no change of the store happen from the one with this number on."""
    left = number
    lock = threading.Lock()

    def guarded(name: str) -> None:
        act: Callable[..., Any] = getattr(objects, name)

        def acted(*arguments: Any) -> Any:
            nonlocal left
            with lock:
                left -= 1
                if left < 0:
                    raise Killed
            return act(*arguments)

        monkeypatch.setattr(objects, name, acted)

    for name in ("put", "create", "replace", "copy"):
        guarded(name)
    delete_all = objects.delete

    def delete(urls: list[ObjectUrl]) -> None:
        nonlocal left
        for url in urls:
            with lock:
                left -= 1
                if left < 0:
                    raise Killed
            delete_all([url])

    monkeypatch.setattr(objects, "delete", delete)


def test_at_every_change_of_the_store_it_is_the_old_or_the_new(
    source: Path,
    object_store: Any,
    there: Bucket,
    old: dict[str, bytes],
    new: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import uuid

    from tests.object_store import Bucket as New

    is_new = []
    for number in range(200):
        bucket = New(object_store, f"k-{uuid.uuid4().hex[:20]}")
        for name, data in old.items():
            bucket.put(f"{WHERE}/{name}", data)
        with monkeypatch.context() as patch:
            killed_before(number, patch)
            try:
                overwrite(source, bucket)
            except Killed:
                is_over = False
            else:
                is_over = True
        found = seen(bucket)
        is_new.append(found == new)
        assert found in (old, new)
        if is_over:
            break
        overwrite(source, bucket)
        assert bucket.tree() == {f"{WHERE}/{name}": data for name, data in new.items()}
    assert is_over
    switch = is_new.index(True)
    assert all(is_new[switch:]), "once it is the new one it stays so"
    assert 10 < switch < len(is_new) - 10
    del there
