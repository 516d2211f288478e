"""Local copies of shards and documents, in a folder that several processes use."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardprep.dataset.remote_files import RemoteFiles
from shardprep.storage import shard_cache
from shardprep.storage.objects import ListedObject
from shardprep.storage.shard_cache import RemoteShard, StagedShards
from shardprep.storage.url import ObjectUrl
from tests.support.builders import write

SCANDIR = os.scandir


class Vanishing:
    """A listing of a folder; another process removes a file before its size is read."""

    def __init__(self, folder: Path) -> None:
        with SCANDIR(folder) as found:
            self._entries = sorted(found, key=lambda entry: entry.name)
        Path(self._entries[0].path).unlink()

    def __enter__(self) -> Iterator[Any]:
        return iter(self._entries)

    def __exit__(self, *exception: object) -> None:
        pass


def test_a_copy_that_another_process_removes_is_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path))
    monkeypatch.delenv(shard_cache.LIMIT_VARIABLE, raising=False)
    for name in ("a" * 64, "b" * 64):
        write(tmp_path / "shards" / name, bytes(1000))
    staged = StagedShards()
    limit = staged.limit()
    monkeypatch.setattr(os, "scandir", Vanishing)
    assert abs(staged.limit() - limit) < 1 << 30
    assert [path.name for path in (tmp_path / "shards").iterdir()] == ["b" * 64]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_a_removed_copy_is_closed_while_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its space is free again only then."""
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path))
    now = itertools.count()
    monkeypatch.setattr("time.monotonic", lambda: 0.001 * next(now))
    url = ObjectUrl.parse("s3://bucket/pets/shard")
    one, two = (RemoteShard(url, "etag", 9, name * 64) for name in "ab")
    for shard, data in ((one, b"first one"), (two, b"other one")):
        write(tmp_path / "shards" / shard.sha256, data)
    staged = StagedShards()
    assert staged.read(one, 6, 3) == b"one"
    staged.path(one).unlink()
    assert staged.read(one, 0, 5) == b"first", "as any file of POSIX"
    assert held(one)
    now = itertools.count(5000)
    assert staged.read(two, 0, 5) == b"other"
    assert not held(one)
    assert staged.read(one, 0, 5) is None
    staged.drop(two)
    assert staged.read(two, 0, 5) is None


def held(shard: RemoteShard) -> bool:
    """Return True if this process has the copy of a shard open."""
    links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return any(shard.sha256 in str(link.readlink()) for link in links)


class Unsearched(tuple[str, ...]):
    """A sequence of names that must not be searched."""

    __slots__ = ()

    def __contains__(self, name: object) -> bool:
        raise AssertionError(f"all names are compared with {name}")


def test_opening_many_shards_takes_linear_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path))
    staged: list[str] = []
    monkeypatch.setattr(RemoteFiles, "_copy", lambda _, name, __: staged.append(name))
    names = [f"index/pets-train.tfrecord-{i:05}-of-00500.idx" for i in range(500)]
    objects = {name: ListedObject(name, 9, "etag") for name in names}
    dataset = RemoteFiles(ObjectUrl.parse("s3://bucket/pets/1.0.0"), objects)
    dataset.copies(Unsearched(names[:300]))
    assert sorted(staged) == names[:300]
