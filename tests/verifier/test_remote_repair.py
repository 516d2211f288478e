"""A damaged dataset in object storage is repaired in place."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardprep.dataset.locate import locate
from shardprep.dataset.manifest import Manifest
from shardprep.errors import BuildError, ShardprepError
from shardprep.verifier.dataset import verify_dataset
from shardprep.verifier.problem import Verification
from shardprep.verifier.repair import repair_dataset
from tests.support.builders import Quiet, Told, animals, build, tree, write, zip_bytes
from tests.support.command import invoke
from tests.support.examples import flipped
from tests.support.object_store import Bucket, Fault, Proxy, Request
from tests.support.processes import wait_until

WHERE, INCOMPLETE = "pets/1.0.0", "pets/1.0.0.incomplete"
SHARD = "pets-train.tfrecord-{:05d}-of-00004"
FIRST, SECOND, THIRD, FOURTH = (SHARD.format(i) for i in range(4))
KEYS: dict[str, Any] = {"shards": 4, "size": "16x16", "labels": "prefix", "max_rejected": "50%"}
MEMBERS = {**animals(20), "train/cat.99.jpg": b"<html>", "readme.txt": b"hello"}


@pytest.fixture(name="source", scope="module")
def _source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("source") / "pets.zip", zip_bytes(MEMBERS))


@pytest.fixture(name="good", scope="module")
def _good(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return tree(build(source, tmp_path_factory.mktemp("good"), **KEYS).path)


@pytest.fixture(name="there")
def _there(bucket: Bucket, good: dict[str, bytes]) -> Bucket:
    for name, data in good.items():
        bucket.put(f"{WHERE}/{name}", data)
    return bucket


def flip(there: Bucket, name: str) -> str:
    return there.put(f"{WHERE}/{name}", flipped(there.read(f"{WHERE}/{name}"), 99))


def remove(there: Bucket, name: str) -> object:
    return there.client.delete_object(Bucket=there.name, Key=f"{WHERE}/{name}")


def verified(there: Bucket) -> Verification:
    files = locate(f"{there.url}/{WHERE}", damaged=True)
    return verify_dataset(files, decode=False, num_workers=1, watcher=Told())


def repaired(source: Path, there: Bucket) -> Quiet:
    found, watcher = verified(there), Quiet()
    assert found.problems
    repair_dataset(found, str(source), num_workers=1, watcher=watcher)
    return watcher


def is_as_built(there: Bucket, good: dict[str, bytes]) -> bool:
    return there.tree() == {f"{WHERE}/{name}": data for name, data in good.items()}


DAMAGES: dict[str, tuple[Callable[[Bucket], object], int]] = {
    "a flipped bit": (lambda b: flip(b, FIRST), 1),
    "a cut shard, and one gone": (
        lambda b: [b.put(f"{WHERE}/{SECOND}", b.read(f"{WHERE}/{SECOND}")[:900]), remove(b, THIRD)],
        2,
    ),
    "a shard too many, and documents": (
        lambda b: [
            b.put(f"{WHERE}/{SHARD.format(4)}", b"0123"),
            *(flip(b, name) for name in ("schema.json", f"index/{FIRST}.idx")),
            remove(b, "label.labels.txt"),
        ],
        0,
    ),
    "items": (lambda b: flip(b, "items.parquet"), 4),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_only_damaged_files_are_rebuilt_and_no_intact_shard_is_read(
    damage: str, source: Path, there: Bucket, proxy: Proxy, good: dict[str, bytes]
) -> None:
    make, num_shards = DAMAGES[damage]
    make(there)
    found, watcher = verified(there), Quiet()
    proxy.reset()
    repair_dataset(found, str(source), num_workers=1, watcher=watcher)
    assert is_as_built(there, good)
    assert watcher.num_new + watcher.num_done == 21
    assert num_shards * 5 <= watcher.num_new <= num_shards * 6
    shards = (FIRST, SECOND, THIRD, FOURTH)
    assert not [r for r in proxy.requests if r.method == "GET" and r.path.endswith(shards)]
    if damage == "a flipped bit":
        sent = {r.path for r in proxy.requests if r.method == "PUT" and r.path.endswith(shards)}
        assert {path.rpartition("/")[2] for path in sent} == {FIRST}


def test_files_of_others_stay(source: Path, there: Bucket, good: dict[str, bytes]) -> None:
    there.put(f"{WHERE}/notes.txt", b"keep me")
    flip(there, FIRST)
    repaired(source, there)
    assert there.tree(WHERE) == {**good, "notes.txt": b"keep me"}


def test_rebuilt_bytes_that_differ_leave_the_dataset_unchanged(source: Path, there: Bucket) -> None:
    """A manifest with another hash of a shard, its own hash right: no build can make that."""
    document = json.loads(there.read(f"{WHERE}/manifest.json"))
    document["splits"]["train"]["shards"][0]["sha256"] = "0" * 64
    there.put(f"{WHERE}/manifest.json", Manifest.model_validate(document).dumps().encode())
    before = there.tree()
    with pytest.raises(BuildError, match=rf"rebuilt bytes differ .*{FIRST}\).*not changed"):
        repaired(source, there)
    assert there.tree() == before


@pytest.mark.thorough
def test_an_interrupted_repair_goes_on(
    source: Path, there: Bucket, good: dict[str, bytes], proxy: Proxy
) -> None:
    flip(there, FIRST)
    remove(there, SECOND)

    def refused(request: Request) -> Fault | None:
        if request.method != "PUT" or not request.path.endswith(SECOND):
            return None
        wait_until(lambda: f".parts/{FIRST}.parquet" in there.tree(INCOMPLETE))
        return Fault(status=403)

    proxy.rule = refused
    with pytest.raises(ShardprepError, match=SECOND):
        repaired(source, there)
    assert there.tree(WHERE)[THIRD] == good[THIRD]
    proxy.rule = lambda _: None
    assert repaired(source, there).num_new <= 6
    assert is_as_built(there, good)


def test_the_command_repairs_by_source_or_recipe(
    source: Path, there: Bucket, good: dict[str, bytes], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    url = f"{there.url}/{WHERE}"
    flip(there, FIRST)
    found = invoke("verify", url)
    assert found.exit_code == 3
    assert f"shardprep verify {url} --repair" in " ".join(found.output.split())
    lost = invoke("verify", url, "--repair")
    assert isinstance(lost.exception, ShardprepError)
    assert "add --source" in str(lost.exception)
    done = invoke("verify", url, "--repair", "--source", str(source))
    assert done.exit_code == 0, done.output
    assert is_as_built(there, good)
    flip(there, SECOND)
    recipe = f'source = "{source}"\nout = "{there.url}/"\nlabels = "prefix"\nshards = 4\n'
    write(tmp_path / "shardprep.toml", recipe.encode())
    assert invoke("verify", "--repair").exit_code == 0
    assert is_as_built(there, good)


# --- build of a set that lacks files -------------------------------------------------------------

LACKING: dict[str, tuple[tuple[str, ...], int]] = {
    "a shard": ((SECOND,), 1),
    "an index and class names": ((f"index/{SECOND}.idx", "label.labels.txt"), 0),
    "items and schema": (("items.parquet", "schema.json"), 4),
}


@pytest.mark.thorough
@pytest.mark.parametrize("gone", LACKING)
def test_build_adds_missing_files_of_a_finished_dataset(
    gone: str, source: Path, there: Bucket, good: dict[str, bytes], tmp_path: Path
) -> None:
    names, num_shards = LACKING[gone]
    here = build(source, tmp_path / "out", **KEYS).path
    write(here / "notes.txt", b"keep me")
    there.put(f"{WHERE}/notes.txt", b"keep me")
    for name in names:
        (here / name).unlink()
        remove(there, name)
    for out in (tmp_path / "out", there.url):
        watcher = Quiet()
        assert not build(source, out, watcher=watcher, **KEYS).was_there  # type: ignore[arg-type]
        assert num_shards * 5 <= watcher.num_new <= num_shards * 6
        what = f"{num_shards} of 4 shards" if num_shards else "documents"
        assert watcher.lines[0] == (f"the dataset is incomplete: {what} are built again")
        assert build(source, out, **KEYS).was_there  # type: ignore[arg-type]
    kept = {**good, "notes.txt": b"keep me"}
    assert tree(here) == kept
    assert there.tree() == {f"{WHERE}/{name}": data for name, data in kept.items()}


@pytest.mark.thorough
def test_build_rebuilds_a_cut_shard(
    source: Path, there: Bucket, good: dict[str, bytes], tmp_path: Path
) -> None:
    here = build(source, tmp_path / "out", **KEYS).path
    write(here / THIRD, good[THIRD][:99])
    there.put(f"{WHERE}/{THIRD}", good[THIRD][:99])
    for out in (tmp_path / "out", there.url):
        build(source, out, **KEYS)  # type: ignore[arg-type]
    assert tree(here) == there.tree(WHERE) == good


def test_shards_of_other_library_versions_are_not_mixed(
    source: Path, there: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(there, FIRST)
    before = there.tree()
    monkeypatch.setattr("shardprep.writer.plan.fingerprint.versions", lambda: {"pillow": "1.0"})
    with pytest.raises(BuildError, match=rf"lacks {FIRST}, and .*pillow .*--overwrite"):
        build(source, there.url, **KEYS)  # type: ignore[arg-type]
    assert there.tree() == before
