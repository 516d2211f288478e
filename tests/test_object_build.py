"""Datasets written to object storage: whole or not at all, by one build, the bytes of a local one."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from shardprep.build import Part, build_dataset, build_part
from shardprep.complete import finalize_dataset
from shardprep.engine.job import by_chunks
from shardprep.errors import BuildError, ShardprepError, StorageError
from shardprep.place import find_place
from shardprep.recipe import make_recipe
from shardprep.storage import folder as folders
from tests.builders import Quiet, animals, build, in_process, tree, write, zip_bytes
from tests.object_store import Fault, nth, process_environment, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.object_store import Bucket, Proxy, Request

KEYS: dict[str, Any] = {"shards": 4, "size": "32x32", "format": "png"}
WHERE = "pets/1.0.0"
SHARDS = [f"pets-train.tfrecord-{i:05d}-of-00004" for i in range(4)]


@pytest.fixture(name="source", scope="module")
def _source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("source") / "pets.zip", zip_bytes(animals(30)))


@pytest.fixture(name="local", scope="module")
def _local(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the same build leaves on a disk."""
    return tree(build(source, tmp_path_factory.mktemp("local"), **KEYS).path)


def build_there(source: Path | str, bucket: Bucket, **keys: Any) -> Any:
    return build(source, bucket.url, **{**KEYS, **keys})  # type: ignore[arg-type]


def is_put(request: Request) -> bool:
    return request.method == "PUT"


def is_shard_put(request: Request) -> bool:
    return request.method == "PUT" and ".tfrecord-" in request.path and "/index/" not in request.path


def test_a_build_there_is_a_build_here_byte_for_byte(
    source: Path, bucket: Bucket, local: dict[str, bytes], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    result = build_there(source, bucket)
    assert bucket.tree() == {f"{WHERE}/{name}": data for name, data in local.items()}
    assert result.location == f"{bucket.url}/{WHERE}"
    assert sorted(os.listdir()) == ["cache"], "no path was made of an address"
    assert result.manifest.dumps().encode() == local["manifest.json"]


def test_a_finished_one_is_left_alone(source: Path, bucket: Bucket, proxy: Proxy) -> None:
    build_there(source, bucket)
    proxy.reset()
    assert build_there(source, bucket).was_there
    assert proxy.count("PUT") == proxy.count("DELETE") == proxy.count("POST") == 0
    with pytest.raises(BuildError, match="built with other quality"):
        build_there(source, bucket, format="jpeg", quality=50)


def test_one_can_be_replaced(source: Path, bucket: Bucket, local: dict[str, bytes]) -> None:
    build_there(source, bucket, size="16x16", shards=7)
    build_there(source, bucket, replace=True)
    assert bucket.tree(WHERE) == local
    assert not bucket.tree("pets/1.0.0.incomplete")


def test_parts_make_one_of_any_order(
    source: Path, bucket: Bucket, local: dict[str, bytes]
) -> None:
    keys = {"source": str(source), "out": bucket.url, **KEYS}
    recipe = make_recipe(keys, "test")
    engine = by_chunks(in_process)
    for number in (2, 1, 2):
        build_part(recipe, Part(number, 2), num_workers=1, watcher=Quiet(), engine=engine)
        if number == 2:
            assert not bucket.tree(WHERE).keys() & {"manifest.json"}
    for where in (bucket.url + f"/{WHERE}", bucket.url + f"/{WHERE}.incomplete/"):
        place = find_place(where)
        assert finalize_dataset(place, num_threads=2).manifest.dumps().encode() == (
            local["manifest.json"]
        )
    assert bucket.tree() == {f"{WHERE}/{name}": data for name, data in local.items()}
