"""Sources in object storage: the same keys, bytes and outcomes as on a disk, in few requests."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from tests.builders import animals, build, jpeg, tar_bytes, tree, write, write_folder, zip_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from tests.object_store import Bucket

KEYS: dict[str, Any] = {"shards": 2, "size": "16x16", "format": "png", "max_rejected": 1}


def damaged_zip(members: dict[str, bytes]) -> bytes:
    """Return a zip in which the bytes of one stored member are not those of its CRC-32."""
    data = bytearray(zip_bytes(members, method=zipfile.ZIP_STORED))
    at = data.index(members["train/dog.0.jpg"][:16])
    data[at + 200] ^= 0xFF
    return bytes(data)


ARCHIVES = {
    "pets.zip": zip_bytes(animals(24)),
    "stored.zip": zip_bytes(animals(24), method=zipfile.ZIP_STORED),
    "damaged.zip": damaged_zip(animals(6)),
    "pets.tar": tar_bytes(animals(24)),
    "pets.tar.gz": tar_bytes(animals(24), "gz"),
    "nested.zip": zip_bytes(
        {"train.zip": zip_bytes(animals(8)), "more/test.tar": tar_bytes({"x.jpg": jpeg()})},
        method=zipfile.ZIP_STORED,
    ),
    "labelled.zip": zip_bytes(
        {"a.jpg": jpeg(seed=1), "b.jpg": jpeg(seed=2), "labels.csv": b"id,label\na,one\nb,two\n"}
    ),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_there_gives_what_it_gives_here(
    name: str, bucket: Bucket, tmp_path: Path
) -> None:
    here = write(tmp_path / name, ARCHIVES[name])
    there = bucket.put(f"raw/{name}", ARCHIVES[name])
    local = tree(build(here, tmp_path / "here", **KEYS).path)
    remote = tree(build(there, tmp_path / "there", **KEYS).path)  # type: ignore[arg-type]
    if not name.endswith(".zip"):  # told by its ETag there, by its time here
        assert local.pop("manifest.json") != remote.pop("manifest.json")
    assert remote == local


def test_objects_below_an_address_are_a_folder(bucket: Bucket, tmp_path: Path) -> None:
    files = {
        **animals(8),
        "more.zip": zip_bytes({"odd/fox.1.jpg": jpeg()}),
        "odd/cat #1 (ü)%.jpg": jpeg(),
        "notes.txt": b"hello",
    }
    local = build(write_folder(tmp_path / "pets", files), tmp_path / "here", **KEYS)
    for name, data in files.items():
        bucket.put(f"raw/pets/{name}", data)
    there = f"{bucket.url}/raw/pets/"
    remote = build(there, tmp_path / "there", **KEYS)  # type: ignore[arg-type]
    same, other = tree(local.path), tree(remote.path)
    del same["manifest.json"], other["manifest.json"]
    assert same == other


def test_what_is_built_below_a_source_is_no_part_of_it(bucket: Bucket) -> None:
    for name, data in animals(4).items():
        bucket.put(f"pets/{name}", data)
    for out in (f"{bucket.url}/pets/tfrecords", f"{bucket.url}/pets"):
        for _ in range(2):
            build(f"{bucket.url}/pets", out, **KEYS)  # type: ignore[arg-type]
