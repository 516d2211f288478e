"""Sources in object storage: the same keys, bytes and outcomes as on a disk, in few requests."""

import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from shardprep.errors import BuildError, RecipeError, ShardprepError, SourceError, StorageError
from shardprep.source import range_reads
from shardprep.source.byte_range import PlainExtent
from shardprep.source.listing import list_source
from tests.source.hostile import with_damage
from tests.support.builders import (
    animals,
    build,
    in_workers,
    jpeg,
    tar_bytes,
    tree,
    write,
    write_folder,
    zip_bytes,
)
from tests.support.command import run
from tests.support.object_store import Bucket, Fault, Proxy, Request

KEYS: dict[str, Any] = {"shards": 2, "size": "16x16", "format": "png", "max_rejected": 1}


def damaged_zip(members: dict[str, bytes]) -> bytes:
    """Return a zip with one stored member that has a wrong CRC-32."""
    data = zip_bytes(members, method=zipfile.ZIP_STORED)
    return with_damage(data, data.index(members["train/dog.0.jpg"]) + 200, b"\xff\0\xff")


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
def test_an_archive_has_the_same_members_on_a_disk_and_in_a_store(
    name: str, bucket: Bucket, tmp_path: Path
) -> None:
    here = write(tmp_path / name, ARCHIVES[name])
    there = bucket.put(f"raw/{name}", ARCHIVES[name])
    if name in ("pets.zip", "pets.tar", "damaged.zip"):
        local = tree(build(here, tmp_path / "here", **KEYS).path)
        remote = tree(build(there, tmp_path / "there", **KEYS).path)  # type: ignore[arg-type]
        if not name.endswith(".zip"):  # the fingerprint has an ETag there, and a time here
            assert local.pop("manifest.json") != remote.pop("manifest.json")
        assert remote == local
        return

    def members(source: str | Path) -> dict[str, bytes]:
        found = list_source(source, tmp_path / Path(source).parent.name, lambda _: None)
        assert not found.skipped
        return {one.key: one.extent.read() for one in (*found.images, *found.others)}

    assert members(there) == members(here) != {}


def test_objects_below_an_address_are_like_a_folder(bucket: Bucket, tmp_path: Path) -> None:
    files = {
        **animals(8), "notes.txt": b"hello", "odd/cat #1 (ü)%.jpg": jpeg(),
        "more.zip": zip_bytes({"odd/fox.1.jpg": jpeg()}),
    }  # fmt: skip
    local = build(write_folder(tmp_path / "pets", files), tmp_path / "here", **KEYS)
    for name, data in files.items():
        bucket.put(f"raw/pets/{name}", data)
    remote = build(f"{bucket.url}/raw/pets/", tmp_path / "there", **KEYS)  # type: ignore[arg-type]
    same, other = tree(local.path), tree(remote.path)
    del same["manifest.json"], other["manifest.json"]
    assert same == other


@pytest.mark.thorough
def test_a_dataset_built_below_a_source_is_ignored(bucket: Bucket) -> None:
    for name, data in animals(4).items():
        bucket.put(f"pets/{name}", data)
    for out in (f"{bucket.url}/pets/tfrecords", f"{bucket.url}/pets"):
        for _ in range(2):
            build(f"{bucket.url}/pets", out, **KEYS)  # type: ignore[arg-type]


def test_a_split_archive_is_found_below_an_address(bucket: Bucket, tmp_path: Path) -> None:
    data = ARCHIVES["pets.zip"]
    for number, start in enumerate(range(0, len(data), 20_000), 1):
        bucket.put(f"raw/pets.zip.{number:03d}", data[start : start + 20_000])
    listing = list_source(f"{bucket.url}/raw", tmp_path / "work", lambda _: None)
    keys = [member.key for member in listing.images]
    assert keys == [f"pets.zip/{name}" for name in sorted(animals(24))]
    with pytest.raises(SourceError, match="is one volume of a split archive; give the address"):
        list_source(f"{bucket.url}/raw/pets.zip.001", tmp_path / "work", lambda _: None)


@pytest.mark.parametrize(("name", "most"), [("pets.zip", 4), ("pets.tar", 3)])
def test_a_listing_takes_few_requests(
    name: str, most: int, bucket: Bucket, proxy: Proxy, tmp_path: Path
) -> None:
    there = bucket.put(name, ARCHIVES[name])
    range_reads.forget()
    assert len(list_source(there, tmp_path, lambda _: None).images) == 24
    assert len(proxy.requests) <= most


def test_a_large_tar_is_listed_in_growing_steps(
    bucket: Bucket, proxy: Proxy, tmp_path: Path
) -> None:
    members = {f"{i:04d}.jpg": bytes(20_000) for i in range(1000)}
    there = bucket.put("large.tar", tar_bytes(members))
    range_reads.forget()
    assert len(list_source(there, tmp_path, lambda _: None).images) == 1000
    assert len(proxy.requests) <= 9


def test_several_members_are_read_in_one_request(
    bucket: Bucket, proxy: Proxy, tmp_path: Path
) -> None:
    members = animals(100)
    there = bucket.put("pets.zip", zip_bytes(members))
    extents = [member.extent for member in list_source(there, tmp_path, lambda _: None).images]
    range_reads.forget()
    proxy.reset()
    spans = range_reads.read_ahead([extent.span for extent in extents])
    found = [extent.read() for extent, _ in zip(extents, spans, strict=True)]
    assert found == [members[name] for name in sorted(members)]
    assert len(proxy.requests) < 10


def test_read_ahead_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def get_ranges(_: object, starts: list[int], lengths: list[int]) -> list[bytes]:
        asked.extend(starts)
        return [bytes(length) for length in lengths]

    monkeypatch.setattr("shardprep.storage.objects.get_ranges", get_ranges)
    far_apart = [PlainExtent("s3://bucket/pets.tar", i << 20, 1000) for i in range(400)]
    spans = range_reads.read_ahead(far_apart)
    next(spans)
    ahead = 8 + 16 + 32 + 64 + 64  # the window in use and four more, each twice as large at most
    until = time.monotonic() + 60
    while len(asked) < ahead and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.1)
    assert len(asked) == ahead
    assert [next(spans) for _ in far_apart[1:]] == far_apart[1:]
    assert sorted(asked) == [span.offset for span in far_apart]


@pytest.mark.thorough
def test_workers_use_a_store_that_their_parent_has_used(bucket: Bucket, tmp_path: Path) -> None:
    """Its client would hang in a forked process."""
    there = bucket.put("pets.zip", ARCHIVES["pets.zip"])
    build(there, bucket.url, engine=in_workers, **KEYS)  # type: ignore[arg-type]
    local = build(write(tmp_path / "pets.zip", ARCHIVES["pets.zip"]), tmp_path / "out", **KEYS)
    assert bucket.tree("pets/1.0.0") == tree(local.path)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "fault",
    [Fault(status=503), Fault(is_reset=True), Fault(cut_at=1000)],
    ids=["503", "RST", "cut"],
)
def test_failed_reads_of_a_source_are_retried(
    fault: Fault, bucket: Bucket, proxy: Proxy, tmp_path: Path
) -> None:
    there = bucket.put("pets.zip", ARCHIVES["pets.zip"])
    range_reads.forget()
    proxy.rule = lambda request: fault if request.number % 2 else None
    result = build(there, tmp_path / "out", **KEYS)  # type: ignore[arg-type]
    assert result.manifest.totals.num_written == 24


def test_a_build_ends_with_an_error_if_the_store_refuses_access(
    bucket: Bucket, proxy: Proxy, tmp_path: Path
) -> None:
    there = bucket.put("pets.zip", ARCHIVES["pets.zip"])
    calls = 0

    def listed_and_no_more(request: Request) -> Fault | None:
        nonlocal calls
        calls += request.method == "GET"
        return Fault(status=403) if calls > 1 else None

    proxy.rule = listed_and_no_more
    range_reads.forget()
    with pytest.raises(StorageError, match=r"pets\.zip: cannot be read with these credentials"):
        build(there, tmp_path / "out", engine=in_workers, **KEYS)  # type: ignore[arg-type]
    assert calls > 1


@pytest.mark.parametrize("name", ["pets.zip", "pets.tar"])
def test_a_source_that_changes_during_a_build_is_an_error(
    name: str, bucket: Bucket, tmp_path: Path
) -> None:
    there = bucket.put(name, ARCHIVES[name])
    pack = zip_bytes if name.endswith("zip") else tar_bytes

    def changing(encode: Any, tasks: Any, num_workers: int, limits: Any) -> Any:
        del num_workers, limits
        for number, task in enumerate(tasks):
            if number == 1:
                bucket.put(name, pack({key: data[::-1] for key, data in animals(24).items()}))
            yield encode(task, lambda: None)

    with pytest.raises(BuildError, match="was changed or removed while it was read"):
        build(there, tmp_path / "out", engine=changing, **KEYS)  # type: ignore[arg-type]
    assert not (tmp_path / "out" / "pets" / "1.0.0").exists()


def test_an_invalid_source_in_a_store_is_a_one_line_error(bucket: Bucket, tmp_path: Path) -> None:
    def failing(source: str, **keys: Any) -> str:
        with pytest.raises(ShardprepError) as caught:
            build(source, tmp_path / "out", **keys)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
        return str(caught.value)

    notes = bucket.put("notes.txt", b"no archive")
    assert "is neither a folder nor a supported archive" in failing(notes)
    assert "there is no object at or below this address" in failing(f"{bucket.url}/nothing.zip")
    assert "s3://no-such-bucket: the bucket does not exist" in failing("s3://no-such-bucket/x.zip")
    assert "is truncated" in failing(bucket.put("cut.zip", ARCHIVES["pets.zip"][:-40]))
    signed = "s3://b/x.zip?X-Amz-Signature=abcdef"
    assert "abcdef" not in failing(signed)
    assert "x.zip: has a query or a fragment (? or #); write s3://BUCKET/KEY" in failing(signed)
    pets = bucket.put("pets.zip", ARCHIVES["pets.zip"])
    line = failing(pets, labels=f"csv:{bucket.url}/labels.csv")
    assert "a table must be in the source or on this machine" in line
    with pytest.raises(RecipeError):
        build(pets, "az://", **KEYS)  # type: ignore[arg-type]


def test_init_dry_run_and_save_rejected_take_addresses(bucket: Bucket, tmp_path: Path) -> None:
    there = bucket.put("raw/damaged.zip", ARCHIVES["damaged.zip"])
    assert run("init", there, cwd=tmp_path).returncode == 0
    assert f'source = "{there}"' in (tmp_path / "shardprep.toml").read_text()
    assert "0 cat, 1 dog" in run("build", "--dry-run", cwd=tmp_path).stdout
    done = run(
        "build", "--out", bucket.url, "--max-rejected", "50%", "--save-rejected", "bad",
        "--workers", "1", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"next      shardprep inspect {bucket.url}/damaged" in done.stdout
    assert (tmp_path / "bad" / "rejected.csv").read_text().count("unreadable") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"shardprep.toml", "bad", "cache"}
