"""Datasets in object storage give the same batches as in a folder, or an error of one line."""

import itertools
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shardprep.api.json_types import FetchJson
from shardprep.dataset.fetch import fetch_dataset
from shardprep.dataset.folder import index_name
from shardprep.dataset.local_files import LocalFiles
from shardprep.dataset.locate import locate
from shardprep.dataset.manifest import load_manifest
from shardprep.errors import BuildError, DatasetError, RecipeError, ShardprepError, StorageError
from shardprep.reader import Dataset, ReadConfig, load
from shardprep.reader.order.epoch import BLOCK_LENGTH
from shardprep.storage.cache import cache_root
from shardprep.storage.shard_cache import RemoteShard, StagedShards
from shardprep.storage.url import ObjectUrl
from shardprep.verifier.dataset import verify_dataset
from tests.reader.datasets import pets, put
from tests.support.builders import Told, animals, build, tree, write, zip_bytes
from tests.support.command import invoke
from tests.support.examples import thorough
from tests.support.json_page import printed
from tests.support.object_store import (
    Bucket,
    Fault,
    ObjectStore,
    Proxy,
    Request,
    process_environment,
)
from tests.support.processes import wait_until

TEXT = (Path(__file__).parents[2] / "docs" / "remote_reading.md").read_text()
KEY = "sets/pets/1.0.0"
FIRST = "pets-train.tfrecord-00000-of-00005"
NUM_TRAIN = 300


@pytest.fixture(name="local", scope="module")
def _local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    members = {**animals(NUM_TRAIN), **animals(20, folder="validation/")}
    return pets(tmp_path_factory, members, size="32x24", shards=5)


@pytest.fixture(name="shared_url", scope="module")
def _shared_url(local: Path, object_store: ObjectStore) -> str:
    return put(Bucket(object_store, f"b-{uuid.uuid4().hex[:20]}"), local)


@pytest.fixture(name="url")
def _url(shared_url: str, bucket: Bucket) -> str:
    """Return the address of a shared, read-only copy of the dataset; the cache is empty."""
    del bucket
    return shared_url


@pytest.fixture(name="own_url")
def _own_url(local: Path, bucket: Bucket) -> str:
    return put(bucket, local)


@pytest.fixture(name="expected", scope="module")
def _expected(local: Path) -> list[tuple[bytes, list[int]]]:
    return batches(local)


def copies() -> list[Path]:
    folder = cache_root() / "shards"
    return [one for one in folder.glob("*") if not one.name.startswith(".") and not one.suffix]


def batches(place: str | Path, **options: Any) -> list[tuple[bytes, list[int]]]:
    """Return the bytes and labels of all batches of two epochs of `load`."""
    options = {"batch_size": 16, "seed": 3, "repeat": 2, **options}
    return [(images.numpy().tobytes(), labels.numpy().tolist())
            for images, labels in load(place, **options)]  # fmt: skip


# --- the same batches ----------------------------------------------------------------------------


PART = ReadConfig(num_shards=3, shard_index=1, interleave_block_length=5, interleave_cycle_length=3)
SKIPPING = ReadConfig(staging_bytes=0, on_error="skip")
ALIKE: list[dict[str, Any]] = [{}, {"read_config": ReadConfig(staging_bytes=0)}]
THOROUGH: list[dict[str, Any]] = [
    {"cache": "memory", "read_config": PART},
    {"shuffle": False, "read_config": SKIPPING},
    {"split": "train[10:250]+validation"},
    {"split": "train[50:70]", "cache": "folder"},  # a part of two shards
]


@pytest.mark.parametrize(
    "options",
    [*ALIKE, *(thorough(one) for one in THOROUGH)],
    ids=str,
)
def test_load_yields_the_batches_of_the_folder(
    local: Path, url: str, expected: list[Any], options: dict[str, Any], tmp_path: Path
) -> None:
    if options.get("cache") == "folder":
        options = {**options, "cache": tmp_path / "cache"}
    here = expected if options in ALIKE else batches(local, **options)
    assert batches(url, **options) == here


@pytest.mark.parametrize("is_filled", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_without_copies_a_block_is_read_by_one_request(
    local: Path, url: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, is_filled: bool  # noqa: FBT001
) -> None:  # fmt: skip
    """This holds in both pipelines of `load` and in `Dataset.batches`."""
    from shardprep.reader.tf import pipeline

    monkeypatch.setenv("SHARDPREP_CACHE_BYTES", "0")
    monkeypatch.setattr(pipeline, "threads_are_faster", lambda *_: is_filled)
    found = batches(url)
    assert found == batches(local)
    asked = sum("range" in one.headers for one in proxy.requests)
    blocks, shards = -(-NUM_TRAIN // BLOCK_LENGTH), 5
    assert asked <= 2 * (blocks + shards), "of two epochs"
    proxy.reset()
    there = Dataset(url).batches(16, seed=3, shuffle=True, epochs=2)
    pixels = b"".join(images.tobytes() for images, _ in there)
    assert pixels == b"".join(images for images, _ in found)
    assert sum("range" in one.headers for one in proxy.requests) <= 2 * (blocks + shards)


@pytest.mark.parametrize("kept", [None, "0", "20e3"])
def test_dataset_has_the_items_and_batches_of_the_folder(
    local: Path, url: str, kept: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kept is not None:
        monkeypatch.setenv("SHARDPREP_CACHE_BYTES", kept)
    here, there = (Dataset(place, as_supervised=False) for place in (local, url))
    there = pickle.loads(pickle.dumps(there))
    assert repr(here) == repr(there)
    for number in (0, 17, NUM_TRAIN - 1):
        assert there[number]["image/filename"] == here[number]["image/filename"]
        assert np.array_equal(there[number]["image"], here[number]["image"])
    for one, other in zip(here.batches(32, seed=0), there.batches(32, seed=0), strict=True):
        assert np.array_equal(one[0], other[0])
        assert np.array_equal(one[1], other[1])


# --- copies --------------------------------------------------------------------------------------


def is_whole_shard(request: Request) -> bool:
    is_shard = ".tfrecord-" in request.path and "/index/" not in request.path
    return request.method == "GET" and is_shard and "range" not in request.headers


def test_shards_are_copied_once_and_then_read_without_requests(url: str, proxy: Proxy) -> None:
    batches(url)
    wait_until(lambda: len(copies()) == 5)
    assert sum(map(is_whole_shard, proxy.requests)) == 5
    proxy.reset()
    batches(url)
    assert not [one for one in proxy.requests if one.method != "GET" or "list-type" not in one.path]
    assert proxy.count() == 1, "one listing"


def test_copies_stay_within_the_limit(local: Path, url: str, expected: list[Any]) -> None:
    limit = load_manifest(local).splits["train"].num_bytes // 2
    assert batches(url, read_config=ReadConfig(staging_bytes=limit)) == expected
    wait_until(lambda: copying() == 0)
    assert 0 < sum(one.stat().st_size for one in copies()) <= limit


def copying() -> int:
    return sum(one.name.startswith("shardprep-copy") for one in threading.enumerate())


def remote_shards(url: str) -> list[RemoteShard]:
    found = locate(ObjectUrl.parse(url))
    return [found.shard(one) for one in found.with_manifest()[1].shards.values()]


def test_the_least_recently_used_copy_is_removed_first(url: str) -> None:
    one, two, three, *_ = remote_shards(url)
    staged = StagedShards(one.num_bytes + two.num_bytes + 100)
    for shard in (one, two):
        assert staged.stage(shard, frozenset(), lambda: False) == "here"
    for age, shard in enumerate((two, one)):  # two is the older one
        os.utime(staged.path(shard), (age, age))
    held = staged.path(two).open("rb")
    assert staged.stage(three, frozenset(), lambda: False) == "here"
    assert {path.name for path in copies()} == {one.sha256, three.sha256}
    with held:
        assert len(held.read()) == two.num_bytes, "an open copy stays readable"
    assert staged.stage(two, frozenset({one.sha256, three.sha256}), lambda: False) == "full"


def test_reading_continues_when_copies_vanish(local: Path, url: str) -> None:
    dataset = load(url, batch_size=16, seed=3, shuffle=False)
    found = []
    for images, _ in dataset:
        found.append(images.numpy().tobytes())
        for path in copies():
            path.unlink()
    here = load(local, batch_size=16, seed=3, shuffle=False)
    assert found == [images.numpy().tobytes() for images, _ in here]


@pytest.mark.parametrize("size", [None, 100])
def test_a_damaged_copy_is_not_used(
    local: Path, url: str, expected: list[Any], size: int | None
) -> None:
    (shard, *_) = (one for one in remote_shards(url) if one.url.name == FIRST)
    staged = StagedShards()
    staged.stage(shard, frozenset(), lambda: False)
    data = bytearray(staged.path(shard).read_bytes()[:size])
    data[50] ^= 1
    staged.path(shard).write_bytes(data)
    assert batches(url) == expected
    assert np.array_equal(Dataset(url)[0][0], Dataset(local)[0][0])


READ_ALL = """
import sys
from shardprep.reader import Dataset
dataset = Dataset(sys.argv[1])
print(sum(len(images) for images, _ in dataset.batches(16, shuffle=True)), flush=True)
"""


def program(code: str, *arguments: str, endpoint: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=process_environment(endpoint, SHARDPREP_CACHE=str(cache_root()), **more),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.thorough
def test_two_processes_copy_each_shard_once(url: str, proxy: Proxy) -> None:
    proxy.rule = lambda request: Fault(delay_s=0.3) if is_whole_shard(request) else None
    # They wait for all copies, because a process that ends drops the copy that it is making.
    code = f"{READ_ALL}sys.stdin.read()"
    both = [program(code, url, endpoint=proxy.endpoint) for _ in range(2)]
    wait_until(lambda: len(copies()) == 5)
    for one in both:
        out, err = one.communicate(timeout=120)
        assert (one.returncode, out, err) == (0, f"{NUM_TRAIN}\n", "")
    shards = [request.path for request in proxy.requests if is_whole_shard(request)]
    assert len(shards) == len(set(shards))


@pytest.mark.thorough
def test_a_program_can_end_while_shards_are_copied_but_not_be_forked(
    url: str, proxy: Proxy
) -> None:
    proxy.rule = lambda request: Fault(delay_s=0.5) if is_whole_shard(request) else None
    code = """
import multiprocessing, sys
from shardprep.reader import Dataset
dataset = Dataset(sys.argv[1])
child = multiprocessing.get_context("fork").Process(target=dataset.__getitem__, args=(0,))
if len(sys.argv) > 2:
    child.start()
    child.join()
else:
    dataset[0]
"""
    one = program(code, url, endpoint=proxy.endpoint)
    assert (*one.communicate(timeout=120), one.returncode) == ("", "", 0)
    other = program(code, url, "fork", endpoint=proxy.endpoint, SHARDPREP_CACHE_BYTES="0")
    _, err = other.communicate(timeout=120)
    assert "StorageError" in err
    assert "multiprocessing_context='forkserver'" in err


@pytest.mark.thorough
def test_a_killed_process_leaves_no_partial_copy(
    url: str, expected: list[Any], proxy: Proxy
) -> None:
    slow = Fault(bytes_per_s=100.0)
    proxy.rule = lambda request: slow if is_whole_shard(request) else None
    one = program(READ_ALL, url, endpoint=proxy.endpoint)
    wait_until(lambda: any((cache_root() / "shards").glob("*.part")))
    one.send_signal(signal.SIGKILL)
    one.communicate(timeout=120)
    assert not copies()
    proxy.reset()
    assert batches(url) == expected
    wait_until(lambda: len(copies()) == 5)
    assert not list((cache_root() / "shards").glob("*.part"))


def test_a_replaced_dataset_is_read_anew(own_url: str, bucket: Bucket, tmp_path: Path) -> None:
    assert len(Dataset(own_url)) == NUM_TRAIN
    source = write(tmp_path / "pets.zip", zip_bytes(animals(40)))
    other = build(source, tmp_path / "out", size="32x24", labels="prefix", shards=5).path
    assert put(bucket, other) == own_url
    assert len(Dataset(own_url)) == 40
    assert batches(own_url) == batches(other)


def test_failed_requests_are_repeated(url: str, expected: list[Any], proxy: Proxy) -> None:
    faults = [Fault(status=503), None, Fault(is_reset=True), None, Fault(cut_at=20), None, None]
    turn = itertools.cycle(faults)
    proxy.rule = lambda _: next(turn)
    assert batches(url) == expected


@pytest.mark.thorough
def test_the_data_loader_of_the_document_runs(url: str, tmp_path: Path) -> None:
    """It is a script, because its workers import it."""
    pytest.importorskip("torch")
    (sample,) = re.findall(r"```python\n(from torch.*?)```", TEXT, re.DOTALL)
    assert "s3://my-bucket/pets" in sample
    sample = sample.replace("s3://my-bucket/pets", url).replace("num_workers=2", "num_workers=1")
    sample = sample.replace("pass", "print(images.shape)")
    done = subprocess.run(
        [sys.executable, str(write(tmp_path / "sample.py", sample.encode()))],
        env=process_environment(
            os.environ["AWS_ENDPOINT_URL"],
            SHARDPREP_CACHE=str(cache_root()),
            # Python's tracker may miss that a worker has unlinked its semaphore, and warn.
            PYTHONWARNINGS="ignore::UserWarning:multiprocessing.resource_tracker",
        ),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    shapes = done.stdout.splitlines()
    assert shapes == ["torch.Size([64, 24, 32, 3])"] * 4 + ["torch.Size([44, 24, 32, 3])"]


# --- errors name the address -------------------------------------------------------------------


def cut(data: bytes) -> bytes:
    return data[:-7]


def flipped(data: bytes) -> bytes:
    return data[:50] + bytes([data[50] ^ 1]) + data[51:]


@pytest.mark.parametrize(
    ("name", "change", "what"),
    [
        (FIRST, cut, "has .* bytes, but the manifest says"),
        (FIRST, None, "is missing, but the manifest says"),
        (index_name(FIRST), None, "is missing"),
        (index_name(FIRST), cut, "is damaged|records, but the manifest says"),
        ("schema.json", flipped, "is not what the build wrote"),
        ("manifest.json", flipped, "cannot be read|is not what the build wrote"),
    ],
)
def test_a_changed_file_is_an_error(
    own_url: str, bucket: Bucket, name: str, change: Callable[[bytes], bytes] | None, what: str
) -> None:
    key = f"{KEY}/{name}"
    if change is None:
        bucket.client.delete_object(Bucket=bucket.name, Key=key)
    else:
        bucket.put(key, change(bucket.read(key)))
    for read in (load, Dataset):
        with pytest.raises(DatasetError, match=what) as error:
            read(own_url)
        assert error.value.where == f"{bucket.url}/{key}" or name == index_name(FIRST)
        assert error.value.where.startswith(own_url)


def test_a_shard_with_other_bytes_is_an_error_once_it_is_copied(
    own_url: str, bucket: Bucket
) -> None:
    key = f"{KEY}/{FIRST}"
    data = bucket.read(key)
    bucket.put(key, data[:-1] + bytes([data[-1] ^ 1]))
    dataset = Dataset(own_url)

    def read_on() -> bool:
        dataset[0]
        return False

    with pytest.raises(DatasetError, match="the manifest says") as error:
        wait_until(read_on)
    assert error.value.where == f"{bucket.url}/{key}"


def test_a_shard_that_changes_while_it_is_read_is_an_error(own_url: str, bucket: Bucket) -> None:
    dataset = load(own_url, batch_size=16, shuffle=False, read_config=ReadConfig(staging_bytes=0))
    bucket.put(f"{KEY}/{FIRST}", bucket.read(f"{KEY}/{FIRST}")[::-1])
    with pytest.raises(Exception, match=rf"{KEY}/{FIRST}: has changed since"):
        list(dataset)


# --- which dataset an address means --------------------------------------------------------------


def test_an_address_of_no_bucket_or_given_as_a_path_is_an_error(bucket: Bucket) -> None:
    with pytest.raises(
        (DatasetError, StorageError), match=r"bucket does not exist|holds no dataset"
    ):
        locate(f"{bucket.url}-not-there")
    with pytest.raises(
        RecipeError, match="has one slash after s3:, not two; write s3://BUCKET/KEY; in "
    ):
        load(Path("s3://bucket/pets"))


# --- commands ------------------------------------------------------------------------------------


def run(*arguments: str) -> Any:
    """Run a command in this process; return its exit code and output."""
    return invoke(*arguments, catch_exceptions=False)


def test_inspect_prints_the_same_as_for_the_folder(local: Path, url: str) -> None:
    there = json.loads(run("inspect", url, "--json").stdout)
    here = json.loads(run("inspect", str(local), "--json").stdout)
    assert there.pop("path") == url
    assert here.pop("path") == str(local)
    assert there == here


def check(found: Any) -> Any:
    files = LocalFiles.at(found) if isinstance(found, Path) else found
    return verify_dataset(files, decode=True, num_workers=2, watcher=Told())


def test_verify_finds_the_same_problems_as_in_the_folder(
    local: Path, own_url: str, bucket: Bucket, tmp_path: Path
) -> None:
    assert not check(locate(own_url)).problems
    changes: dict[str, Callable[[bytes], bytes]] = {
        FIRST: flipped, FIRST.replace("0-of", "1-of"): cut, "schema.json": cut,
        "items.parquet": cut, index_name(FIRST): flipped, "features.json": cut,
    }  # fmt: skip
    copy = tmp_path / "pets" / "1.0.0"
    for name, data in tree(local).items():
        changed = changes.get(name, bytes)(data)
        write(copy / name, changed)
        bucket.put(f"{KEY}/{name}", changed)
    for name in ("notes.txt", "pets-train.tfrecord-00009-of-00005"):
        bucket.put(f"{KEY}/{name}", write(copy / name, b"0123456789").read_bytes())
    bucket.client.delete_object(Bucket=bucket.name, Key=f"{KEY}/label.labels.txt")
    (copy / "label.labels.txt").unlink()
    write(tmp_path / "pets/1.0.0.incomplete/x", b"")
    bucket.put(f"{KEY}.incomplete/.parts/x", b"")
    there, here = check(locate(own_url)), check(copy)
    assert there.problems == here.problems
    assert there.unknown == here.unknown == ("notes.txt", "../1.0.0.incomplete")
    assert not list((cache_root()).glob("shards/*")), "training keeps its copies"


def test_verify_exits_with_3_and_names_the_next_step(own_url: str, bucket: Bucket) -> None:
    assert "no problem found" in run("verify", own_url).stdout
    bucket.client.delete_object(Bucket=bucket.name, Key=f"{KEY}/manifest.json")
    done = run("verify", own_url)
    assert done.exit_code == 3
    text = " ".join(done.stdout.split())
    assert "manifest.json: is missing" in text
    assert (
        "next build the dataset again with --overwrite: the dataset has no sound manifest" in text
    )
    assert "incomplete uploads" in text


# --- fetch ---------------------------------------------------------------------------------------


def fetch(url: str, to: Path, watcher: Told | None = None, **options: bool) -> Any:
    remote = locate(ObjectUrl.parse(url))
    return fetch_dataset(remote, to, num_threads=2, watcher=watcher or Told(), **options)


FETCH = """
import sys
from shardprep.cli.app import main
sys.argv = ["shardprep", "fetch", sys.argv[1], "--to", sys.argv[2]]
main()
"""


def test_fetch_copies_the_folder(local: Path, url: str, tmp_path: Path) -> None:
    watcher = Told()
    found = fetch(url, tmp_path / "out", watcher)
    assert found.path == tmp_path / "out" / "pets" / "1.0.0"
    assert tree(found.path) == tree(local)
    assert [path.name for path in found.path.parent.iterdir()] == ["1.0.0"]
    assert watcher.done == sorted(watcher.done)
    assert watcher.done[-1] == watcher.total == found.num_new_bytes
    assert not check(found.path).problems
    assert fetch(url, tmp_path / "out").was_there
    command = ("fetch", url, "--to", str(tmp_path / "out"))
    assert printed(run(*command, "--json").stdout, FetchJson)["path"] == str(found.path)
    assert "already exists" in run(*command).stdout


def test_fetch_resumes_after_a_kill(local: Path, url: str, proxy: Proxy, tmp_path: Path) -> None:
    wanted = [FIRST, FIRST.replace("00000", "00001", 1)]
    hold = threading.Event()

    def rule(one: Request) -> Fault | None:
        is_wanted = any(name in one.path for name in wanted)
        return Fault(hold=hold) if is_whole_shard(one) and not is_wanted else None

    proxy.rule = rule
    one = program(FETCH, url, str(tmp_path), endpoint=proxy.endpoint)
    work = tmp_path / "pets" / "1.0.0.fetching"
    wait_until(lambda: all((work / name).exists() for name in wanted))
    one.kill()
    one.communicate()
    hold.set()
    with pytest.raises(DatasetError, match="holds no dataset"):
        locate(tmp_path)
    write(
        work / wanted[0], flipped((work / wanted[0]).read_bytes())
    )  # a damaged part is fetched again
    proxy.reset()
    found = fetch(url, tmp_path)
    sizes = {name: shard.num_bytes for name, shard in load_manifest(local).shards.items()}
    assert found.num_new_bytes == sum(sizes.values()) - sizes[wanted[1]]
    assert tree(found.path) == tree(local)
    assert not work.exists()


@pytest.mark.parametrize("change", [flipped, cut])
def test_fetch_of_a_damaged_dataset_creates_nothing(
    own_url: str, bucket: Bucket, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    bucket.put(f"{KEY}/{FIRST}", change(bucket.read(f"{KEY}/{FIRST}")))
    with pytest.raises(ShardprepError, match="the manifest says") as error:
        fetch(own_url, tmp_path)
    assert error.value.where == f"{own_url}/{FIRST}"
    assert not (tmp_path / "pets" / "1.0.0").exists()
    assert not list(tmp_path.rglob(FIRST))


def test_a_second_fetch_to_the_same_folder_is_an_error(
    local: Path, url: str, proxy: Proxy, tmp_path: Path
) -> None:
    hold = threading.Event()
    proxy.rule = lambda one: Fault(hold=hold) if is_whole_shard(one) else None
    first = program(FETCH, url, str(tmp_path), endpoint=proxy.endpoint)
    wait_until(lambda: proxy.count(path=FIRST) > 0)
    proxy.rule = lambda _: None
    second = program(FETCH, url, str(tmp_path), endpoint=proxy.endpoint)
    work = tmp_path / "pets" / "1.0.0.fetching"
    for _ in range(2):
        with pytest.raises(BuildError, match="another fetch is using this folder; wait until"):
            fetch(url, tmp_path)
    _, line = second.communicate(timeout=120)
    how = "wait until that fetch ends, or stop it"
    assert line == f"{work}: another fetch is using this folder; {how}\n"
    hold.set()
    _, errors = first.communicate(timeout=120)
    assert (first.returncode, errors) == (0, "")
    assert fetch(url, tmp_path).was_there
    assert tree(tmp_path / "pets" / "1.0.0") == tree(local)
    assert not work.exists()


def test_a_fetch_that_ends_keeps_the_files_of_the_next_one(
    local: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is the last file that a fetch removes."""
    copy, work = tmp_path / "pets" / "1.0.0", tmp_path / "pets" / "1.0.0.fetching"
    shutil.copytree(local, copy)
    (copy / FIRST).unlink()
    (copy / index_name(FIRST)).unlink()
    remove = os.unlink

    def unlink(path: Path, **options: Any) -> None:
        remove(path, **options)
        if Path(path).name == ".lock":
            assert not list(work.iterdir())
            write(work / "of-the-next", b"shard")

    monkeypatch.setattr("os.unlink", unlink)
    assert fetch(url, tmp_path).renewed == (index_name(FIRST), FIRST)
    assert [path.name for path in work.iterdir()] == ["of-the-next"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *((FIRST, change) for change in (cut, flipped, None)),
        *(("items.parquet", change) for change in (cut, flipped, None)),
        (index_name(FIRST), cut),
        (index_name(FIRST), flipped),
        ("features.json", flipped),
        ("features.json", None),
    ],
)
def test_fetch_repairs_a_copy(
    local: Path, url: str, tmp_path: Path, name: str, change: Callable[[bytes], bytes] | None
) -> None:
    copy = tmp_path / "pets" / "1.0.0"
    shutil.copytree(local, copy)
    if change is None:
        (copy / name).unlink()
    else:
        write(copy / name, change((local / name).read_bytes()))
    is_seen = change is not flipped or name == "items.parquet"
    assert fetch(url, tmp_path).renewed == ((name,) if is_seen else ())
    assert fetch(url, tmp_path, check=True).renewed == (() if is_seen else (name,))
    found = fetch(url, tmp_path, check=True)
    assert found.was_there
    assert not found.renewed
    assert tree(copy) == tree(local)
    assert [path.name for path in copy.parent.iterdir()] == ["1.0.0"]


def test_a_failed_repair_keeps_the_copy(
    local: Path, own_url: str, bucket: Bucket, tmp_path: Path
) -> None:
    copy = tmp_path / "pets" / "1.0.0"
    shutil.copytree(local, copy)
    second = FIRST.replace("0-of", "1-of")
    for name in (FIRST, second):
        write(copy / name, cut((local / name).read_bytes()))
    before = tree(copy)
    bucket.put(f"{KEY}/{second}", flipped(bucket.read(f"{KEY}/{second}")))
    with pytest.raises(DatasetError, match=f"{second}: has SHA-256"):
        fetch(own_url, tmp_path)
    assert tree(copy) == before
    assert fetch(own_url, tmp_path, damaged=True).renewed == (FIRST,)
    assert tree(copy) == {**tree(local), second: before[second]}


def test_fetch_copies_the_sound_files_of_a_damaged_dataset(
    local: Path, own_url: str, bucket: Bucket, tmp_path: Path
) -> None:
    second, third = FIRST.replace("0-of", "1-of"), FIRST.replace("0-of", "2-of")
    bucket.put(f"{KEY}/{FIRST}", flipped(bucket.read(f"{KEY}/{FIRST}")))
    bucket.put(f"{KEY}/{second}", cut(bucket.read(f"{KEY}/{second}")))
    gone = (third, index_name(FIRST), "features.json")
    for name in gone:
        bucket.client.delete_object(Bucket=bucket.name, Key=f"{KEY}/{name}")
    with pytest.raises(DatasetError) as error:
        fetch(own_url, tmp_path)
    assert f"shardprep verify {own_url} --repair --source" in error.value.hint
    assert "--damaged leaves" in error.value.hint
    assert not (tmp_path / "pets" / "1.0.0").exists()

    done = run("fetch", own_url, "--to", str(tmp_path), "--damaged", "--json")
    copy = tmp_path / "pets" / "1.0.0"
    left_out = {FIRST, second, *gone}
    assert done.exit_code == 3
    assert {one["where"] for one in json.loads(done.stdout)["left_out"]} == {
        f"{own_url}/{name}" for name in left_out
    }
    assert tree(copy) == {k: v for k, v in tree(local).items() if k not in left_out}
    named = {problem.file for problem in check(copy).problems}
    assert named >= {FIRST, second, third, "features.json"}
    assert named <= left_out
    again = run("fetch", own_url, "--to", str(tmp_path), "--damaged")
    assert again.exit_code == 3
    assert f"left out: {own_url}/{third}: is missing" in again.stdout
    source = str(local.parents[2] / "pets.zip")
    assert run("verify", str(copy), "--repair", "--source", source).exit_code == 0
    assert tree(copy) == tree(local)


def test_fetch_checks_free_space_and_does_not_overwrite_other_files(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    said = r"kB are needed and 1\.0 MB must stay free, but the disk has 1\.0 kB left"
    with pytest.raises(BuildError, match=said):
        fetch(url, tmp_path)
    assert not list(tmp_path.rglob("*.tfrecord*"))
    note = write(tmp_path / "pets" / "1.0.0" / "note", b"mine")
    with pytest.raises(BuildError, match="has another dataset or another build than s3://"):
        fetch(url, tmp_path)
    assert note.read_bytes() == b"mine"


# --- the document --------------------------------------------------------------------------------


def test_the_code_of_the_document_runs(
    local: Path, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bucket, local, "pets/1.0.0")
    text = TEXT.replace("s3://my-bucket", bucket.url)
    found: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        if "import DataLoader" in block:
            continue  # runs as a script above
        exec(compile(block, "docs/remote_reading.md", "exec"), found)
    images, _ = next(iter(found["train"]))
    assert images.shape == (64, 24, 32, 3)
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^\$ shardprep (.*)$", text, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        assert run(*command.split()).exit_code == 0, command
    assert tree(tmp_path / "tfrecords" / "pets" / "1.0.0") == tree(local)
