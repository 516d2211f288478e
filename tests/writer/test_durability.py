"""A power cut leaves no name without its content: content is on the disk before its name.

A power cut cannot be tried, so the order of the calls is tested: content before name, name before
everything that depends on it.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import animals, build, write, zip_bytes

Call = tuple[str, str]
"""("sync", file or folder) or ("name", the name that it was given)."""


@pytest.fixture(name="calls")
def _calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Return the calls that make a build durable, in their order, as they come.

    A file has the name that it gets, though it is synced under a temporary one.
    """
    calls: list[Call] = []

    def fsync(descriptor: int) -> None:
        calls.append(("sync", str(Path(f"/proc/self/fd/{descriptor}").readlink())))

    def naming(rename: Callable[..., None]) -> Callable[..., None]:
        def renamed(source: Any, target: Any, **options: Any) -> None:
            rename(source, target, **options)
            before, after = str(source), str(target)
            if before.endswith(".tmp"):
                calls[:] = [(kind, after if path == before else path) for kind, path in calls]
            calls.append(("name", after))

        return renamed

    monkeypatch.setattr(os, "fsync", fsync)
    for function in ("replace", "rename", "link"):
        monkeypatch.setattr(os, function, naming(getattr(os, function)))
    return calls


def written(tmp_path: Path, **keys: Any) -> Path:
    source = write(tmp_path / "pets.zip", zip_bytes(animals(6)))
    return build(source, tmp_path / "out", shards=2, size="8x8", labels="prefix", **keys).path


def place(calls: list[Call], kind: str, path: Path) -> int:
    (found,) = (number for number, call in enumerate(calls) if call == (kind, str(path)))
    return found


def test_each_file_is_synced_before_its_name_and_a_shard_before_its_receipt(
    tmp_path: Path, calls: list[Call]
) -> None:
    final = written(tmp_path)
    work = final.with_name("1.0.0.incomplete")
    files = [str(path.relative_to(final)) for path in final.rglob("*") if path.is_file()]
    shards = [name for name in files if ".tfrecord" in name and "/" not in name]
    assert len(shards) == 2
    receipts = [f".parts/{shard}.parquet" for shard in shards]
    for name in [*files, ".build.json", ".parts/outline.json", *receipts]:
        path = work / name
        named = place(calls, "name", path)
        assert place(calls, "sync", path) < named
        assert ("sync", str(path.parent)) in calls[named:]
    for shard, receipt in zip(shards, receipts, strict=True):
        named, synced = place(calls, "name", work / shard), place(calls, "sync", work / receipt)
        assert ("sync", str(work)) in calls[named:synced]


@pytest.mark.parametrize("replaces", [False, True])
def test_a_dataset_is_synced_before_its_rename_and_the_rename_before_the_end(
    tmp_path: Path, calls: list[Call], *, replaces: bool
) -> None:
    if replaces:
        written(tmp_path, quality=80)
        calls.clear()
    final = written(tmp_path, replace=replaces)
    work = final.with_name("1.0.0.incomplete")
    manifest = place(calls, "name", work / "manifest.json")
    names = [path for kind, path in calls[manifest + 1 :] if kind == "name"]
    assert names == [str(final.with_name("1.0.0.old"))] * replaces + [str(final)]
    published = place(calls, "name", final)
    assert ("sync", str(work)) in calls[manifest:published]
    assert calls[published + 1 :] == [("sync", str(final.parent))]
